"""Tenants of one server: what touches all of them, and what is each one's own."""
import http.client
import json
import os
import pathlib
import signal
import tempfile
import unittest

from server_fixture import ROOT, WAIT_S, OwnServersTest, eventually

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))


def bearer(key):
    return {"Authorization": "Bearer " + key}


class TenantsTest(OwnServersTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.keys = pathlib.Path(folder.name, "keys")
        self.keys.write_text("ann key-a\nbob key-b\n")
        self.keys.chmod(0o600)

    def error(self, server, path, key, status):
        return server.post(path, {}, status=status, headers=bearer(key))["error"]

    def cached(self, server, key, prompt=PROMPT, policy="cake"):
        body = {"prompt": prompt, "max_tokens": 1, "kvcake": {"policy": policy}}
        answer = server.post("/v1/completions", body, headers=bearer(key))
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class KeysTest(OwnServersTest):
    def test_keys_and_tenants(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# who\nann  key-a\nbob\tkey-b # comment\nann key-a2\n")
            keys.flush()
            with tempfile.TemporaryDirectory() as store:
                self.tenants(keys.name, store)

    def tenants(self, keys, store):
        flags = ("--api-key", "shared", "--api-key-file", keys)
        body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}

        def cached(server, key):
            answer = server.post("/v1/completions", body, headers={"Authorization": "Bearer " + key})
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        server = self.start(*flags, store=store)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "key-a"}):
            status, answered, content = server.request("POST", "/v1/completions", "{}", headers)
            self.assertEqual((status, answered["WWW-Authenticate"]), (401, "Bearer"))
            self.assertEqual(json.loads(content)["error"]["code"], "invalid_api_key")
        for path in ("/v1/models", "/v1/models/demo"):
            self.assertEqual(server.request("GET", path)[0], 401, path)
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                     "/cache/warm", "/cache/reset"):
            self.assertEqual(server.request("POST", path, "{}")[0], 401, path)
        for path in ("/health", "/ready", "/version", "/metrics"):
            self.assertEqual(server.request("GET", path)[0], 200, path)
        self.assertEqual([cached(server, key) for key in ("key-a", "key-b", "shared")], [0, 0, 0])
        self.assertGreater(cached(server, "key-a2"), 0)
        self.assertEqual(server.stop(), 0)
        server = self.start(*flags, store=store)  # each finds its own again
        body["kvcake"] = {"policy": "load"}
        self.assertGreater(cached(server, "key-a"), 0)
        self.assertGreater(cached(server, "key-b"), 0)
        self.assertEqual(server.stop(), 0)


class AdminTest(TenantsTest):
    def cached_pages(self, server):
        eventually(server.idle, "pages given back")
        return server.metric("kvcake_pages", state="cached")

    def test_no_tenant_resets_what_is_anothers(self):
        for admin, reset in (((), None), (("env", "KVCAKE_ADMIN_KEY=root"), "root")):
            server = self.start("--api-key-file", str(self.keys), wrapper=admin)
            self.assertEqual(self.cached(server, "key-b"), 0)
            pages = self.cached_pages(server)
            self.assertEqual(self.cached(server, "key-a"), 0)
            self.assertEqual(self.cached_pages(server), 2 * pages)
            server.post("/cache/reset", {}, headers=bearer("key-a"))
            self.assertEqual(self.cached_pages(server), pages)
            self.assertEqual(self.error(server, "/cache/reset", "wrong", 401)["code"],
                             "invalid_api_key")
            self.assertGreater(self.cached(server, "key-b"), 200)
            if reset:
                server.post("/cache/reset", {}, headers=bearer(reset))
                self.assertEqual(server.metric("kvcake_pages", state="cached"), 0)
                self.assertEqual(self.error(server, "/v1/completions", reset, 401)["code"],
                                 "invalid_api_key")
            self.assertEqual(server.stop(), 0)

    def test_clients_of_one_cache_do_not_reset_it_where_there_is_an_admin_key(self):
        server = self.start("--api-key", "shared", "--admin-key", "root")
        error = self.error(server, "/cache/reset", "shared", 403)
        self.assertEqual(error["code"], "admin_key_required")
        self.assertIn("--admin-key", error["message"])
        self.assertEqual(server.stop(), 0)

    def test_an_admin_key_is_asked_for_where_no_other_is(self):
        server = self.start("--admin-key", "root")
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
        self.assertEqual(server.request("POST", "/cache/reset", "{}")[0], 401)
        self.assertGreater(self.cached_pages(server), 0)
        server.post("/cache/reset", {}, headers=bearer("root"))
        self.assertEqual(server.metric("kvcake_pages", state="cached"), 0)
        self.assertEqual(server.stop(), 0)


