"""`kvcake serve` and its clients, well-behaved and not: curl, sockets, signals."""
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time
import unittest

from server_fixture import MODEL, SANITIZED, WAIT_S, OwnServersTest, ServerTest, eventually

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))
HOST = "Host: localhost\r\n"
JSON_TYPE = "Content-Type: application/json\r\n"
LONG = {"prompt": PROMPT, "max_tokens": 7000, "ignore_eos": True, "stream": True}


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", str(WAIT_S), "-H",
                           "Content-Type: application/json", *arguments], check=True,
                          stdout=subprocess.PIPE).stdout.decode()


class Raw:
    """A socket that says what it likes."""

    def __init__(self, server, receive_buffer=None, port=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_S)
        self.socket.connect((server.host, port or server.port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())
        return self

    def post(self, path, body, headers=""):
        body = json.dumps(body)
        return self.send(f"POST {path} HTTP/1.1\r\n{HOST}{JSON_TYPE}{headers}"
                         f"Content-Length: {len(body)}\r\n\r\n{body}")

    def read_until(self, end):
        data = b""
        while end not in data:
            got = self.socket.recv(65536)
            if not got:
                break
            data += got
        return data

    def read_all(self):
        """Up to the end of the connection, which may be a hard one."""
        data = b""
        try:
            while got := self.socket.recv(65536):
                data += got
        except ConnectionResetError:
            pass
        return data

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class HttpTest(ServerTest):
    FLAGS = ("--header-timeout", "1s", "--body-timeout", "2s", "--idle-timeout", "3s",
             "--body-max", "2MiB")

    def status_of(self, data):
        with Raw(self.server) as raw:
            return raw.send(data).read_until(b"\r\n").split(b" ")[1:2]

    def test_curl(self):
        body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}
        url = self.server.url + "/v1/completions"
        whole = json.loads(curl(url, "-d", json.dumps(body)))
        lines = curl("-N", url, "-d", json.dumps({**body, "stream": True})).split("\n\n")
        self.assertEqual(lines[-2], "data: [DONE]")
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2])
        self.assertEqual(text, whole["choices"][0]["text"])
        self.assertEqual(curl(self.server.url + "/health"), "{}")
        self.assertIn("version", curl(self.server.url + "/version"))
        self.assertIn("200", curl("-I", self.server.url + "/ready"))

    def test_chunked_bodies(self):
        answer = curl(self.server.url + "/tokenize", "-H",
                      "Transfer-Encoding: chunked", "-d", json.dumps({"prompt": "Hello"}))
        self.assertEqual(json.loads(answer)["count"], len(json.loads(answer)["tokens"]))

    def test_a_chunked_body_without_chunks_byte_by_byte(self):
        with Raw(self.server) as raw:
            raw.send(f"GET /health HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n"
                     "Connection: close\r\n\r\n")
            for byte in "0\r\n\r\n":
                raw.send(byte)
            self.assertIn(b" 200 OK\r\n", raw.read_all())
        self.assertEqual(curl(self.server.url + "/health"), "{}")

    def test_tokenize_and_back(self):
        text = "Ünïcode 👍 and\n  spaces"
        tokens = self.server.post("/tokenize", {"prompt": text})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(tokens["max_model_len"], 8448)
        back = self.server.post("/detokenize", {"tokens": tokens["tokens"]})
        self.assertEqual(back["prompt"], text)
        chat = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})
        self.assertIn("<|im_start|>user\nHi<|im_end|>",
                      self.server.post("/detokenize", {"tokens": chat["tokens"]})["prompt"])

    def test_warm_and_reset(self):
        body = {"prompt": PROMPT, "cache_salt": "warm", "max_tokens": 2}
        warmed = self.server.post("/cache/warm", body)
        self.assertEqual(warmed["cached_tokens"], 0)
        cached = self.server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]
        self.assertGreater(cached["cached_tokens"], 200)
        again = self.server.post("/cache/warm", body)
        self.assertEqual(again["cached_tokens"], cached["cached_tokens"])
        self.assertEqual(again["kvcake"]["report"]["tokens_reused"], again["cached_tokens"])
        eventually(lambda: self.server.metric("kvcake_writes_in_flight") == 0, "chunks written")
        self.server.post("/cache/reset", {})
        self.assertEqual(self.server.metric("kvcake_pages", state="cached"), 0)
        # What memory has forgotten, the store still has.
        loaded = self.server.metric("kvcake_hit_tokens_total", tier="disk")
        self.server.post("/v1/completions", {**body, "kvcake": {"policy": "load"}})
        self.assertGreater(self.server.metric("kvcake_hit_tokens_total", tier="disk"), loaded)

    def test_store_false_keeps_nothing(self):
        body = {"prompt": PROMPT, "cache_salt": "unkept", "max_tokens": 1, "kvcake": {"store": False}}
        self.server.post("/v1/completions", body)
        self.server.post("/cache/reset", {})
        again = self.server.post("/v1/completions", {**body, "kvcake": {"policy": "load"}})
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_paths_and_methods(self):
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)
        status, headers, body = self.server.request("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST, OPTIONS"))
        self.assertIn("error", json.loads(body))
        self.assertEqual(self.server.request("HEAD", "/v1/completions")[0], 405)
        self.assertEqual(self.server.request("GET", "/health?x=1")[0], 200)
        # As clients write it that take the server for a proxy (RFC 9112, 3.2.2).
        for target, want in (("http://example.com/health", b"200"),
                             ("HTTPS://x:1/health?y=/z", b"200"), ("http://x/nowhere", b"404"),
                             ("http://x", b"404"), ("http://x?/health", b"404"),
                             ("ftp://x/health", b"404"), ("http:///health", b"404")):
            request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            self.assertEqual(self.status_of(request), [want], target)
        status, headers, _ = self.server.request(
            "OPTIONS", "/v1/chat/completions",
            headers={"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]),
                         (204, "http://localhost:3000"))
        self.assertIsNone(headers["Content-Length"])  # a 204 has none

    def test_a_head_has_no_body(self):
        with Raw(self.server) as raw:
            raw.send(f"HEAD /version HTTP/1.1\r\n{HOST}\r\n"
                     f"GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
            head, behind = raw.read_all().split(b"\r\n\r\n", 1)
        self.assertRegex(head, rb"\r\nContent-Length: [1-9]")
        self.assertTrue(behind.startswith(b"HTTP/1.1 200 OK\r\n"), behind)

    def test_a_head_is_forgotten_with_its_request(self):
        with Raw(self.server) as raw:
            raw.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nhello there\r\n\r\n")
            answer = raw.read_all()
        self.assertIn(b"this is not HTTP", answer)

    def test_ids_outside_of_the_vocabulary(self):
        for path in ("/v1/completions", "/tokenize", "/cache/warm"):
            answer = self.server.post(path, {"prompt": [5, 2**31 - 1]}, status=400)
            self.assertEqual(answer["error"]["param"], "prompt")
        vocab = json.loads(pathlib.Path(MODEL, "config.json").read_text())["vocab_size"]
        for last, known in ((vocab - 1, True), (vocab, False), (-1, False)):
            answer = self.server.post("/detokenize", {"tokens": [72, last, 73]},
                                      status=200 if known else 400)
            if not known:
                self.assertEqual(answer["error"]["param"].split("[")[0], "tokens")
                self.assertIn(str(last), answer["error"]["message"])

    def test_bodies_that_are_no_requests(self):
        deep = b'{"prompt":' * 1 + b"[" * 1000000
        for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": "\xff"}', deep,
                     b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "seed": 1.5}',
                     b'{"prompt": "x", "max_tokens": 99999999999999999999}'):
            status, _, content = self.server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:40])
            self.assertEqual(json.loads(content)["error"]["type"], "invalid_request_error")
        huge = self.server.post("/v1/completions", {"prompt": "x", "seed": 2**64 - 1, "max_tokens": 1})
        self.assertEqual(huge["usage"]["completion_tokens"], 1)

    def test_bodies_too_long_for_the_server(self):
        head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}"
        self.assertEqual(self.status_of(head + "Content-Length: 3000000\r\n\r\n"), [b"413"])
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with Raw(self.server) as raw:
            raw.send(head + "Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(33):
                raw.send(chunk)
            self.assertIn(b"413", raw.read_until(b"\r\n"))

    def test_headers_of_chunks_and_trailers_are_bounded(self):
        head = (f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}"
                "Transfer-Encoding: chunked\r\n\r\n")
        for rest in ("1;" + "x" * 200000, "0\r\n" + "X: y\r\n" * 40000):
            self.assertEqual(self.status_of(head + rest), [b"431"])

    def test_what_is_not_http(self):
        def counted():
            return [self.server.metric("kvcake_http_responses_total", status=status)
                    for status in (400, 431)]
        before = counted()
        self.assertEqual(self.status_of("hello there\r\n\r\n"), [b"400"])
        self.assertEqual(self.status_of("GET / HTTP/1.1\r\nX: " + "x" * 20000 + "\r\n\r\n"), [b"431"])
        self.assertEqual(self.status_of(f"GET /health HTTP/1.1\r\n{HOST}X: {'x' * 16000}\r\n\r\n"),
                         [b"200"])
        negative = f"POST /tokenize HTTP/1.1\r\n{HOST}Content-Length: -1\r\n\r\n"
        self.assertEqual(self.status_of(negative), [b"400"])
        self.assertEqual(counted(), [before[0] + 2, before[1] + 1])
        self.assertIn("431: the request's header is too long", self.server.log())

    def test_slow_loris(self):
        """A header that never ends is hung up on, however it drips."""
        with Raw(self.server) as raw:
            raw.send("GET /health HTTP/1.1\r\n")
            began = time.monotonic()
            try:
                while time.monotonic() - began < WAIT_S:
                    raw.send("X: y\r\n")
                    time.sleep(0.2)
            except (BrokenPipeError, ConnectionResetError):
                return
        self.fail("the server listens for ever")

    def test_half_open_connections_end(self):
        with Raw(self.server) as silent, Raw(self.server) as half:
            half.send(f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}"
                      "Content-Length: 100\r\n\r\n{")
            self.assertEqual(silent.read_all(), b"")
            self.assertEqual(half.read_all(), b"")

    def test_pipelined_requests(self):
        one = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with Raw(self.server) as raw:
            raw.send(one * 20 + f"GET /version HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
            answer = raw.read_all()
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 21)
        self.assertIn(b"version", answer.rsplit(b"\r\n\r\n", 1)[1])

    def test_pipelined_requests_behind_a_stream(self):
        with Raw(self.server) as raw:
            raw.post("/v1/completions", {**LONG, "max_tokens": 5})
            raw.send("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = raw.read_all()
        self.assertLess(answer.index(b"[DONE]"), answer.index(b"version"))

    def test_an_empty_line_after_a_body_is_no_request(self):
        with Raw(self.server) as raw:
            raw.post("/tokenize", {"prompt": "x"}).send("\r\n")
            self.assertIn(b"200 OK", raw.read_until(b"}"))
            raw.send("\r")  # the line may come in two parts
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            raw.send(f"\nGET /version HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
            answer = raw.read_all()
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK"), answer)
        self.assertIn(b"version", answer)

    def test_what_is_sent_behind_the_last_request_cuts_no_answer_off(self):
        with Raw(self.server) as raw:
            raw.send(f"GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n" + "x" * 60000)
            while got := raw.socket.recv(65536):  # up to its end, which is no reset
                answer = got
        self.assertTrue(answer.endswith(b"{}"), answer)

    def test_http_1_0_expects_no_100(self):
        with Raw(self.server) as raw:
            raw.send(f"POST /tokenize HTTP/1.0\r\n{JSON_TYPE}Expect: 100-continue\r\n"
                     'Content-Length: 15\r\n\r\n{"prompt": "x"}')
            self.assertRegex(raw.read_all(), rb"\AHTTP/1\.[01] 200 OK")

    def test_http_1_0(self):
        body = json.dumps({**LONG, "max_tokens": 5})
        # The end of a stream is the connection's, also where more was to come.
        for headers in ("", "Connection: keep-alive\r\n"):
            with Raw(self.server) as raw:
                raw.send(f"POST /v1/completions HTTP/1.0\r\n{JSON_TYPE}{headers}"
                         f"Content-Length: {len(body)}\r\n\r\n{body}")
                answer = raw.read_all()
            self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))
            self.assertNotIn(b"chunked", answer)
            self.assertNotIn(b"keep-alive", answer)

    def gone(self, leave, **fields):
        cancelled = self.server.metric("vllm:request_success_total", finished_reason="abort")
        raw = Raw(self.server).post("/v1/completions", {**LONG, **fields})
        if fields.get("stream", True):
            raw.read_until(b"data: ")
        else:
            eventually(lambda: self.server.metric("vllm:num_requests_running") > 0, "its start")
        leave(raw)
        eventually(lambda: self.server.metric("vllm:request_success_total",
                                              finished_reason="abort") > cancelled, "the cancel")
        eventually(self.server.idle, "pages given back")
        raw.socket.close()

    def test_clients_that_go_away(self):
        self.gone(Raw.reset)
        self.gone(lambda raw: raw.socket.close())
        self.gone(lambda raw: raw.socket.close(), stream=False)
        self.gone(lambda raw: raw.socket.shutdown(socket.SHUT_WR))
        self.assertEqual(self.server.metric("kvcake_http_responses_total", status=499), 0)

    def test_gone_with_another_request_behind(self):
        def leave(raw):
            raw.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.1)
            raw.socket.close()
        self.gone(leave, stream=False)

    def test_slow_readers_hold_up_nobody(self):
        """Nor do they make the server grow, and after --idle-timeout they are hung up on."""
        eventually(self.server.idle, "pages given back")
        descriptors, rss = self.server.descriptors(), self.server.rss_bytes()
        readers = []
        for _ in range(3):
            readers.append(Raw(self.server, receive_buffer=4096))
            # Some 10 MB each: more than the kernel keeps for a reader.
            body = {**LONG, "logprobs": 20}
            begun = readers[-1].post("/v1/completions", body).read_until(b"data: ")
            self.assertIn(b"data: ", begun)
        for _ in range(3):
            answer = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
            self.assertEqual(answer["usage"]["completion_tokens"], 3)
        grown = [0]

        def hung_up():
            grown.append(self.server.rss_bytes() - rss)
            return self.server.descriptors() <= descriptors

        eventually(hung_up, "the end of their connections, though they do not read")
        eventually(self.server.idle, "pages given back")
        # Sanitizers keep what is freed for a while.
        self.assertLess(max(grown), (512 if SANITIZED else 64) << 20)
        for reader in readers:
            with reader:
                got = reader.read_all()
            self.assertNotIn(b"[DONE]", got)
            self.assertFalse(got.endswith(b"0\r\n\r\n"))

    def long_answer(self, raw):
        """Asks for some megabytes: more than the kernel keeps for a reader."""
        vocab = json.loads(pathlib.Path(MODEL, "tokenizer.json").read_text())["model"]["vocab"]
        longest = max(filter(str.isascii, vocab), key=len)
        raw.post("/detokenize", {"tokens": [vocab[longest]] * 300000})
        head = raw.read_until(b"\r\n\r\n")
        return head, int(re.search(rb"Content-Length: (\d+)", head)[1])

    def test_slow_readers_who_do_read_get_all(self):
        with Raw(self.server, receive_buffer=65536) as raw:
            head, length = self.long_answer(raw)
            got = len(head.split(b"\r\n\r\n", 1)[1])
            began = time.monotonic()
            while time.monotonic() - began < 4.5:  # half as long again as --idle-timeout
                piece = raw.socket.recv(16384)
                if not piece:
                    break
                got += len(piece)
                time.sleep(0.02)
            self.assertLess(got, length, "the answer is too short for this test")
            while got < length and (piece := raw.socket.recv(65536)):
                got += len(piece)
        self.assertEqual(got, length)

    def test_the_log_says_who_has_left_an_answer(self):
        said = r"/detokenize 200: the client has gone; \d+ B in, (\d+) B out"
        with Raw(self.server, receive_buffer=4096) as raw:
            _, length = self.long_answer(raw)
            eventually(lambda: re.search(said, self.server.log()), "a line that says so")
        # Nor has the kernel taken more for it than the server lets it keep.
        self.assertLess(int(re.search(said, self.server.log())[1]), 1 << 20)


