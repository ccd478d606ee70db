"""A relay that is as bad as a network can be."""
import asyncio
import threading


class Answer:
    """Counts what a connection has answered since something was last asked."""

    bytes = 0


class Relay:
    """Passes connections on to a port of this machine, with the faults of a bad network. What is
    set holds for all connections, from the next bytes on."""

    def __init__(self, port):
        self._to = port
        self.delay_s = 0.0  # each way
        self.reset_after = None  # bytes of an answer: its connection is reset
        self.drip_after = None  # bytes of an answer: of the rest one comes at a time
        self.drip_s = 0.2  # between those
        self.connections = self.resets = self.drips = self.delayed = 0
        self._tasks = set()  # as asyncio itself does not hold them
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _serve(self, reader, writer):
        self.connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer.transport, there[1].transport)
        answer = Answer()
        pumps = [asyncio.ensure_future(self._pump(reader, there[1], ends, answer, False)),
                 asyncio.ensure_future(self._pump(there[0], writer, ends, answer, True))]
        try:
            await asyncio.gather(*pumps)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                end.abort()

    async def _pump(self, reader, writer, ends, answer, is_answer):
        late = asyncio.Queue()
        writing = asyncio.ensure_future(self._write(late, writer))
        try:
            while data := await reader.read(1 << 16):
                answer.bytes = answer.bytes + len(data) if is_answer else 0
                if self.reset_after is not None and answer.bytes > self.reset_after:
                    self.resets += 1
                    for end in ends:
                        end.abort()
                    return
                self.delayed += self.delay_s > 0
                late.put_nowait((self._loop.time() + self.delay_s, data, answer.bytes))
            late.put_nowait(None)
            await writing
        finally:
            writing.cancel()

    async def _write(self, late, writer):
        while (item := await late.get()) is not None:
            due, data, answered = item
            await asyncio.sleep(due - self._loop.time())
            while data and self.drip_after is not None and answered > self.drip_after:
                if writer.is_closing():
                    return
                self.drips += 1
                writer.write(data[:1])
                data = data[1:]
                await asyncio.sleep(self.drip_s)
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def _end(self):
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
