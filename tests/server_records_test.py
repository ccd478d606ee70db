"""What `kvcake serve` tells of its requests: log lines, traces, times, scores; and emulation."""
import datetime
import json
import pathlib
import signal
import tempfile
import time
import unittest

from server_fixture import WAIT_S, Server, eventually
from server_http_test import HOST, LONG, PROMPT, Raw

PROFILE = {"name": "p", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 4096,
           "attention": "causal", "c0": 1e-3, "b": 1e-6, "a": 0}


class LogTest(unittest.TestCase):
    def lines(self, server, count):
        def read():
            return [line for line in map(json.loads, server.log().splitlines()) if "request" in line]
        eventually(lambda: len(read()) == count, f"{count} lines")
        return read()

    def test_one_line_for_each_request_whatever_became_of_it(self):
        server = Server("--log-format", "json", "--max-num-seqs", "1", "--queue-max", "1",
                        "--api-key", "k", step_s=0.02)
        key = {"Authorization": "Bearer k"}
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}, headers=key)
        server.post("/v1/completions", {"prompt": PROMPT, "n": 0}, status=400, headers=key)
        server.post("/v1/completions", {"prompt": PROMPT}, status=401)
        with Raw(server) as first, Raw(server) as second:
            headers = "Authorization: Bearer k\r\n"
            first.post("/v1/completions", LONG, headers).read_until(b"data: ")
            second.post("/v1/completions", {**LONG, "stream": False}, headers)
            eventually(lambda: server.metric("vllm:num_requests_waiting") == 1, "the second to wait")
            server.post("/v1/completions", LONG, status=429, headers=key)
            second.send(f"GET /version HTTP/1.1\r\n{HOST}\r\n")  # which hides the end from now on
            server.metric("kvcake_http_connections")  # it has been seen
            second.socket.close()
            self.lines(server, 5)
            first.socket.close()
        answered, wrong, keyless, full, queued, streamed = self.lines(server, 6)
        self.assertEqual(len({line["request"] for line in self.lines(server, 6)}), 6)
        self.assertEqual((answered["status"], answered["answer_tokens"]), (200, 2))
        self.assertGreater(answered["ttft_s"], 0)
        self.assertGreater(answered["steps_s"], 0)
        self.assertLessEqual(answered["steps_s"], answered["total_s"])
        self.assertGreater(answered["tokens_computed"], 500)
        self.assertEqual((wrong["status"], wrong["finish_reason"]), (400, "refused"))
        self.assertEqual(wrong["error"]["param"], "n")
        self.assertEqual((keyless["status"], keyless["error"]["code"]), (401, "invalid_api_key"))
        self.assertEqual((full["status"], full["error"]["code"]), (429, "queue_full"))
        self.assertNotIn("ttft_s", full)
        self.assertEqual((queued["status"], queued["finish_reason"]), (499, "cancelled"))
        self.assertEqual(queued["answer_tokens"], 0)
        self.assertEqual((streamed["status"], streamed["finish_reason"]), (200, "cancelled"))
        self.assertIn("gone", streamed["error"]["message"])
        self.assertGreater(streamed["answer_tokens"], 0)
        self.assertEqual(server.stop(), 0)

    def test_what_is_warmed_is_a_request_of_the_engine(self):
        server = Server("--log-format", "json")
        warmed = server.post("/cache/warm", {"prompt": PROMPT})
        (line,) = self.lines(server, 1)
        self.assertTrue(line["request"].startswith("cmpl-"), line)
        self.assertEqual((line["path"], line["prompt_tokens"], line["finish_reason"]),
                         ("/cache/warm", warmed["prompt_tokens"], "length"))
        self.assertEqual(server.stop(), 0)

    def test_times_are_those_of_the_log(self):
        """Seconds of the epoch in JSON, and else UTC, wherever the server is."""
        def seconds(line):
            return datetime.datetime.fromisoformat(line.split()[0]).timestamp()
        for form, read in (("json", lambda line: json.loads(line)["time"]), ("text", seconds)):
            server = Server("--log-format", form, wrapper=("env", "TZ=JST-9"))
            began = time.time()
            server.post("/tokenize", {"prompt": "x"})
            eventually(lambda: "/tokenize" in server.log(), "its line")
            (line,) = [line for line in server.log().splitlines() if "/tokenize" in line]
            self.assertLess(began - 0.002, read(line))  # the log has milliseconds
            self.assertLess(read(line), time.time())
            self.assertEqual(server.stop(), 0)

    def test_what_the_engines_steps_have_not_taken_is_overhead(self):
        server = Server("--log-format", "json")
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True})
        (line,) = self.lines(server, 1)
        self.assertGreater(line["steps_s"], 0)
        eventually(lambda: server.metric("kvcake_overhead_seconds_count") == 1, "its metrics")
        self.assertAlmostEqual(server.metric("kvcake_overhead_seconds_sum"),
                               line["total_s"] - line["steps_s"], 6)
        self.assertEqual(server.stop(), 0)