class SignalTest(OwnServersTest):
    def test_sigterm_finishes_what_runs(self):
        # An idle connection is not waited for.
        server = self.start("--drain-timeout", "1h", "--idle-timeout", "1h")
        with Raw(server) as raw, Raw(server) as idle:
            raw.post("/v1/completions", {**LONG, "max_tokens": 2000}).read_until(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(idle.read_all(), b"")
            self.assertTrue(raw.read_all().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
        self.assertEqual(server.process.wait(WAIT_S), 0)
        self.assertGreater(len(list(pathlib.Path(server.store).rglob("*"))), 5)  # flushed
        server.stop()

    def test_answers_after_sigterm_say_that_they_are_the_last(self):
        server = self.start()
        with Raw(server) as late, Raw(server) as taken:
            for raw, path in ((late, "/v1/completions"), (taken, "/tokenize")):
                raw.send(f"POST {path} HTTP/1.1\r\n{HOST}{JSON_TYPE}Expect: 100-continue\r\n"
                         "Content-Length: 15\r\n\r\n").read_until(b"100 Continue\r\n\r\n")
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "finishing" in server.log(), "the signal")
            answers = [raw.send('{"prompt": "x"}').read_all() for raw in (late, taken)]
        self.assertRegex(answers[0], rb"\A\S+ 503 [^{]*\r\nRetry-After: 1\r\n")
        self.assertIn(b" 200 OK\r\n", answers[1])
        for answer in answers:
            self.assertIn(b"\r\nConnection: close\r\n", answer)
        self.assertEqual(server.process.wait(WAIT_S), 0)
        server.stop()

    def test_what_has_been_read_behind_a_request_is_answered_after_sigterm(self):
        server = self.start()
        with Raw(server, receive_buffer=4096) as raw:
            body = json.dumps({**LONG, "max_tokens": 1000, "logprobs": 20, "stream": False})
            raw.send(f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}"
                     f"Content-Length: {len(body)}\r\n\r\n{body}"
                     f"GET /version HTTP/1.1\r\n{HOST}\r\n")
            raw.read_until(b"\r\n\r\n")  # most of the answer is still to be taken
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "finishing" in server.log(), "the signal")
            *_, last = raw.read_all().partition(b"HTTP/1.1 200 OK\r\n")
        self.assertIn(b"Connection: close\r\n", last)
        self.assertIn(b'{"version"', last)
        self.assertEqual(server.process.wait(WAIT_S), 0)
        server.stop()

    def test_sigterm_gives_up_what_takes_too_long(self):
        server = self.start("--drain-timeout", "100ms")
        with Raw(server) as raw:
            raw.post("/v1/completions", LONG).read_until(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            answer = raw.read_all()
        self.assertIn(b"gave the request up", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
        self.assertEqual(server.process.wait(WAIT_S), 0)
        server.stop()

    def test_a_client_that_reads_nothing_does_not_hold_up_the_end(self):
        server = self.start("--drain-timeout", "100ms", "--idle-timeout", "3600s")
        with Raw(server, receive_buffer=4096) as raw:
            # Some megabytes: more than the kernel keeps for a reader.
            body = {**LONG, "max_tokens": 3000, "logprobs": 20}
            raw.post("/v1/completions", body).read_until(b"data: ")
            eventually(server.answers_nothing, "the whole answer, most of it still to be sent")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(WAIT_S), 0)
        server.stop()

    def test_sigint_after_a_signal_ends_it_now(self):
        for first in (signal.SIGTERM, signal.SIGINT):
            server = self.start()
            with Raw(server) as raw:
                raw.post("/v1/completions", LONG).read_until(b"data: ")
                server.process.send_signal(first)
                eventually(lambda: "finishing" in server.log(), "the first")
                server.process.send_signal(signal.SIGINT)
                self.assertEqual(server.process.wait(WAIT_S), 128 + signal.SIGINT)
            server.stop()

    def test_sigterm_again_says_nothing_new(self):
        """timeout(1) sends it to the process, and then to its group."""
        server = self.start()
        with Raw(server) as raw:
            raw.post("/v1/completions", {**LONG, "max_tokens": 1000}).read_until(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "finishing" in server.log(), "the first")
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGHUP)  # it would read keys again: none is of use
            raw.read_until(b"data: [DONE]")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(WAIT_S), 0)
        server.stop()

    def test_json_log(self):
        server = self.start("--log-format", "json")
        for n in (1, 3):
            server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True,
                                            "n": n})
        eventually(lambda: server.log().count('"request"') == 2, "the requests' lines")
        lines = [json.loads(line) for line in server.log().splitlines()]
        answered = [line for line in lines if "request" in line]
        self.assertEqual([(line["answer_tokens"], line.get("choices")) for line in answered],
                         [(2, None), (6, 3)])
        self.assertGreater(answered[0]["ttft_s"], 0)
        server.stop()


if __name__ == "__main__":
    unittest.main()
