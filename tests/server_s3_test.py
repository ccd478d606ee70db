"""S3 (moto's) as the store of `kvcake run` and `kvcake serve`: what one process keeps another
restores, and one that is not there, dies or refuses costs time and no request."""
import os
import subprocess
import tempfile
import unittest
from unittest import mock

from redis_fixture import Redis
from s3_fixture import BUCKET, S3
from server_fixture import PROGRAM, OwnServersTest, eventually
from store_fixture import CHUNKS, ask, kvcake, run


class S3StoreTest(OwnServersTest):
    def setUp(self):
        super().setUp()
        self.s3 = S3()
        self.addCleanup(self.s3.close)
        user = mock.patch.dict(os.environ, self.s3.environment)
        user.start()
        self.addCleanup(user.stop)

    def test_another_process_restores_what_one_has_kept(self):
        key_file = self.enterContext(tempfile.NamedTemporaryFile(prefix="kvcake-key-"))
        key_file.write(b"a key of the tests that is long enough")
        key_file.flush()
        for prefix, options in (("", {}), ("/mine", {"codec": "lossless"}),
                                ("/int8", {"codec": "int8"}),
                                ("/sealed", {"key-file": key_file.name})):
            with self.subTest(prefix):
                url = self.s3.url(prefix, **options)
                answer, (kept,) = run(url, policy="compute")
                self.assertGreater(kept["written"], 4)
                again, (loaded,) = run(url)
                self.assertEqual((loaded["name"], loaded["reads_failed"]), ("s3", 0))
                self.assertEqual(loaded["reads"], kept["written"])
                if "int8" not in prefix:
                    self.assertEqual(again, answer)
                names = [name for name in self.s3.names()
                         if name.startswith(f"{prefix}/v1/".lstrip("/"))]
                self.assertEqual(len(names), kept["written"])

    def test_verify_decrypts_what_its_key_has_encrypted(self):
        keys = []
        for letter in (b"a", b"b"):
            key_file = self.enterContext(tempfile.NamedTemporaryFile(prefix="kvcake-key-"))
            key_file.write(32 * letter)
            key_file.flush()
            keys.append(self.s3.url("/sealed", **{"key-file": key_file.name}))
        _, (kept,) = run(keys[0], policy="compute")
        decrypted = [kvcake("store", "verify", url)["decrypted"] for url in keys]
        self.assertEqual(decrypted, [kept["written"], 0])
        name = next(iter(self.s3.names()))
        body = bytearray(self.s3.client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
        body[-1] ^= 1
        self.s3.client.put_object(Bucket=BUCKET, Key=name, Body=bytes(body))
        done = subprocess.run([*PROGRAM.split(), "store", "verify", keys[0]], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(name, done.stdout)

    def test_it_stands_behind_memory_a_directory_and_redis(self):
        redis = Redis()
        self.addCleanup(redis.close)
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvcake-s3-"))
        answer, stores = run(folder + "/store", redis.url + "?writes=always",
                             self.s3.url(writes="always"), policy="compute")
        self.assertGreater(stores[0]["written"], 4)
        self.assertEqual({store["written"] for store in stores}, {stores[0]["written"]})
        redis.cli("flushall")
        again, (disk, between, last) = run(folder + "/empty", redis.url + "?writes=always",
                                           self.s3.url(), flags=("--promote",))
        self.assertEqual(again, answer)
        self.assertEqual((disk["written"], between["written"], last["reads"]),
                         3 * (stores[0]["written"],))

    def test_a_directory_before_it_is_another_store(self):
        answer, (kept,) = run(self.s3.url(), policy="compute")
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="kvcake-s3-"))
        again, (disk, second) = run(folder + "/store", self.s3.url(), flags=("--promote",))
        self.assertEqual(again, answer)
        self.assertEqual((second["name"], second["reads"]), ("s3-2", kept["written"]))
        self.assertEqual(disk["written"], kept["written"])

    def test_the_tools_see_what_runs_keep(self):
        url = self.s3.url("/kv")
        _, (kept,) = run(url, policy="compute")
        self.assertEqual([root["chunks"] for root in kvcake("store", "ls", url)],
                         [kept["written"]])
        self.assertEqual(kvcake("store", "stat", url)["chunks"], kept["written"])
        self.assertEqual(kvcake("store", "verify", url)["chunks"], kept["written"])
        root = kvcake("store", "ls", url)[0]["root"][:12]
        self.assertEqual(kvcake("store", "evict", "--model", root, url)["files"], kept["written"])
        self.assertEqual(kvcake("store", "clear", url)["files"], 0)
        self.assertEqual(self.s3.names(), [])
        for refused in (("quarantine", url), ("verify", "--quarantine", url)):
            done = subprocess.run([*PROGRAM.split(), "store", *refused], check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"s3://{BUCKET}/kv", done.stderr)

    def test_what_another_program_damages_is_computed_and_removed(self):
        answer, (kept,) = run(self.s3.url(), policy="compute")
        name = sorted(self.s3.names())[0]
        self.s3.client.put_object(Bucket=BUCKET, Key=name, Body=b"x" * 70000)
        again, (loaded,) = run(self.s3.url())
        self.assertEqual(again, answer)
        self.assertEqual((loaded["reads_failed"], loaded["reads"]), (1, kept["written"] - 1))

    def test_requests_go_on_without_it(self):
        server = self.start(store=self.s3.url())
        ask(server, 0)
        eventually(lambda: server.metric("kvcake_tier_writes_total", tier="s3") >= CHUNKS,
                   "chunks are kept")
        self.s3.kill()
        for seed in range(3):
            ask(server, seed)
        eventually(lambda: server.metric("kvcake_tier_writes_failed_total") > 0,
                   "what cannot be kept is counted")
        self.assertEqual(server.stop(), 0)

    def test_wrong_credentials_are_said_and_none_is(self):
        with mock.patch.dict(os.environ, {"AWS_SECRET_ACCESS_KEY": "wrong-secret"}):
            server = self.start(store=self.s3.url())
        ask(server, 0)
        eventually(lambda: "SignatureDoesNotMatch" in server.log(), "what is wrong")
        self.assertIn("s3:PutObject", server.log())
        for text in (server.log(), server.request("GET", "/metrics",
                                                  port=server.admin_port)[2].decode()):
            self.assertNotIn("wrong-secret", text)
            self.assertNotIn(self.s3.secret_key, text)
        done = subprocess.run([*PROGRAM.split(), "store", "ls", f"s3://no-{BUCKET}?endpoint="
                               f"http://127.0.0.1:{self.s3.port}"], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("NoSuchBucket", done.stderr)


if __name__ == "__main__":
    unittest.main()
