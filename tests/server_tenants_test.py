"""Tenants of one server: what touches all of them, and what is each one's own."""
import json
import pathlib
import tempfile
import unittest

from server_fixture import OwnServersTest

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

    def cached(self, server, key):
        answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1},
                             headers=bearer(key))
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class AdminTest(TenantsTest):
    def test_no_tenant_resets_what_is_anothers(self):
        for admin, reset in (((), None), (("env", "KVCAKE_ADMIN_KEY=root"), "root")):
            server = self.start("--api-key-file", str(self.keys), wrapper=admin)
            self.assertEqual(self.cached(server, "key-b"), 0)
            error = self.error(server, "/cache/reset", "key-a", 403)
            self.assertEqual(error["code"], "admin_key_required")
            self.assertIn("--admin-key", error["message"])
            self.assertEqual(self.error(server, "/cache/reset", "wrong", 401)["code"],
                             "invalid_api_key")
            self.assertGreater(self.cached(server, "key-b"), 200)
            if reset:
                server.post("/cache/reset", {}, headers=bearer(reset))
                self.assertEqual(server.metric("kvcake_pages", state="cached"), 0)
                self.assertEqual(self.error(server, "/v1/completions", reset, 401)["code"],
                                 "invalid_api_key")
            self.assertEqual(server.stop(), 0)

    def test_an_admin_key_is_asked_for_where_no_other_is(self):
        server = self.start("--admin-key", "root")
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
        self.assertEqual(server.request("POST", "/cache/reset", "{}")[0], 401)
        self.assertGreater(server.metric("kvcake_pages", state="cached"), 0)
        server.post("/cache/reset", {}, headers=bearer("root"))
        self.assertEqual(server.metric("kvcake_pages", state="cached"), 0)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
