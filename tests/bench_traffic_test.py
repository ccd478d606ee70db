"""`kvcake bench serve --url` against `kvcake serve`, and against servers that misbehave."""
import http.server
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from server_fixture import PROGRAM, ROOT, SANITIZER_REPORT, WAIT_S, OwnServersTest, ServerTest

TEXT = str(ROOT / "models" / "demo" / "held_out")
TRACE = str(ROOT / "bench" / "traces" / "mooncake_conversation_200.jsonl")


class Run:
    """What `kvcake bench serve --url` did."""

    def __init__(self, url, *flags):
        with tempfile.TemporaryDirectory() as where:
            path, picture = pathlib.Path(where, "out.json"), pathlib.Path(where, "out.svg")
            done = subprocess.run(
                [*PROGRAM.split(), "bench", "serve", "--url", url, "--text", TEXT, "--json",
                 str(path), "--svg", str(picture), *flags],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * WAIT_S, check=False)
            self.json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            self.svg = picture.read_text(encoding="utf-8") if picture.exists() else None
        self.code = done.returncode
        self.out, self.err = done.stdout.decode(), done.stderr.decode()
        assert not SANITIZER_REPORT.search(self.err), self.err

    def errors(self):
        return {kind: error["count"] for kind, error in self.json["errors"].items()}


class WorkloadsTest(ServerTest):
    """Every answer of every workload is what a cold run answers."""

    def checked(self, requests, *flags):
        run = Run(self.server.url, "--check", *flags)
        self.assertEqual(run.code, 0, run.out + run.err)
        self.assertEqual((run.json["completed"], run.json["failed"]), (requests, 0), run.out)
        self.assertEqual((run.json["checked"], run.json["differences"]), (requests, []))
        self.assertNotIn("had cached tokens", run.out)
        self.assertIn(f"{requests} answers checked", run.out)
        self.assertNotIn("\x1b", run.err)  # no progress line where there is no terminal
        self.assertIn("<svg", run.svg)
        asked = run.json["mean_prompt_tokens_asked"]
        self.assertLess(abs(run.json["mean_prompt_tokens"] - asked), 0.15 * asked)
        for request in run.json["requests"]:
            self.assertGreaterEqual(request["sent_s"], request["due_s"])
            self.assertGreater(request["ttft_s"], 0)
            self.assertGreaterEqual(request["end_s"], request["sent_s"] + request["ttft_s"])
        return run

    def test_long_doc_qa(self):
        run = self.checked(6, "--workload", "long-doc-qa", "--num-documents", "2",
                           "--document-length", "800", "--repeat-count", "3", "--repeat-mode", "tile",
                           "--output-len", "8", "--request-rate", "20", "--seed", "11")
        # All but the first request for each document find most of it.
        self.assertGreater(run.json["hit_rate"], 0.4)
        self.assertIn("not cached", run.svg)
        self.assertIn("cached: most of it", run.svg)

    def test_multi_round_chat(self):
        for endpoint in "completions", "chat":
            run = self.checked(6, "--workload", "multi-round-chat", "--num-users", "2",
                               "--num-rounds", "3", "--shared-system-prompt", "200",
                               "--user-history-prompt", "200", "--answer-len", "6", "--qps", "50",
                               "--endpoint", endpoint, "--seed", "12")
            for request in run.json["requests"]:
                before = [r for r in run.json["requests"]
                          if r["conversation"] == request["conversation"]
                          and r["round"] == request["round"] - 1]
                for one in before:
                    self.assertGreaterEqual(request["sent_s"], one["end_s"])
                    self.assertGreater(request["prompt_tokens"], one["prompt_tokens"])

    def test_random_prefill(self):
        run = self.checked(4, "--workload", "random-prefill", "--random-input-len", "300",
                           "--random-range-ratio", "0.5", "--num-prompts", "4", "--output-len", "4",
                           "--ignore-eos", "--seed", "13")
        self.assertEqual(run.json["total_output_tokens"], 16)
        self.assertLess(run.json["hit_rate"], 0.05)

    def test_trace(self):
        self.checked(6, "--workload", "trace", "--trace", TRACE, "--length-scale", "0.03",
                     "--time-scale", "0.01", "--num-prompts", "6", "--seed", "14")

    def test_policies_by_extra_body(self):
        run = self.checked(2, "--workload", "long-doc-qa", "--num-documents", "1", "--output-len", "4",
                           "--document-length", "400", "--extra-body",
                           '{"kvcake": {"policy": "load"}, "cache_salt": "p"}', "--seed", "15")
        self.assertEqual(run.json["completed"], 2)

    def test_too_long_is_an_error_that_is_counted(self):
        run = Run(self.server.url, "--workload", "random-prefill", "--num-prompts", "2",
                  "--random-input-len", "20000", "--chars-per-token", "4")
        self.assertEqual(run.code, 1)
        self.assertEqual(run.errors(), {"HTTP 400": 2})
        self.assertIn("no request was answered", run.err)
        self.assertIn("context", run.err)


