"""OpenStack Swift, which checks signatures, lists, and knows conditions, as an S3 endpoint."""
import os
import pathlib
import signal
import subprocess
import unittest
from unittest import mock

from botocore.exceptions import BotoCoreError, ClientError

from network_fixture import LONG, Asked, NetworkTest, listens
from s3_fixture import client_of, names_in
from server_fixture import eventually
from store_fixture import StoreServer, kvcake, run

BUCKET = "chunks"
ACCESS_KEY, SECRET_KEY = "test:tester", "testing"
REQUEST_S = 21  # docs/operations.md: a request to S3 ends within so long, tries and all
HERE = pathlib.Path(__file__).resolve().parent


class Swift(StoreServer):
    """A server with one empty bucket."""

    def __init__(self):
        super().__init__("swift")
        self.ahead_s = 0  # its clock's seconds, from the next start on
        self.start_at_any_port()
        self.client = client_of(self.endpoint, ACCESS_KEY, SECRET_KEY)
        # Its parts may come up after it.
        eventually(self._makes_bucket, "a bucket")

    def start(self):
        """Begins, with what it has kept, on the same port. Returns whether it does."""
        if listens("127.0.0.1", self.port):  # somebody else
            return False
        with open(self.folder.name + "/log", "a", encoding="utf-8") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", HERE / "swift_s3",
                 f"{self.folder.name}/{self.port}", str(self.port)], stdout=log, stderr=log,
                env={**os.environ, "SWIFT_AHEAD_S": str(self.ahead_s)})
        eventually(lambda: listens("127.0.0.1", self.port) or self.process.poll() is not None,
                   "swift starts")
        return self.process.poll() is None

    def _makes_bucket(self):
        assert self.process.poll() is None, self.log()
        try:
            self.client.create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            return False
        return True

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix=""):
        return f"s3://{BUCKET}{prefix}?endpoint={self.endpoint}"

    def names(self):
        return names_in(self.client, BUCKET)


class SwiftTest(NetworkTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.swift = Swift()
        cls.user = mock.patch.dict(os.environ, {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true"})
        cls.user.start()

    @classmethod
    def tearDownClass(cls):
        cls.user.stop()
        cls.swift.close()
        super().tearDownClass()

    def url(self):
        """Names a prefix of the test's own."""
        return self.swift.url("/" + self.id().rsplit(".", 1)[1])

    def test_a_run_restores_what_another_has_kept_and_the_tools_see_it(self):
        url = self.url()
        answer, (kept,) = run(url, policy="compute")
        self.assertGreater(kept["written"], 4)
        again, (loaded,) = run(url)
        self.assertEqual(again, answer)
        self.assertEqual((loaded["reads"], loaded["reads_failed"]), (kept["written"], 0))
        self.assertEqual(kvcake("store", "stat", url)["chunks"], kept["written"])
        self.assertEqual(kvcake("store", "verify", url)["chunks"], kept["written"])
        root = kvcake("store", "ls", url)[0]["root"][:12]
        self.assertEqual(kvcake("store", "evict", "--model", root, url)["files"], kept["written"])
        self.assertEqual(kvcake("store", "stat", url)["chunks"], 0)

    def test_two_compute_the_same_at_once(self):
        url = self.url()
        servers = [self.start(store=url) for _ in range(2)]
        for asked in [Asked(server, "long", policy="compute") for server in servers]:
            self.assertEqual(asked.answer(), self.expected("long", LONG))
        for server in servers:
            eventually(lambda: server.metric("kvcake_writes_in_flight") == 0, "they are written")
            # Swift refuses conditions, so that both put it.
            self.assertEqual(server.metric("kvcake_tier_writes_total"), LONG)
            self.assertEqual(server.metric("kvcake_tier_writes_failed_total"), 0)
        third = self.start(store=url)
        self.assert_answers(third, "long", LONG, "load")
        self.assertEqual(third.metric("kvcake_tier_reads_total"), LONG)

    def test_what_another_program_damages_is_computed_and_removed(self):
        url = self.url()
        answer, (kept,) = run(url, policy="compute")
        prefix = self.id().rsplit(".", 1)[1]
        name = [name for name in self.swift.names() if name.startswith(prefix)][0]
        self.swift.client.put_object(Bucket=BUCKET, Key=name, Body=b"x" * 70000)
        again, (loaded,) = run(url)
        self.assertEqual(again, answer)
        self.assertEqual((loaded["reads_failed"], loaded["reads"]), (1, kept["written"] - 1))

    def test_wrong_credentials_are_said_and_none_is(self):
        with mock.patch.dict(os.environ, {"AWS_SECRET_ACCESS_KEY": "wrong-secret"}):
            server = self.small(self.url())
        self.assert_answers(server, 0)
        eventually(lambda: "SignatureDoesNotMatch" in server.log(), "what is wrong")
        self.assertNotIn("wrong-secret", server.log())

    def test_it_dies_and_comes_back(self):
        server, traffic = self.under_way(self.url())
        self.swift.kill()
        eventually(lambda: server.metric("kvcake_tier_reads_failed_total") > 0,
                   "what cannot be read is counted")
        traffic.wait_for(20)
        self.assertTrue(self.swift.start())
        self.assert_recovers(server, traffic, REQUEST_S)

    def test_its_clock_goes_wrong(self):
        swift = Swift()  # of its own: it refuses what is older than what it has
        self.addCleanup(swift.close)
        server, traffic = self.under_way(swift.url())
        swift.kill()
        swift.ahead_s = 7200
        self.assertTrue(swift.start())
        self.assert_comes_back(server)
        self.assertIn("its clock is 7200 s ahead", server.log())
        self.assert_recovers(server, traffic, REQUEST_S)

    def test_it_hangs(self):
        server, traffic = self.under_way(self.url())
        self.swift.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: "reading chunks from" in server.log(), "what hangs is given up")
            traffic.wait_for(20)
        finally:
            self.swift.process.send_signal(signal.SIGCONT)
        self.assert_recovers(server, traffic, REQUEST_S)


if __name__ == "__main__":
    unittest.main()
