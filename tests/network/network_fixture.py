"""What the tests of real networks share: networks of their own, answers to compare with, and
requests that go on while something fails."""
import itertools
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

# The fixtures of all tests lie in the directory above.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent))

from server_fixture import WAIT_S, OwnServersTest, Server, eventually  # noqa: E402
from store_fixture import CHUNKS, prompt  # noqa: E402

LONG = 56  # chunks of a prompt whose load can be interrupted
# Time-outs that a request which does nothing but load may wait for, one after another.
FAILURES = 4
# A machine that others use too may compute a prompt so many times slower than a moment ago.
SLOWER = 8
# And keep a request that computes, and waits for no store, from its turn for as long.
BUSY_S = 3
IN_NAMESPACE = "KVCAKE_TEST_NAMESPACE"


def enter_namespace():
    """Goes on in namespaces of the test's own, where it may configure networks and mounts; all of
    it is gone with its last process. Fails with the remedy where none may be made."""
    if IN_NAMESPACE in os.environ:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    tried = subprocess.run([*unshare, "ip", "link", "set", "lo", "up"], check=False,
                           capture_output=True, text=True)
    if tried.returncode != 0:
        sys.exit("this test makes namespaces of its own, which is forbidden here: run it as root, "
                 "outside containers whose profile forbids them, or allow them to all users "
                 f"(sysctl user.max_user_namespaces): {tried.stderr.strip()}")
    os.environ[IN_NAMESPACE] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, *sys.orig_argv[1:]])


def listens(host, port):
    """Returns whether somebody does."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


class FarMachine:
    """A network namespace at the other end of a cable, for servers to run in."""

    HERE, ADDRESS = "192.0.2.1", "192.0.2.2"

    def __init__(self):
        # A process holds the namespace; it ends when its input does.
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "cat"], stdin=subprocess.PIPE)
        ours = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{self.process.pid}/ns/net") != ours, "a namespace")
        self.within = ["nsenter", "--target", str(self.process.pid), "--net"]
        pid = str(self.process.pid)
        self._run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", pid)
        self._run("ip", "address", "add", self.HERE + "/24", "dev", "near")
        self._run("ip", "link", "set", "near", "up")
        self._run_there("ip", "address", "add", self.ADDRESS + "/24", "dev", "far")
        self._run_there("ip", "link", "set", "far", "up")
        self._run_there("ip", "link", "set", "lo", "up")
        self.cuts = ("both", "replies", "requests", "link")
        self._cut = None  # how it is, now
        tried = subprocess.run(["nft", "add table inet cut; delete table inet cut"], check=False,
                               capture_output=True, text=True)
        if tried.returncode != 0:
            print(f"the kernel drops nothing here, so links go down: {tried.stderr.strip()}")
            self.cuts = ("link",)

    @staticmethod
    def _run(*command):
        subprocess.run(command, check=True)

    def _run_there(self, *command):
        self._run(*self.within, *command)

    def _drop(self, run, device):
        run("nft", "add table inet cut; add chain inet cut input "
            "{ type filter hook input priority 0; }; "
            f'add rule inet cut input iifname "{device}" drop')

    def cut(self, how):
        """From now on nothing passes: "both" ways, no "requests" or no "replies"; or the "link" is
        down, which both ends are told of."""
        self._cut = how
        if how in ("both", "requests"):
            self._drop(self._run_there, "far")
        if how in ("both", "replies"):
            self._drop(self._run, "near")
        if how == "link":
            self._run_there("ip", "link", "set", "far", "down")

    def mend(self):
        """Undoes the last cut, if that is not done yet."""
        how, self._cut = self._cut, None
        if how in ("both", "requests"):
            self._run_there("nft", "delete table inet cut")
        if how in ("both", "replies"):
            self._run("nft", "delete table inet cut")
        if how == "link":
            self._run_there("ip", "link", "set", "far", "up")

    def close(self):
        self._run("ip", "link", "delete", "near")
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


def ask(server, seed, chunks=CHUNKS, policy="cake"):
    """Returns a server's answer, down to the bits of the log probabilities."""
    body = {"prompt": prompt(seed, chunks), "max_tokens": 4, "temperature": 0, "logprobs": 5,
            "kvcake": {"policy": policy}}
    return server.post("/v1/completions", body)["choices"][0]


class Asked:
    """A request that runs while the test goes on."""

    def __init__(self, server, seed, chunks=LONG, policy="load"):
        self._arguments = (server, seed, chunks, policy)
        self._answer = self._error = self.seconds = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self):
        began = time.monotonic()
        try:
            self._answer = ask(*self._arguments)
        except BaseException as error:  # pylint: disable=broad-except
            self._error = error
        self.seconds = time.monotonic() - began

    def is_running(self):
        return self._thread.is_alive()

    def answer(self):
        self._thread.join()
        if self._error:
            raise self._error
        return self._answer