class KeysTest(OwnServersTest):
    def test_api_key(self):
        server = self.start("--api-key", "secret")
        flags = ("--workload", "random-prefill", "--num-prompts", "1", "--random-input-len", "40",
                 "--output-len", "2")
        run = Run(server.url, *flags)
        self.assertEqual(run.code, 1)
        self.assertIn("--api-key", run.err)
        run = Run(server.url + "/v1", "--api-key", "secret", "--check", *flags)
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(run.json["completed"], 1)


class FakeServer:
    """A server whose `answer(handler, body)` does what a test says; with /v1/models, and an honest
    answer to what calibrates."""

    def __init__(self, answer, **models):
        self.lock = threading.Lock()
        self.bodies = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):  # pylint: disable=invalid-name
                self.reply(200, {"data": [{"id": "fake", **models}]})

            def do_POST(self):  # pylint: disable=invalid-name
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "calibration" in body.get("cache_salt", ""):
                    return self.stream([text("x"), usage(body)])
                with fake.lock:
                    number = len(fake.bodies)
                    fake.bodies.append(body)
                return answer(self, body, number)

            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, events, done=True):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in events:
                    self.wfile.write(event if isinstance(event, bytes)
                                     else f"data: {json.dumps(event)}\r\n\r\n".encode())
                if done:
                    self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # clients that go away are what some tests are about

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def text(of, finish=None):
    return {"choices": [{"text": of, "finish_reason": finish}]}


