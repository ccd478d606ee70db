"""A server whose long prompts several processes prefill: as its users and operators see it."""
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from redis_fixture import Redis
from server_fixture import (MODEL, PROGRAM, SANITIZER_REPORT, WAIT_S, OwnServersTest, Server,
                            eventually)
from store_fixture import CHUNK, prompt as tokens

PROFILE = str(pathlib.Path(__file__).parent.parent / "bench/profiles/kvr/a100-llama-7b.json")
PATIENT = ("--rank-timeout", "300s")  # so that nothing ends for its sake


def prompt(number):
    """A long one that shares no chunk with another number's."""
    return f"Number {number}. " + " ".join(
        f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))


def children(pid):
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            if f"\nPPid:\t{pid}\n" in status.read_text():
                found.append(int(status.parent.name))
        except OSError:
            pass  # it has ended
    return found


def runs(pid):
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def listeners(pid):
    """The TCP sockets that this process listens at, as the kernel tells."""
    own = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(fd))
        except OSError:
            pass  # it was closed
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(fields[1])
    return found


class Worker:
    """A running `kvcake worker`."""

    def __init__(self, *flags, listen="127.0.0.1:0", ram="64MiB"):
        self.log_file = tempfile.NamedTemporaryFile(prefix="kvcake-worker-")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), "worker", "--model", MODEL,
             "--listen", listen, "--threads", "1", "--ram-capacity", ram, *flags],
            stdout=subprocess.PIPE, stderr=self.log_file)
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address, self.log()

    def log(self):
        return pathlib.Path(self.log_file.name).read_text(encoding="utf-8", errors="replace")

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        assert not SANITIZER_REPORT.search(self.log()), self.log()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log_file.close()


class RanksTestCase(OwnServersTest):
    """What tests of servers with ranks share."""
    @classmethod
    def setUpClass(cls):
        cls.alone = Server()
        cls.addClassCleanup(cls.alone.kill)
        cls.answers = {}

    def worker(self, *flags, **options):
        worker = Worker(*flags, **options)
        self.addCleanup(worker.kill)
        return worker

    def ask(self, server, number):
        body = server.post("/v1/completions",
                           {"prompt": prompt(number), "max_tokens": 8, "temperature": 0,
                            "ignore_eos": True, "kvcake": {"report": True}})
        return body["choices"][0]["text"], body["kvcake"]["chain"]

    def check(self, server, number, ranks):
        """The answer is that of a server alone; so many ranks have prefilled the prompt."""
        if number not in self.answers:
            self.answers[number], chain = self.ask(self.alone, number)
            self.assertIsNone(chain)
        text, chain = self.ask(server, number)
        self.assertEqual(text, self.answers[number])
        self.assertEqual(len(chain["ranks"]) if chain else 1, ranks, server.log())

    def during(self, server, number, ranks, act):
        """check(), with `act` while the prompt waits for a worker that is stopped."""
        failed = []

        def check():
            try:
                self.check(server, number, ranks)
            except BaseException as error:  # for the thread that joins
                failed.append(error)
        thread = threading.Thread(target=check)
        thread.start()
        eventually(lambda: failed or server.metric("vllm:num_requests_running") +
                   server.metric("vllm:num_requests_waiting") == 1, "a prompt")
        act()
        thread.join()
        if failed:
            raise failed[0]

    def connected(self, server, ranks):
        eventually(lambda: server.metric("kvcake_chain_ranks") == ranks, f"{ranks} ranks")

    def logged(self, worker, text):
        """The worker's log, once it has this."""
        eventually(lambda: text in worker.log(), text)
        return worker.log()


