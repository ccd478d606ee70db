"""What becomes of requests before the engine has them: small ones are not held back by large ones."""
import concurrent.futures
import json
import unittest

from server_fixture import OwnServersTest, ServerTest, eventually

BIG = {"prompt": "So it goes, and so it went. " * (10 * 2**20 // 28)}
SMALL = {"prompt": "Once upon a time", "max_tokens": 1}


class PrepareTest(ServerTest):
    def preparing(self, size):
        return self.server.metric("kvcake_requests_preparing", size=size)

    def test_a_small_request_is_answered_before_the_large_ones_that_came_first(self):
        ended = []

        def post(path, body, name, status=200):
            self.server.post(path, body, status=status)
            ended.append(name)

        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            # They have more tokens than are told, which their bytes alone do not say.
            large = [pool.submit(post, "/tokenize", BIG, f"large {i}", 400) for i in range(8)]
            eventually(lambda: self.preparing("large") == 8 or ended, "the large ones")
            post("/v1/completions", SMALL, "small")
            for future in large:
                future.result()
        self.assertEqual(len(ended), 9)
        self.assertNotEqual(ended[-1], "small")
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


class FullTest(OwnServersTest):
    def test_more_than_the_queue_holds_are_told_so(self):
        server = self.start("--tokenizer-queue-max", "1")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.request("POST", "/tokenize", json.dumps(BIG)),
                                    range(8)))
        refused = [(headers["Retry-After"], body) for status, headers, body in answers
                   if status == 429]
        self.assertEqual({status for status, _, _ in answers}, {400, 429})
        for retry, body in refused:
            self.assertEqual(retry, "1")
            self.assertIn(b"--tokenizer-queue-max", body)


if __name__ == "__main__":
    unittest.main()
