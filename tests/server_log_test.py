"""The log's reader stands still, or has gone: that is no reason for a server to do either. What
the log says of requests that were refused."""
import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import subprocess
import unittest

from server_fixture import MODEL, PROGRAM, WAIT_S, OwnServersTest, eventually
from server_http_test import HOST, Raw

ROOM = 1 << 14  # of the pipe


class PipedProgram:
    """A program whose stderr is a pipe, or a terminal."""

    def __init__(self, *words, terminal=False):
        self.read_end, write_end = os.openpty() if terminal else os.pipe()
        if not terminal:
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, ROOM)
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), *words, "--model", MODEL,
             "--threads", "1", "--ram-capacity", "64MiB"], stdout=subprocess.PIPE, stderr=write_end)
        os.close(write_end)
        self.said = ""

    def read_until(self, pattern):
        while not (match := re.search(pattern, self.said)):
            read = os.read(self.read_end, 1 << 16).decode()
            if not read:
                raise AssertionError(f"{pattern} never came: {self.said}")
            self.said += read
        return match

    def read_to_the_end(self):
        with contextlib.suppress(OSError):  # a terminal's end
            while read := os.read(self.read_end, 1 << 16).decode():
                self.said += read

    def close_log(self):
        if self.read_end is not None:
            os.close(self.read_end)
        self.read_end = None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.close_log()


class LogTest(OwnServersTest):
    def setUp(self):
        self.asked = 0

    def piped(self, *words, **options):
        program = PipedProgram(*words, **options)
        self.addCleanup(program.kill)
        return program

    def serve(self, *flags, **options):
        server = self.piped("serve", "--port", "0", *flags, **options)
        port = int(server.read_until(r"http://127.0.0.1:(\d+)/v1")[1])
        server.client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        self.addCleanup(server.client.close)
        return server

    def ask(self, server, path="/v1/models"):
        """The status of the answer to one request."""
        self.asked += path != "/health"  # a probe that is answered has no line
        server.client.request("GET", path)
        response = server.client.getresponse()
        response.read()
        return response.status

    def test_a_reader_that_has_gone_ends_nothing(self):
        server = self.serve()
        server.close_log()
        self.assertEqual([self.ask(server) for _ in range(3)], [200] * 3)
        self.assertEqual(server.stop(), 0)

    def test_a_worker_without_a_reader_is_led_and_works_on(self):
        worker = self.piped("worker", "--listen", "127.0.0.1:0")
        address = worker.process.stdout.readline().decode().strip()
        worker.close_log()
        for _ in range(2):
            server = self.start("--workers", address)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(worker.stop(), 0)

    def stand_still(self, terminal):
        """The lines that are read of a log which nobody reads for a while."""
        server = self.serve("--log-format", "json", terminal=terminal)
        # A line has over 100 bytes.
        self.assertEqual({self.ask(server) for _ in range(ROOM // 20)}, {200})
        self.assertEqual(self.ask(server, "/health"), 200)

        def told():
            server.said += os.read(server.read_end, 1 << 16).decode()
            self.assertEqual(self.ask(server), 200)
            return "lines of the log are lost" in server.said
        eventually(told, "that lines are lost")
        self.assertEqual(self.ask(server, "/version"), 200)
        self.assertEqual(server.stop(), 0)
        server.read_to_the_end()
        return server.said.splitlines()

    def check_lost(self, lines):
        lost = [int(line["message"].split()[-1]) for line in lines
                if "lines of the log are lost" in line.get("message", "")]
        self.assertGreater(sum("/v1/models" in str(line) for line in lines), 10)
        self.assertGreater(sum(lost), 10)
        return sum(lost)

    def test_a_reader_that_stands_still_loses_lines_and_stops_nobody(self):
        lines = [json.loads(line) for line in self.stand_still(terminal=False)]
        lost = self.check_lost(lines)
        self.assertEqual(sum("path" in line for line in lines) + lost, self.asked)
        self.assertEqual(sum(line.get("path") == "/version" for line in lines), 1)

    def test_a_terminal_has_room_for_a_part_of_a_line(self):
        lines = self.stand_still(terminal=True)
        self.assertEqual({line.count('{"time"') for line in lines}, {1})
        whole = [line for line in lines if line.endswith("}")]
        self.assertGreaterEqual(len(whole), len(lines) - 3)
        self.check_lost([json.loads(line) for line in whole])

    def test_it_ends_although_nobody_reads(self):
        for terminal in (False, True):
            server = self.serve(terminal=terminal)
            self.assertEqual({self.ask(server) for _ in range(ROOM // 20)}, {200})
            self.assertEqual(server.stop(), 0)


class RefusalTest(OwnServersTest):
    def sent(self, server, pattern):
        """Bytes of the refusal, by its line in the log."""
        pattern = re.compile(pattern + r"; 0 B in, (\d+) B out")
        eventually(lambda: pattern.search(server.log()), pattern.pattern)
        return int(pattern.search(server.log())[1])

    def answer(self, server, request):
        """The body of the answer."""
        with Raw(server) as raw:
            raw.send(request)
            return raw.read_all().partition(b"\r\n\r\n")[2]

    def test_a_method_that_a_path_has_not(self):
        server = self.start("--log-format", "json")
        status, headers, _ = server.request("DELETE", "/v1/models")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD, OPTIONS"))
        eventually(lambda: '"status":405' in server.log(), "its line")
        line = json.loads(re.search(r'^.*"status":405.*$', server.log(), re.MULTILINE)[0])
        self.assertEqual(line.get("error"), {"message": "/v1/models is for GET"})
        self.assertEqual(server.stop(), 0)

    def test_half_a_header_is_no_request(self):
        server = self.start()
        with Raw(server) as raw:
            raw.send(f"GET /health HTTP/1.1\r\n{HOST}")
        # The one that asks.
        eventually(lambda: server.metric("kvcake_http_connections", listener="clients") == 1,
                   "its end")
        self.assertEqual(server.metric("kvcake_http_responses_total", status=499), 0)
        self.assertEqual(server.stop(), 0)

    def test_ids_of_two_servers_differ(self):
        """Their lines may go to the same log."""
        ids = set()
        for server in (self.start(), self.start()):
            ids.add(server.request("GET", "/health")[1]["X-Request-Id"])
            self.assertEqual(server.stop(), 0)
        self.assertEqual(len(ids), 2)

    def test_what_was_sent_counts_although_nothing_was_read(self):
        server = self.start("--connections-max", "1", "--admin-port", "0")
        body = self.answer(server, f"GET /a HTTP/1.1\r\n{HOST}{HOST}\r\n")
        self.assertEqual(self.sent(server, r"GET /a 400: .*"), len(body))
        with Raw(server) as busy:
            busy.send(f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Type: application/json\r\n"
                      "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n")
            busy.read_until(b"100 Continue")
            body = self.answer(server, "")
            self.assertEqual(self.sent(server, r"- - - 503: .*"), len(body))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