class TraceTest(unittest.TestCase):
    def test_a_trace_of_each_answer_up_to_a_bound(self):
        with tempfile.TemporaryDirectory() as parent:
            traces = pathlib.Path(parent, "traces")
            server = Server("--trace-dir", str(traces), "--trace-files-max", "3")
            ids = [server.post("/v1/completions", {"prompt": f"{i} {PROMPT}", "max_tokens": 2})["id"]
                   for i in range(5)]
            expected = {f"{name}.trace.json" for name in ids[2:]}
            eventually(lambda: {path.name for path in traces.iterdir()} == expected, "the newest")
            self.assertEqual(server.stop(), 0)
            events = json.loads((traces / f"{ids[-1]}.trace.json").read_text())["traceEvents"]
            self.assertGreater(len([event for event in events if event["ph"] == "X"]), 1)

    def test_what_cannot_be_written_fails_no_request(self):
        with tempfile.TemporaryDirectory() as parent:
            traces = pathlib.Path(parent, "traces")
            server = Server("--trace-dir", str(traces))
            traces.rmdir()
            for _ in range(2):
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(WAIT_S), 0)
            self.assertEqual(server.log().count("cannot write"), 1, server.log())
            self.assertEqual(server.stop(), 0)


class ScoreTest(unittest.TestCase):
    def test_the_prompt_alone_is_scored(self):
        server = Server()
        ask = {"prompt": PROMPT[:400], "echo": True, "logprobs": 2, "temperature": 0}
        alone = server.post("/v1/completions", {**ask, "max_tokens": 0, "stop": ["says"]})
        answered = server.post("/v1/completions", {**ask, "max_tokens": 3})
        choice, longer = alone["choices"][0], answered["choices"][0]["logprobs"]
        self.assertEqual((choice["text"], choice["finish_reason"]), (ask["prompt"], "length"))
        self.assertEqual(alone["usage"]["completion_tokens"], 0)
        count = alone["usage"]["prompt_tokens"]
        self.assertEqual(len(choice["logprobs"]["tokens"]), count)
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(choice["logprobs"][field], longer[field][:count], field)
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertLess(choice["logprobs"]["token_logprobs"][1], 0)
        with Raw(server) as raw:
            raw.post("/v1/completions", {**ask, "max_tokens": 0, "stream": True},
                     "Connection: close\r\n")
            self.assertIn(b"[DONE]", raw.read_all())
        self.streamed(server, {**ask, "prompt": PROMPT, "max_tokens": 3})
        refused = server.post("/v1/completions", {"prompt": "x", "max_tokens": 0}, status=400)
        self.assertEqual(refused["error"]["param"], "max_tokens")
        eventually(server.answers_nothing, "the end of all")
        self.assertEqual(server.metric("vllm:request_generation_tokens_count"), 5)
        self.assertEqual(server.metric("vllm:request_generation_tokens_sum"),
                         server.metric("vllm:generation_tokens_total"))
        self.assertEqual(server.stop(), 0)


    def streamed(self, server, ask):
        """The logprobs of a long prompt come in several events."""
        whole = server.post("/v1/completions", ask)["choices"][0]
        with Raw(server) as raw:
            raw.post("/v1/completions", {**ask, "stream": True}, "Connection: close\r\n")
            lines = [line for line in raw.read_all().split(b"\n") if line.startswith(b"data: {")]
        choices = [json.loads(line[6:])["choices"][0] for line in lines]
        self.assertEqual("".join(choice["text"] for choice in choices), whole["text"])
        scored = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        self.assertGreater(len(whole["logprobs"]["tokens"]), 512)
        self.assertGreater(len(scored), 2)
        for logprobs in scored:
            self.assertLessEqual(len(logprobs["tokens"]), 256)
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(sum((logprobs[field] for logprobs in scored), []),
                             whole["logprobs"][field], field)


class EmulateTest(unittest.TestCase):
    def test_a_machine_that_is_not_here(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as profile:
            json.dump(PROFILE, profile)
            profile.flush()
            server = Server("--emulate", profile.name)
            tokens = server.post("/tokenize", {"prompt": PROMPT})
            self.assertEqual(tokens["max_model_len"], 4096)
            body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20,
                    "temperature": 0, "kvcake": {"report": True}}
            first = server.post("/v1/chat/completions", body)
            again = server.post("/v1/chat/completions", body)
            self.assertEqual(first["choices"], again["choices"])
            self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 500)
            # Twenty steps of a millisecond at least.
            self.assertGreater(first["kvcake"]["steps_s"], 0.02)
            eventually(server.idle, "pages given back")
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