class Traffic:
    """Requests that go on, one after another in each of two threads, until they are stopped: one
    computes meanwhile what it asks the store for, the other does nothing but load. Each has prompts
    of its own, lest one wait for what the other computes."""

    def __init__(self, server, expected, computing, loading):
        self._server, self._expected = server, expected
        self._changed = threading.Condition()
        # Guarded by it.
        self._over = False
        self._wrong = None
        self.answered = 0
        self.longest_s = {"cake": 0.0, "load": 0.0}
        self._threads = [threading.Thread(target=self._run, args=arguments, daemon=True)
                         for arguments in (("cake", computing), ("load", loading))]
        for thread in self._threads:
            thread.start()

    def _run(self, policy, seeds):
        for seed in itertools.cycle(seeds):
            with self._changed:
                if self._over or self._wrong:
                    return
            began, wrong = time.monotonic(), None
            try:
                answer = ask(self._server, seed, policy=policy)
                if answer != self._expected(seed):
                    wrong = AssertionError(f"seed {seed}, {policy}: {answer}")
            except BaseException as error:  # pylint: disable=broad-except
                wrong = error
            with self._changed:
                self._wrong = self._wrong or wrong
                self.answered += 1
                self.longest_s[policy] = max(self.longest_s[policy], time.monotonic() - began)
                self._changed.notify_all()

    def wait_for(self, answers):
        """Waits until so many more have been answered, and right."""
        with self._changed:
            until = self.answered + answers
            came = self._changed.wait_for(lambda: self._wrong or self.answered >= until, WAIT_S)
            if self._wrong:
                raise self._wrong
            assert came, "never came: answers"

    def stop(self):
        """Waits for the last answers. All have been right."""
        with self._changed:
            self._over = True
        for thread in self._threads:
            thread.join()
        if self._wrong:
            raise self._wrong


class NetworkTest(OwnServersTest):
    """Tests that compare answers with those of a server that has no store."""

    # Prompts that traffic asks: those that are computed meanwhile are more than small() keeps in
    # memory, and leave no room there for the others.
    COMPUTING, LOADING = range(40), range(40, 60)
    SEEDS = range(60)

    @classmethod
    def setUpClass(cls):
        cls.reference = Server("--store-writes", "never")
        cls.answers, cls.computing_s = {}, 0.0
        cls.lock = threading.Lock()
        for seed in cls.SEEDS:
            cls.expected(seed)

    @classmethod
    def tearDownClass(cls):
        try:
            assert cls.reference.stop() == 0
        finally:
            cls.reference.kill()

    @classmethod
    def expected(cls, seed, chunks=CHUNKS):
        with cls.lock:
            if (seed, chunks) not in cls.answers:
                began = time.monotonic()
                cls.answers[seed, chunks] = ask(cls.reference, seed, chunks, "compute")
                cls.computing_s = max(cls.computing_s, time.monotonic() - began)
            return cls.answers[seed, chunks]

    def setUp(self):
        super().setUp()
        self.new_seeds = itertools.count(10_000)  # prompts that nobody has asked yet

    def small(self, store, *flags):
        """Starts a server that keeps little in memory: what traffic asks comes from its store."""
        return self.start(*flags, store=store, ram="24MiB")

    def fill(self, store, seeds=SEEDS, chunks=CHUNKS):
        """Keeps the chunks of prompts in a store. Those that make way before they are written, as a
        busy machine's may, are computed and written by the next server."""
        def is_filled():
            server = self.start(store=store)
            for seed in seeds:
                self.assert_answers(server, seed, chunks)
                # A store that is slower than computing is not waited for.
                eventually(lambda: server.metric("kvcake_writes_in_flight") == 0, "chunks are kept")
            kept = server.metric("kvcake_tier_chunks")
            self.assertEqual(server.stop(), 0)
            return kept >= len(seeds) * chunks

        eventually(is_filled, "a full store")

    def traffic(self, server):
        traffic = Traffic(server, self.expected, self.COMPUTING, self.LOADING)
        self.addCleanup(traffic.stop)
        return traffic

    def under_way(self, store, *flags):
        """Fills a store; returns a server, and traffic that comes from the store."""
        self.fill(store)
        server = self.small(store, *flags)
        traffic = self.traffic(server)
        eventually(lambda: server.metric("kvcake_tier_reads_total") > 20, "chunks are read")
        return server, traffic

    def assert_answers(self, server, seed, chunks=CHUNKS, policy="cake"):
        self.assertEqual(ask(server, seed, chunks, policy), self.expected(seed, chunks))

    def assert_bounded(self, seconds, documented_s, what="it"):
        """No longer than computing it and what docs/operations.md allows for the fault."""
        print(f"{self.id()}: {what} took {seconds:.2f} s at most", flush=True)
        self.assertLess(seconds, SLOWER * self.computing_s + documented_s)

    def assert_traffic_bounded(self, traffic, documented_s):
        # It waits for nothing, however long the fault's time-outs are.
        self.assert_bounded(traffic.longest_s["cake"], BUSY_S, "what computes meanwhile")
        self.assert_bounded(traffic.longest_s["load"], FAILURES * documented_s, "what only loads")

    def assert_ends_well(self, server):
        eventually(server.idle, "everything has been given back")
        self.assertEqual(server.metric("kvcake_tier_quarantined_total"), 0)
        self.assertEqual(server.stop(), 0)

    def assert_comes_back(self, server):
        """What is new is written, and what is kept is read."""

        def used(metric, policy, next_seed):
            def one():
                before = server.metric(metric)
                self.assert_answers(server, next_seed(), policy=policy)
                return server.metric(metric) > before
            return one

        eventually(used("kvcake_tier_writes_total", "cake", lambda: next(self.new_seeds)),
                   "it is written")
        kept = itertools.cycle(self.LOADING)
        eventually(used("kvcake_tier_reads_total", "load", lambda: next(kept)), "it is read")

    def assert_recovers(self, server, traffic, documented_s):
        """It comes back, and meanwhile no request has failed or waited for longer than is said."""
        self.assert_comes_back(server)
        traffic.stop()
        self.assert_traffic_bounded(traffic, documented_s)
        self.assert_ends_well(server)


def folder(test, name):
    """A directory that goes with the test."""
    made = tempfile.TemporaryDirectory(prefix=f"kvcake-{name}-")
    test.addCleanup(made.cleanup)
    return made.name