class ShareTest(TenantsTest):
    LONG = {"prompt": PROMPT, "max_tokens": 7000, "ignore_eos": True, "stream": True}

    def begin(self, server, key, body):
        """A stream whose answer has begun, or that waits."""
        connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json", **bearer(key)})
        return connection

    def open(self, server, tenant):
        return server.metric("kvcake_tenant_requests_open", tenant=tenant)

    def test_one_tenants_many_do_not_hold_back_anothers(self):
        profile = json.loads((ROOT / "bench/profiles/a100-llama-7b.json").read_text())
        slow = self.keys.with_name("slow.json")
        slow.write_text(json.dumps({**profile, "c0": 0.02}))  # so that ann's go on
        server = self.start("--api-key-file", str(self.keys), "--max-num-seqs", "2", "--queue-max",
                            "5", "--tenant-running-max", "1", "--emulate", str(slow))
        several = {"prompt": PROMPT, "n": 5}  # more than a tenant's share can ever be
        server.post("/v1/completions", several, status=400, headers=bearer("key-a"))
        streams = [self.begin(server, "key-a", self.LONG) for _ in range(4)]
        eventually(lambda: self.open(server, "ann") == 4, "all of ann's")
        error = self.error(server, "/v1/completions", "key-a", 400)  # no prompt
        self.assertEqual(error["param"], "prompt")
        error = server.post("/v1/completions", self.LONG, status=429,
                            headers=bearer("key-a"))["error"]
        self.assertEqual(error["code"], "queue_full")
        self.assertRegex(error["message"], "4 requests of ann are .*--tenant-requests-max")
        self.assertEqual(server.metric("kvcake_tenant_refused_total", tenant="ann"), 1)
        # One of ann's runs and three wait; bob's do not.
        cached = sum(self.cached(server, "key-b") for _ in range(3))
        self.assertEqual(self.open(server, "ann"), 4)
        self.assertGreater(cached, 0)
        self.assertEqual(server.metric("kvcake_tenant_cached_tokens_total", tenant="bob"), cached)
        self.assertEqual(server.metric("kvcake_tenant_generation_tokens_total", tenant="bob"), 3)
        self.assertEqual(server.metric("kvcake_tenant_answers_total", tenant="bob"), 3)
        self.assertEqual(server.metric("kvcake_tenant_answers_total", tenant="ann"), 0)
        _, _, text = server.request("GET", "/metrics")
        self.assertNotIn(b"key-", text)
        for stream in streams:
            stream.close()
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_prompts_that_are_only_scored_are_counted(self):
        server = self.start("--api-key-file", str(self.keys))
        body = {"prompt": "Once", "max_tokens": 0, "echo": True, "logprobs": 1}
        usage = server.post("/v1/completions", body, headers=bearer("key-a"))["usage"]
        self.assertEqual(usage["completion_tokens"], 0)
        eventually(lambda: server.metric("kvcake_overhead_seconds_count") == 1, "its metrics")
        self.assertEqual(server.metric("kvcake_tenant_answers_total", tenant="ann"), 1)
        self.assertEqual(server.metric("kvcake_tenant_prompt_tokens_total", tenant="ann"),
                         usage["prompt_tokens"])
        self.assertEqual(server.metric("kvcake_tenant_generation_tokens_total", tenant="ann"), 0)
        self.assertEqual(server.metric("vllm:generation_tokens_total"), 0)
        self.assertEqual(server.stop(), 0)


