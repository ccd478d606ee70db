"""A Redis server as the store of `kvcake serve`: what one process keeps another restores, and one
that is not there, dies or refuses the password costs time and no request."""
import os
import subprocess
import tempfile
import unittest
from unittest import mock

from redis_fixture import Redis
from server_fixture import MODEL, PROGRAM, OwnServersTest, eventually
from store_fixture import CHUNKS, TEXT, ask, kvcake, run


class RedisStoreTest(OwnServersTest):
    def redis(self, *options):
        redis = Redis(*options)
        self.addCleanup(redis.close)
        return redis

    def test_another_process_restores_what_one_has_kept(self):
        redis = self.redis()
        for options in ("", "?codec=lossless", "?prefix=mine&codec=int8", "/3"):
            with self.subTest(options):
                answer, (kept,) = run(redis.url + options, policy="compute")
                self.assertGreater(kept["written"], 4)
                again, (loaded,) = run(redis.url + options)
                self.assertEqual((loaded["name"], loaded["reads_failed"]), ("redis", 0))
                self.assertEqual(loaded["reads"], kept["written"])
                if "int8" not in options:
                    self.assertEqual(again, answer)
        self.assertNotEqual(redis.cli("--scan", "--pattern", "mine:v1:*"), "")
        self.assertEqual(redis.cli("-n", "3", "dbsize").strip(), str(kept["written"]))

    def test_a_directory_before_it_is_another_store(self):
        redis = self.redis()
        answer, (kept,) = run(redis.url, policy="compute")
        folder = tempfile.TemporaryDirectory(prefix="kvcake-redis-")
        self.addCleanup(folder.cleanup)
        again, (disk, second) = run(folder.name + "/store", redis.url, flags=("--promote",))
        self.assertEqual(again, answer)
        self.assertEqual((second["name"], second["reads"]), ("redis2", kept["written"]))
        self.assertEqual(disk["written"], kept["written"])

    def test_it_gets_what_is_new_behind_a_directory_when_its_url_says_so(self):
        redis = self.redis()
        folders = []
        for _ in range(2):
            folder = tempfile.TemporaryDirectory(prefix="kvcake-redis-")
            self.addCleanup(folder.cleanup)
            folders.append(folder.name + "/store")
        shared = redis.url + "?writes=always"
        answer, (disk, server) = run(folders[0], shared, policy="compute")
        self.assertGreater(disk["written"], 4)
        self.assertEqual(server["written"], disk["written"])
        again, (other, server) = run(folders[1], shared)
        self.assertEqual(again, answer)
        self.assertEqual((server["reads"], other["written"]), (disk["written"], 0))

    def test_warming_fails_where_its_memory_does_not_hold_the_prompt(self):
        redis = self.redis()

        def warm():
            return subprocess.run(
                [*PROGRAM.split(), "store", "warm", "--model", MODEL, "--ram-capacity", "64MiB",
                 "--prompt-file", "-", "--store", redis.url], check=False, capture_output=True,
                input=TEXT, text=True)
        kept = warm()
        self.assertEqual(kept.returncode, 0, kept.stderr)
        full = kvcake("store", "stat", redis.url)
        self.assertIn(f"{full['chunks']} chunks written", kept.stdout)
        redis.cli("flushall")
        for name, value in (("maxmemory", full["used_memory"] - full["bytes"] // 2),
                            ("maxmemory-policy", "allkeys-lru")):
            redis.cli("config", "set", name, str(value))
        lost = warm()
        self.assertEqual(lost.returncode, 1)
        self.assertRegex(lost.stderr, f"[1-9][0-9]* of the prompt's {full['chunks']} "
                         f"chunks had to make room for others in {redis.url}: give the server")

    def test_the_tools_see_what_runs_keep(self):
        redis = self.redis("--requirepass", "secret")
        url = redis.url.replace("://", "://:secret@")
        _, (kept,) = run(url, policy="compute")
        self.assertNotIn("secret", kept["dir"])
        self.assertEqual([root["chunks"] for root in kvcake("store", "ls", url)],
                         [kept["written"]])
        listed, told = kvcake("store", "ls", url)[0], kvcake("store", "stat", url)
        self.assertEqual((told["models"], told["chunks"], told["bytes"]),
                         (1, kept["written"], listed["bytes"]))
        self.assertGreater(told["used_memory"], told["bytes"])
        self.assertEqual((told["maxmemory"], told["maxmemory_policy"]), (0, "noeviction"))
        for name, value in (("maxmemory", "200mb"), ("maxmemory-policy", "allkeys-lru")):
            redis.cli("--no-auth-warning", "-a", "secret", "config", "set", name, value)
        told = kvcake("store", "stat", url)
        self.assertEqual((told["maxmemory"], told["maxmemory_policy"]), (200 << 20, "allkeys-lru"))
        self.assertEqual(kvcake("store", "verify", url)["chunks"], kept["written"])
        root = kvcake("store", "ls", url)[0]["root"][:12]
        self.assertEqual(kvcake("store", "evict", "--model", root, url)["files"], kept["written"])
        self.assertEqual(kvcake("store", "clear", url)["files"], 0)
        for refused in (("quarantine", url), ("verify", "--quarantine", url),
                        ("rekey", "--new-key-file", "none", url)):
            done = subprocess.run([*PROGRAM.split(), "store", *refused], check=False,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"redis://127.0.0.1:{redis.port}", done.stderr)
            self.assertNotIn("secret", done.stderr)

    def test_chunks_expire(self):
        redis = self.redis()
        server = self.start("--store-ttl", "1h", store=redis.url)
        ask(server, 0)
        eventually(lambda: server.metric("kvcake_tier_writes_total") >= CHUNKS, "chunks are kept")
        for name in redis.cli("--scan", "--pattern", "kvcake:v1:*").split():
            if not name.endswith(":claim"):
                self.assertGreater(int(redis.cli("pttl", name)), 3_000_000)

    def test_requests_go_on_without_it_and_it_is_used_when_it_is_back(self):
        redis = self.redis()
        redis.kill()
        server = self.start(store=redis.url)
        ask(server, 0)  # it was not there at the start
        self.assertTrue(redis.start())
        seeds = iter(range(1, 1000))

        def writes():
            return server.metric("kvcake_tier_writes_total", tier="redis")

        def is_used():
            before = writes()
            ask(server, next(seeds))
            return writes() > before

        eventually(is_used, "it is used once it is there")
        redis.kill()
        for _ in range(3):
            ask(server, next(seeds))
        eventually(lambda: server.metric("kvcake_tier_writes_failed_total") > 0,
                   "what cannot be kept is counted")
        self.assertTrue(redis.start())
        eventually(is_used, "it is used again")
        eventually(server.idle, "nothing is left")
        self.assertEqual(server.stop(), 0)

    def test_a_wrong_password_is_said_and_none_is(self):
        redis = self.redis("--requirepass", "right-secret")
        wrong = self.start(store=f"redis://:wrong-secret@127.0.0.1:{redis.port}")
        ask(wrong, 0)
        eventually(lambda: "refuses the user or the password: WRONGPASS" in wrong.log(),
                   "what is wrong")
        without = self.start(store=redis.url)
        ask(without, 0)
        eventually(lambda: "KVCAKE_REDIS_PASSWORD" in without.log(), "what would be right")
        with mock.patch.dict(os.environ, {"KVCAKE_REDIS_PASSWORD": "right-secret"}):
            right = self.start(store=redis.url)
        ask(right, 0)
        eventually(lambda: right.metric("kvcake_tier_writes_total") >= CHUNKS, "chunks are kept")
        for server in (wrong, without, right):
            _, _, metrics = server.request("GET", "/metrics", port=server.admin_port)
            self.assertNotIn("secret", metrics.decode())
            self.assertNotIn("secret", server.log())


if __name__ == "__main__":
    unittest.main()