def usage(body, cached=0):
    return {"choices": [], "usage": {"prompt_tokens": max(1, len(body["prompt"]) // 5),
                                     "completion_tokens": 2,
                                     "prompt_tokens_details": {"cached_tokens": cached}}}


def good(body, of="good"):
    return [b": keep-alive\n\n", text(of), b": keep-alive\n\n", text(of, "length"), usage(body)]


FEW = ("--workload", "random-prefill", "--random-input-len", "50", "--output-len", "2")


class MisbehaviourTest(unittest.TestCase):
    def fake(self, answer, **models):
        fake = FakeServer(answer, **models)
        self.addCleanup(fake.close)
        return fake

    def test_errors_are_counted_by_kind(self):
        def answer(handler, body, number):
            kind = number % 7
            if kind == 0:
                return handler.reply(429, {"error": {"message": "slow down"}})
            if kind == 1:
                return handler.reply(500, {"error": "broken"})
            if kind == 2:
                return handler.stream([text("On"), {"error": {"message": "out of memory"}}])
            if kind == 3:
                return handler.stream([text("On")], done=False)
            if kind == 4:
                handler.connection.shutdown(socket.SHUT_RDWR)
                handler.close_connection = True
                return None
            if kind == 5:
                return handler.reply(200, {"choices": [{"text": "not a stream"}]})
            return handler.stream(good(body))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "28")
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(run.errors(),
                         {"HTTP 429": 4, "HTTP 500": 4, "error in the stream": 4,
                          "ended early": 8, "connection lost": 4})
        self.assertEqual((run.json["completed"], run.json["failed"]), (4, 24))
        self.assertIn("4 failed, HTTP 429: status 429: slow down", run.out)
        self.assertIn("out of memory", run.out)
        self.assertIn("failed", run.svg)

    def test_calibration_finds_the_length_of_tokens(self):
        fake = self.fake(lambda handler, body, number: handler.stream(good(body)))
        run = Run(fake.url, *FEW, "--num-prompts", "20")
        self.assertAlmostEqual(run.json["characters_per_token"], 5, delta=0.3)
        self.assertAlmostEqual(run.json["mean_prompt_tokens"], 50, delta=2)
        for body in fake.bodies:
            self.assertEqual((body["model"], body["temperature"], body["stream"], body["max_tokens"]),
                             ("fake", 0, True, 2))
            self.assertNotIn("cache_salt", body)
            self.assertNotIn("kvcake", body)
        self.assertEqual(len({body["prompt"][:12] for body in fake.bodies}), 20)

    def test_arrivals_do_not_wait_for_answers(self):
        everyone = threading.Barrier(8)

        def answer(handler, body, number):
            everyone.wait(WAIT_S)  # nobody is answered before all have asked
            handler.stream(good(body))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "8", "--request-rate", "200",
                  "--arrivals", "fixed")
        self.assertEqual((run.code, run.json["completed"]), (0, 8), run.err)
        due = [request["due_s"] for request in run.json["requests"]]
        for i, at in enumerate(due):
            self.assertAlmostEqual(at, i / 200)

    def test_max_concurrency(self):
        lock, now, most = threading.Lock(), [0], [0]

        def answer(handler, body, number):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.01)
            with lock:
                now[0] -= 1
            handler.stream(good(body))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "12", "--max-concurrency", "2")
        self.assertEqual((run.code, run.json["completed"]), (0, 12), run.err)
        self.assertLessEqual(most[0], 2)
        self.assertGreater(run.json["mean_delay_ms"], 0)

    def test_rounds_go_on_from_answers(self):
        fake = self.fake(lambda handler, body, number: handler.stream(good(body, f"<{number}>")))
        run = Run(fake.url, "--workload", "multi-round-chat", "--num-users", "1", "--num-rounds",
                  "3", "--shared-system-prompt", "20", "--user-history-prompt", "0",
                  "--question-len", "10", "--answer-len", "2")
        self.assertEqual(run.code, 0, run.err)
        prompts = [body["prompt"] for body in fake.bodies]
        self.assertEqual(len(prompts), 3)
        self.assertTrue(prompts[0].startswith("System prompt."))
        self.assertTrue(prompts[1].startswith(prompts[0] + "<0><0>\n\nQuestion 2 of user 0."))
        self.assertTrue(prompts[2].startswith(prompts[1] + "<1><1>\n\nQuestion 3 of user 0."))
        for before, request in zip(run.json["requests"], run.json["requests"][1:]):
            self.assertGreaterEqual(request["due_s"], before["end_s"], "nobody asks before")
        # A system prompt of 20, questions of 10, and the answers of 2 that came between them.
        self.assertEqual(run.json["mean_prompt_tokens_asked"], (30 + 42 + 54) / 3)

    def test_a_round_that_fails_ends_its_conversation(self):
        def answer(handler, body, number):
            handler.reply(429, {}) if number == 0 else handler.stream(good(body))

        run = Run(self.fake(answer).url, "--workload", "multi-round-chat", "--num-users", "2",
                  "--num-rounds", "3", "--answer-len", "2", "--arrivals", "fixed", "--qps", "100")
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(run.errors(), {"HTTP 429": 1, "round before failed": 2})
        self.assertEqual(run.json["completed"], 3)

    def test_check_finds_what_differs(self):
        def answer(handler, body, number):
            cold = "cache_salt" in body
            wrong = not cold and number == 1
            handler.stream(good(body, "goad" if wrong else "good"))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "3", "--max-concurrency", "1",
                  "--check")
        self.assertEqual(run.code, 1)
        self.assertIn('request 1 (conversation 1, round 0) differs from byte 2: "goadgoad" in the '
                      'run, "goodgood" cold', run.out)
        self.assertIn("1 of 3 answers are not what the server answers cold", run.err)
        self.assertEqual([d["request"] for d in run.json["differences"]], [1])

    def test_what_is_not_answered_cold_is_told(self):
        def answer(handler, body, number):
            if "cache_salt" in body and number == 4:
                return handler.reply(500, {"error": "broken"})
            return handler.stream(good(body))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "3", "--max-concurrency", "1",
                  "--check")
        self.assertEqual(run.code, 1)
        self.assertIn("request 1 (conversation 1, round 0) was not answered cold: HTTP 500: status "
                      "500: broken", run.out)
        self.assertIn("1 of 3 answers are not what the server answers cold", run.err)
        (difference,) = run.json["differences"]
        self.assertEqual((difference["request"], difference["error"], difference["run"]),
                         (1, "HTTP 500: status 500: broken", "goodgood"))

    def test_cold_runs_are_apart_from_each_other(self):
        for models, own in (({"owned_by": "kvcake"}, {"kvcake": {"policy": "compute",
                                                                 "store": False}}),
                            ({"owned_by": "vllm"}, {"cache_prompt": False})):
            fake = self.fake(lambda handler, body, number: handler.stream(good(body)), **models)
            run = Run(fake.url, *FEW, "--num-prompts", "3", "--check", "--extra-body",
                      '{"kvcake": {"policy": "load"}, "top_k": 5}')
            self.assertEqual(run.code, 0, run.err)
            warm, cold = fake.bodies[:3], fake.bodies[3:]
            self.assertEqual(len({body["cache_salt"] for body in cold}), 3)
            self.assertEqual({b["prompt"] for b in warm}, {b["prompt"] for b in cold})
            for body in warm:
                self.assertEqual((body["kvcake"], body["top_k"]), ({"policy": "load"}, 5))
            for body in cold:
                self.assertEqual({**body, **own}, body)

    def test_a_server_that_ignores_the_salt_is_told_of(self):
        fake = self.fake(lambda handler, body, number: handler.stream(
            [text("good", "length"), usage(body, cached=3)]))
        run = Run(fake.url, *FEW, "--num-prompts", "3", "--check")
        self.assertEqual(run.code, 0, run.err)
        self.assertIn("3 of the 3 cold runs had cached tokens", run.out)
        self.assertNotIn("computes from nothing", run.out)
        self.assertEqual((run.json["checked"], run.json["checked_cached"]), (3, 3))

    def test_timeout(self):
        stop = threading.Event()
        self.addCleanup(stop.set)

        def answer(handler, body, number):
            if number == 0:
                stop.wait(WAIT_S)
            handler.stream(good(body))

        run = Run(self.fake(answer).url, *FEW, "--num-prompts", "2", "--timeout", "3s")
        self.assertEqual(run.code, 0, run.err)
        self.assertEqual(run.errors(), {"timeout": 1})

    def test_without_usage(self):
        fake = self.fake(lambda handler, body, number: handler.stream([text("a"), text("b", "stop")]))
        run = Run(fake.url, *FEW, "--num-prompts", "2", "--chars-per-token", "4")
        self.assertEqual(run.code, 0, run.err)
        self.assertIn("not told", run.out)
        self.assertEqual(run.json["total_output_tokens"], 4)

    def one_error(self, url, *flags):
        run = Run(url, *flags)
        self.assertEqual(run.code, 1)
        self.assertEqual(run.out, "")
        lines = run.err.splitlines()
        self.assertEqual(len(lines), 1, run.err)
        return lines[0]

    def test_no_server(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            self.assertRegex(self.one_error(url), "does not answer.*is the server running")
        self.assertIn("there is no host", self.one_error("http://no.such.host.invalid:1"))
        self.assertIn("proxy", self.one_error("https://localhost:1"))

    def test_no_such_thing(self):
        fake = self.fake(lambda handler, body, number: handler.stream(good(body)))
        self.assertIn("--extra-body", self.one_error(fake.url, "--extra-body", "{"))
        self.assertIn("--extra-body", self.one_error(fake.url, "--extra-body", "[]"))
        self.assertIn("cannot", self.one_error(fake.url, "--workload", "trace", "--trace", "/none"))
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
            trace.write('{"timestamp": 1}\n')
            trace.flush()
            error = self.one_error(fake.url, "--workload", "trace", "--trace", trace.name)
            self.assertIn(f"{trace.name}, line 1: input_length", error)

    def test_usage_of_flags(self):
        for flags in (["--workload", "trace"], ["--url", "http://a", "--streams", "2"],
                      ["--url", "http://a", "--workload", "sonnet"]):
            done = subprocess.run([*PROGRAM.split(), "bench", "serve", *flags], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 2, flags)
            self.assertTrue(re.search("--url|--workload", done.stderr.decode()))


if __name__ == "__main__":
    unittest.main()