class StoreQuotaTest(TenantsTest):
    def ask(self, server, key, *prompts):
        """Answers these, and waits until their chunks are written."""
        for prompt in prompts:
            self.cached(server, key, prompt)
        eventually(lambda: server.metric("kvcake_writes_in_flight") == 0, "chunks written")

    def stored(self, server, tenant):
        return server.metric("kvcake_tenant_store_bytes", tenant=tenant, tier="disk")

    def notes_owners(self):
        """Whether files here have extended attributes."""
        try:
            os.setxattr(self.keys, "user.kvcake.test", b"")
        except OSError:
            return False
        return True

    def test_one_tenants_flood_takes_nothing_of_anothers(self):
        server = self.start("--api-key-file", str(self.keys))
        self.ask(server, "key-b", PROMPT)
        chunks = int(server.metric("kvcake_tier_chunks", tier="disk"))
        chunk = int(server.metric("kvcake_tier_bytes", tier="disk")) // chunks
        self.assertEqual(self.stored(server, "bob"), 0)  # nobody is counted without a quota
        self.assertEqual(server.stop(), 0)

        # The store is full with bob's and what ann may have.
        quota = (chunks + 1) * chunk
        flags = ("--api-key-file", str(self.keys), "--tenant-store-bytes", str(quota),
                 "--disk-capacity", str(quota + chunks * chunk))
        store = str(self.keys.with_name("store"))
        server = self.start(*flags, store=store)
        self.ask(server, "key-b", PROMPT)
        self.ask(server, "key-a", *(f"{i}. {PROMPT}" for i in range(5)))
        self.assertEqual(self.stored(server, "ann"), quota)
        self.assertEqual(self.stored(server, "bob"), chunks * chunk)
        self.assertGreater(server.metric("kvcake_tier_evicted_total", tier="disk"), 0)
        self.assertEqual(server.stop(), 0)

        server = self.start(*flags, store=store)
        self.assertGreater(self.cached(server, "key-b", policy="load"), 200)
        self.assertGreater(self.cached(server, "key-a", f"4. {PROMPT}", policy="load"), 0)
        self.assertGreater(server.metric("kvcake_hit_tokens_total", tier="disk"), 200)
        if not self.notes_owners():
            self.skipTest("no extended attributes here: owners end with their process")
        self.assertEqual(self.stored(server, "bob"), chunks * chunk)
        self.ask(server, "key-a", *(f"{i}. {PROMPT}" for i in range(5, 10)))
        self.assertEqual(self.stored(server, "ann"), quota)
        self.assertEqual(self.stored(server, "bob"), chunks * chunk)

        self.keys.write_text("bob key-b\n")  # ann is no tenant any more
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "read again" in server.log(), "new keys")
        self.assertEqual((self.stored(server, "ann"), self.stored(server, "other")), (0, quota))
        self.assertEqual(self.stored(server, "bob"), chunks * chunk)
        self.assertEqual(server.stop(), 0)

    def test_a_quota_that_makes_no_sense_is_refused(self):
        tenants = ("--api-key-file", str(self.keys))
        for size, flags, says in (("1GiB", (), "--tenant-store-bytes .* --api-key-file"),
                                  ("1KiB", tenants, "--tenant-store-bytes of 1024 bytes holds no"),
                                  ("-5", tenants, "--tenant-store-bytes: a size is not negative")):
            with self.assertRaisesRegex(AssertionError, says):
                self.start("--tenant-store-bytes", size, *flags)


if __name__ == "__main__":
    unittest.main()
