"""A server's chain over a network that is slow for real: a worker in a network namespace of its
own, behind a token bucket (tc tbf). Needs root, and is skipped without."""
import os
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import time
import unittest

from server_fixture import MODEL, PROGRAM, Server, eventually
from slow_network import BURST_BYTES, SlowNetwork

RATE_BITS = 100_000_000
TOKENS = 2048  # of the prompt


class ChainOverTbfTest(unittest.TestCase):
    def setUp(self):
        # Its ranks meet at an address that is no loopback one.
        os.environ["KVCAKE_CLUSTER_KEY"] = secrets.token_hex(32)
        self.addCleanup(os.environ.pop, "KVCAKE_CLUSTER_KEY")
        if os.geteuid() != 0:
            self.skipTest("network namespaces need root")
        try:
            self.network = SlowNetwork(RATE_BITS)
        except (OSError, subprocess.CalledProcessError) as error:
            says = getattr(error, "stderr", "") or error
            self.skipTest(f"no network namespace with tc tbf here: {says}")
        self.addCleanup(self.network.close)
        self.dir = tempfile.TemporaryDirectory(prefix="kvcake-tbf-")
        self.addCleanup(self.dir.cleanup)

    def start_worker(self):
        log = pathlib.Path(self.dir.name, "worker.log")
        with open(log, "w", encoding="utf-8") as out:
            worker = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.network.inside, *PROGRAM.split(),
                 "worker", "--listen", f"{self.network.address}:0", "--model", MODEL, "--threads",
                 "1", "--ram-capacity", "64MiB"], stdout=out, stderr=out)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)

        def address():
            text = log.read_text(encoding="utf-8")
            return re.search(re.escape(self.network.address) + r":([1-9]\d*)", text)

        eventually(lambda: worker.poll() is not None or address(), "the worker's start")
        self.assertIsNone(worker.poll(), log.read_text(encoding="utf-8"))
        return f"{self.network.address}:{address()[1]}"

    def test_the_chain_is_as_slow_as_its_network_and_right(self):
        prompt = [100 + i * 7919 % 800 for i in range(TOKENS)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        alone = Server()
        want = alone.post("/v1/completions", body)["choices"][0]["text"]
        self.assertEqual(alone.stop(), 0)

        server = Server("--workers", self.start_worker(), "--partition", "even")
        eventually(lambda: server.metric("kvcake_chain_ranks") == 2, "the chain")
        before = self.network.sent_bytes()
        began = time.monotonic()
        self.assertEqual(server.post("/v1/completions", body)["choices"][0]["text"], want)
        took = time.monotonic() - began
        sent = self.network.sent_bytes() - before
        self.assertEqual(server.metric("kvcake_chain_prompts_total"), 1)
        # Half of the prompt's KV cache, and no faster than the bucket lets it through.
        self.assertGreater(sent, 1 << 20)
        self.assertGreater(took, (sent - BURST_BYTES) * 8 / RATE_BITS)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