class RanksTest(RanksTestCase):
    def test_a_partition_for_nobody_is_told(self):
        server = self.start("--partition", "even")
        self.assertIn("--partition: one process computes all of a prompt", server.log())
        self.assertNotIn("one process computes", self.alone.log())

    def test_workers_of_this_machine(self):
        server = self.start("--ranks", "3", "--partition", "even", *PATIENT)
        workers = children(server.process.pid)
        self.assertEqual(len(workers), 2)
        self.assertEqual(server.metric("kvcake_chain_ranks"), 3)
        self.assertEqual(len(listeners(server.process.pid)), 1, "the server's own")
        for worker in workers:
            self.assertEqual(listeners(worker), [], "whom nobody else can call")
            self.assertEqual(os.getpgid(worker), worker, "a terminal's Ctrl-C is the server's")
        self.check(server, 1, ranks=3)
        self.check(server, 2, ranks=3)
        self.assertEqual(server.metric("kvcake_chain_prompts_total"), 2)
        self.assertIn("by 3 ranks", server.log())
        self.check(server, 2, ranks=1)  # it is in memory
        self.assertEqual(server.metric("kvcake_chain_lost_total"), 0)
        self.assertEqual(server.stop(), 0)
        eventually(lambda: not any(map(runs, workers)), "the workers' end")

    def test_what_another_process_keeps_in_redis_is_restored(self):
        redis = Redis()
        self.addCleanup(redis.close)
        prefixes = [tokens(seed, chunks=8) for seed in range(10, 20)]
        first = self.start("--emulate", PROFILE, store=redis.url)
        for kept in prefixes:
            first.post("/v1/completions", {"prompt": kept, "max_tokens": 1})
        first.stop()
        server = self.start("--emulate", PROFILE, "--ranks", "2", "--partition", "even",
                            *PATIENT, store=redis.url)

        def is_restored():  # Redis is waited for 50 ms, which a busy machine may well take
            prompt = prefixes.pop() + tokens(30 + len(prefixes), chunks=16)
            said = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1,
                                                   "kvcake": {"report": True}})["kvcake"]
            if said["chain"]["origin"] == 0:
                time.sleep(1)  # no prompt waits for a second after that
                return False
            self.assertEqual(said["chain"]["origin"], 8 * CHUNK)
            self.assertIn("redis", said["report"]["tokens_loaded"])
            return True

        eventually(is_restored, "what is kept in Redis")

    def test_workers_end_with_a_server_that_is_killed(self):
        server = self.start("--ranks", "2", *PATIENT)
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        server.process.kill()
        eventually(lambda: not runs(worker), "the worker's end")

    def test_a_worker_that_is_killed_costs_the_chain_and_is_started_again(self):
        server = self.start("--ranks", "2", "--partition", "even", *PATIENT)
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        self.during(server, 1, 1, lambda: os.kill(worker, signal.SIGKILL))
        self.assertEqual(server.metric("kvcake_chain_lost_total"), 1)
        self.assertIn("the chain of ranks is lost", server.log())
        self.connected(server, 2)
        self.check(server, 2, ranks=2)
        (again,) = children(server.process.pid)
        self.assertNotEqual(again, worker)
        self.assertEqual(server.metric("kvcake_chain_lost_total"), 1)
        self.assertEqual(server.stop(), 0)

    def test_a_worker_that_hangs_costs_the_chain(self):
        worker = self.worker()
        host, port = worker.address.split(":")
        garbage = socket.create_connection((host, int(port)))  # while servers come and go
        self.addCleanup(garbage.close)
        with socket.create_connection((host, int(port))) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.assertEqual(other.recv(1), b"")
        server = self.start("--workers", worker.address, "--partition", "even", "--rank-timeout",
                            "5s")
        self.connected(server, 2)
        self.check(server, 1, ranks=2)
        worker.process.send_signal(signal.SIGSTOP)
        self.check(server, 2, ranks=1)
        self.assertEqual(server.metric("kvcake_chain_lost_total"), 1)
        self.assertEqual(server.metric("kvcake_chain_ranks"), 1)
        worker.process.send_signal(signal.SIGCONT)
        self.connected(server, 2)
        self.check(server, 3, ranks=2)

        # It serves the next server, and is missed while nobody asks.
        self.assertEqual(server.stop(), 0)
        server = self.start("--workers", worker.address, "--partition", "even", *PATIENT)
        self.connected(server, 2)
        self.check(server, 3, ranks=2)
        self.assertIn("let this worker go", worker.log())
        self.assertEqual(worker.stop(), 0)
        (told,) = [line for line in worker.log().splitlines() if "is told to stop" in line]
        self.assertNotIn("warning", told, "it was asked for")
        eventually(lambda: server.metric("kvcake_chain_lost_total") == 1, "the loss")
        self.check(server, 4, ranks=1)
        self.assertEqual(server.stop(), 0)

    def test_the_server_tells_why_a_worker_could_not(self):
        worker = self.worker("--chunk-tokens", "16", ram="700KiB")
        server = self.start("--workers", worker.address, "--partition", "even",
                            "--chunk-tokens", "16", *PATIENT)
        self.connected(server, 2)
        self.check(server, 1, ranks=1)
        (lost,) = [line for line in server.log().splitlines() if "ranks is lost" in line]
        self.assertRegex(lost, r"rank 0 at 127\.0\.0\.1:\d+ is gone: it says: rank 0: \d+ tokens "
                               r"need more pages than --ram-capacity has: raise it")
        self.assertEqual(server.stop(), 0)

    def test_a_worker_may_come_late(self):
        early = self.worker()
        kept = socket.socket()  # the port is the worker's, which may listen there beside it
        self.addCleanup(kept.close)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        server = self.start("--workers", f"{early.address},{address}", "--partition", "even",
                            *PATIENT)
        self.assertIn(f"the worker at {address} is not ready: Connection refused", server.log())
        self.check(server, 1, ranks=1)
        self.worker(listen=address)
        self.connected(server, 3)
        self.check(server, 2, ranks=3)
        self.assertEqual(server.metric("kvcake_chain_lost_total"), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_worker_of_another_model_is_a_mistake(self):
        worker = self.worker("--weights", "int8")
        serve = [*PROGRAM.split(), "serve", "--model", MODEL, "--port", "0", "--threads", "1",
                 "--ram-capacity", "64MiB"]
        for flags, why in (
                (("--workers", worker.address), "another weights than rank 0 (bf16; rank 0: int8)"),
                (("--workers", worker.address), "another weights"),
                (("--workers", worker.address, "--weights", "int8", "--chunk-tokens", "64"),
                 "another chunk_tokens than rank 0 (64; rank 0: 128)"),
                (("--workers", worker.address, "--weights", "int8", "--rank-tokens-max", "512"),
                 "another --rank-tokens-max"),
                (("--workers", worker.address, "--ranks", "2"), "excludes"),
                (("--workers", "nonsense"), "nonsense is no address"),
                (("--ranks", "2", "--partition", ".5,.6"), ".5,.6"),
                (("--ranks", "2", "--cpu-list", str(min(os.sched_getaffinity(0)))), "--cpu-list")):
            with self.subTest(why):
                done = subprocess.run([*serve, *flags], stderr=subprocess.PIPE, timeout=WAIT_S,
                                      check=False)
                self.assertIn(done.returncode, (1, 2))
                self.assertIn(why, done.stderr.decode())
        self.assertEqual(worker.log().count("another weights"), 1, "said once, not at each call")
        self.assertNotIn("led from", worker.log().replace("no more led from", ""))
        server = self.start("--workers", worker.address, "--weights", "int8")
        self.connected(server, 2)
        self.assertIn("rank 0 of 2, led from", worker.log())
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
