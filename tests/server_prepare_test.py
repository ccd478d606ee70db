"""What becomes of requests before the engine has them: small ones are not held back by large ones."""
import concurrent.futures
import json
import tempfile
import threading
import unittest

from server_fixture import WAIT_S, OwnServersTest, ServerTest, eventually

BIG = {"prompt": "So it goes, and so it went. " * (10 * 2**20 // 28)}
SMALL = {"prompt": "Once upon a time", "max_tokens": 1}


class PrepareTest(ServerTest):
    def preparing(self, size):
        return self.server.metric("kvcake_requests_preparing", size=size)

    def test_a_small_request_is_answered_before_the_large_ones_that_came_first(self):
        answered = threading.Event()
        ended = []

        def keep_busy():
            # They have more tokens than are told, which their bytes alone do not say.
            while not answered.is_set():
                self.server.post("/tokenize", BIG, status=400)
                ended.append("large")

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            large = [pool.submit(keep_busy) for _ in range(8)]
            try:
                eventually(lambda: self.preparing("large") == 8, "the large ones")
                before = len(ended)
                self.server.post("/v1/completions", SMALL)
                meanwhile = len(ended) - before
            finally:
                answered.set()
            for future in large:
                future.result()
        self.assertLess(meanwhile, 8)  # which were before it
        eventually(lambda: self.preparing("large") == 0 == self.preparing("small"), "the end")

    def test_a_text_that_is_too_long_for_certain_is_not_tokenized(self):
        for path in ("/v1/completions", "/cache/warm"):
            error = self.server.post(path, BIG, status=400)["error"]
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertRegex(error["message"], r"^prompt has 10\d+ bytes, which are \d+ tokens at "
                                               r"least: more than the limit of \d+")
        chat = {"messages": [{"role": "user", "content": BIG["prompt"]}]}
        error = self.server.post("/v1/chat/completions", chat, status=400)["error"]
        self.assertEqual((error["param"], error["code"]), ("messages", "context_length_exceeded"))


class RefusedTest(OwnServersTest):
    def test_what_never_fits_is_refused(self):
        server = self.start("--max-model-len", "4096", ram="8MiB")
        chat = {"messages": [{"role": "user", "content": "x"}]}
        long = {"prompt": [5] * 4000}
        for path, body, param in (("/v1/completions", {**long, "max_tokens": 90}, "max_tokens"),
                                  ("/v1/completions", {**long, "max_tokens": 1}, "prompt"),
                                  ("/v1/completions", long, "prompt"),
                                  ("/cache/warm", long, "prompt"),
                                  ("/v1/chat/completions", {**chat, "max_tokens": 4000},
                                   "max_tokens"),
                                  ("/v1/chat/completions", {**chat, "max_completion_tokens": 4000},
                                   "max_completion_tokens")):
            error = server.post(path, body, status=400)["error"]
            self.assertIn("--ram-capacity", error["message"])
            self.assertEqual(error["param"], param)
        for path, body, param in (("/v1/completions", {"prompt": [5] * 4090, "max_tokens": 90},
                                   "max_tokens"),
                                  ("/v1/chat/completions", {**chat, "max_completion_tokens": 4096},
                                   "max_completion_tokens")):
            error = server.post(path, body, status=400)["error"]
            self.assertEqual((error["param"], error["code"]), (param, "context_length_exceeded"))
            self.assertIn(param, error["message"])
        self.assertEqual(server.stop(), 0)

    def test_prompts_without_tokens_are_refused(self):
        server = self.start(template="{{ '' }}")
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for path, body, param in (("/v1/completions", {"prompt": ""}, "prompt"),
                                  ("/v1/completions", {"prompt": ["x", ""]}, "prompt"),
                                  ("/cache/warm", {"prompt": ""}, "prompt"),
                                  ("/v1/chat/completions", chat, "messages")):
            error = server.post(path, body, status=400)["error"]
            self.assertEqual((error["message"], error["param"]),
                             ("the prompt has no tokens", param))
        self.assertEqual(server.stop(), 0)


class FullTest(OwnServersTest):
    def test_more_than_the_queue_holds_are_told_so(self):
        server = self.start("--tokenizer-queue-max", "1")
        answers = []

        def ask(_):
            answers.append(server.request("POST", "/tokenize", json.dumps(BIG)))

        def both_kinds():
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(ask, range(8)))
            return {status for status, _, _ in answers} >= {400, 429}
        eventually(both_kinds, "one that is answered, and one that comes meanwhile")
        refused = [(headers["Retry-After"], body) for status, headers, body in answers
                   if status == 429]
        self.assertEqual({status for status, _, _ in answers}, {400, 429})
        for retry, body in refused:
            self.assertEqual(retry, "1")
            self.assertIn(b"--tokenizer-queue-max", body)


class OwnQueuesTest(OwnServersTest):
    def keep_full(self, server, paths, headers):
        """Large requests to these paths, each time more than the queue takes, until the test ends;
        returns when one has been refused."""
        ended = threading.Event()
        refused = threading.Event()
        body = json.dumps(BIG)

        def post(path):
            while not ended.is_set():
                if server.request("POST", path, body, headers)[0] == 429:
                    refused.set()
        threads = [threading.Thread(target=post, args=(path,)) for path in paths * 4]
        for thread in threads:
            thread.start()
            self.addCleanup(thread.join)
        self.addCleanup(ended.set)
        self.assertTrue(refused.wait(WAIT_S))

    def test_large_requests_take_no_place_of_small_ones(self):
        server = self.start("--tokenizer-queue-max", "2")  # one that was answered may still count
        self.keep_full(server, ("/tokenize", "/v1/completions"), {})
        for _ in range(10):
            server.post("/v1/completions", SMALL)
            server.post("/tokenize", {"prompt": "Once"})
        # Its logprobs are written by whoever has time.
        answer = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 600, "logprobs": 1,
                                                 "ignore_eos": True})
        self.assertEqual(len(answer["choices"][0]["logprobs"]["tokens"]), 600)

    def test_a_tenant_takes_no_place_of_anothers(self):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as keys:
            keys.write("ann key-a\nbob key-b\n")
            keys.flush()
            server = self.start("--tokenizer-queue-max", "4", "--api-key-file", keys.name)
        ann, bob = ({"Authorization": "Bearer key-" + key} for key in "ab")
        self.keep_full(server, ("/tokenize", "/v1/completions"), ann)
        for _ in range(3):
            server.post("/tokenize", BIG, status=400, headers=bob)
            server.post("/v1/completions", BIG, status=400, headers=bob)


if __name__ == "__main__":
    unittest.main()
