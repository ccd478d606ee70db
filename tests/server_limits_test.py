"""What clients may have of `kvcake serve`, and what they hear beyond it."""
import concurrent.futures
import contextlib
import itertools
import json
import os
import resource
import re
import select
import tempfile
import time
import unittest

from server_fixture import SANITIZED, WAIT_S, OwnServersTest, eventually
from server_http_test import HOST, JSON_TYPE, LONG, PROMPT, Raw, curl


class LimitsTest(OwnServersTest):
    def test_a_full_queue_is_429_and_nothing_is_lost(self):
        server = self.start("--max-num-seqs", "1", "--queue-max", "1", step_s=0.02)
        with Raw(server) as first, Raw(server) as second:
            first.post("/v1/completions", {**LONG, "max_tokens": 300}).read_until(b"data: ")
            second.post("/v1/completions", {**LONG, "max_tokens": 2})
            eventually(lambda: server.metric("vllm:num_requests_waiting") == 1, "the second to wait")
            status, headers, content = server.request("POST", "/v1/completions", json.dumps(LONG))
            self.assertEqual(status, 429)
            self.assertGreater(int(headers["Retry-After"]), 0)
            self.assertEqual(json.loads(content)["error"]["code"], "queue_full")
            self.assertIn(b"[DONE]", first.read_until(b"[DONE]"))
            self.assertIn(b"[DONE]", second.read_until(b"[DONE]"))
        self.assertEqual(server.stop(), 0)

    def test_a_stream_begins_before_its_turn_comes(self):
        """Whoever waits for it, as a proxy in front, hears that it has been taken."""
        server = self.start("--max-num-seqs", "1", step_s=0.02)
        with Raw(server) as first, Raw(server) as second:
            first.post("/v1/completions", LONG).read_until(b"data: ")
            head = second.post("/v1/completions", LONG).read_until(b"\r\n\r\n")
            self.assertIn(b" 200 OK\r\n", head)
            self.assertEqual(server.metric("vllm:num_requests_waiting"), 1)
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_too_many_answers_are_told_of_the_flags_that_bound_them(self):
        both = ("--max-num-seqs", "2", "--queue-max", "3")
        for flags, most, named in ((both, 5, "(--max-num-seqs and --queue-max together)"),
                                   ((*both, "--tenant-requests-max", "4"), 4,
                                    "(--tenant-requests-max)"),
                                   ((*both, "--choices-max", "3"), 3, "(--choices-max)")):
            server = self.start(*flags)
            for field in ({"n": most + 1}, {"prompt": ["x"] * (most + 1)}):
                answer = server.post("/v1/completions", {"prompt": "x", **field}, status=400)
                self.assertIn(f"more than the limit of {most} ", answer["error"]["message"])
                self.assertIn(named, answer["error"]["message"])
            self.assertEqual(server.stop(), 0)

    def test_answers_that_all_fail_at_once_end(self):
        """The engine takes none of a stream's answers, and says so of all in one go."""
        server = self.start("--drain-timeout", "1s", ram="8MiB")
        room = re.search(r"KV cache: (\d+) tokens", server.log())[1]
        self.assertIn(f"requests of more than {room} tokens are refused", server.log())
        prompt = [5] * 4000
        for stream, prompts in itertools.product((True, False), (prompt, [prompt] * 3)):
            answer = server.post("/v1/completions", {"prompt": prompts, "n": 8, "stream": stream},
                                 status=400)
            self.assertIn("--ram-capacity", answer["error"]["message"])
        for fields, named in (({"prompt": prompt, "max_tokens": 1}, "prompt"),
                              ({"prompt": [5] * 100, "max_tokens": 4000}, "max_tokens")):
            answer = server.post("/v1/completions", fields, status=400)
            self.assertEqual(answer["error"]["param"], named)
        # The one that asks for the metrics.
        eventually(lambda: server.metric("kvcake_http_connections", listener="clients") == 1,
                   "the end of the others")
        self.assertEqual(server.stop(), 0)

    def test_more_answers_than_pages(self):
        """The youngest give their pages up and are restored: every answer is as if it were alone."""
        server = self.start("--max-num-seqs", "16", ram="12MiB")
        bodies = [{"prompt": PROMPT[i * 40:i * 40 + 900], "max_tokens": 400, "ignore_eos": True,
                   "seed": i, "kvcake": {"report": True}} for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            together = list(pool.map(lambda body: server.post("/v1/completions", body), bodies))
        self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
        self.assertGreater(sum(answer["kvcake"]["preemptions"] for answer in together), 0)
        eventually(server.idle, "pages given back")
        for body, answer in zip(bodies, together):
            alone = server.post("/v1/completions", body)
            self.assertEqual(answer["usage"]["completion_tokens"], 400)
            self.assertEqual(answer["choices"], alone["choices"])
        self.assertEqual(server.stop(), 0)

    def test_as_many_connections_as_descriptors(self):
        server = self.start(wrapper=("prlimit", "--nofile=100:259"))
        self.assertIn("--connections-max 4096 is 3:", server.log())
        with Raw(server) as first, Raw(server), Raw(server), Raw(server):
            self.assertEqual(first.read_all(), b"")  # it gives its place to the fourth
        self.assertEqual(server.stop(), 0)
        server = self.start("--admin-port", "0", "--admin-connections-max", "5",
                            wrapper=("prlimit", "--nofile=100:264"))
        self.assertIn("--connections-max 4096 is 3:", server.log())  # beside the admins'
        self.assertEqual(server.stop(), 0)
        with self.assertRaisesRegex(AssertionError, "ulimit -n"):
            self.start(wrapper=("prlimit", "--nofile=100:256"))

    def test_not_all_of_a_crowd_are_talked_with_at_once_nor_for_long(self):
        server = self.start("--connections-max", "1", "--body-timeout", "600s", "--admin-port", "0")
        with contextlib.ExitStack() as stack:
            busy = stack.enter_context(Raw(server))
            busy.send(f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}Expect: 100-continue\r\n"
                      "Content-Length: 15\r\n\r\n").read_until(b"100 Continue")
            descriptors = server.descriptors()
            crowd = [stack.enter_context(Raw(server)) for _ in range(300)]
            eventually(lambda: server.metric("kvcake_http_connections_refused_total") == 300,
                       "their refusals")
            told = {b"\r\nConnection: close\r\n" in raw.read_all() for raw in crowd}
            self.assertEqual(told, {True, False})
            self.assertEqual(server.metric("kvcake_http_responses_total", status=503), 300)
            # None of them has hung up.
            eventually(lambda: server.descriptors() <= descriptors, "the end of who was told")
        self.assertEqual(server.stop(), 0)

    @unittest.skipIf(SANITIZED, "a sanitizer opens a pipe to see whether memory may be read")
    def test_who_comes_while_there_is_no_descriptor_is_answered_when_there_is_one(self):
        server = self.start()
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, most))
        began = time.monotonic()
        with Raw(server) as raw:
            raw.send(f"GET /health HTTP/1.1\r\n{HOST}\r\n")
            eventually(lambda: "cannot accept a connection" in server.log(), "a warning")
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
            self.assertIn(b"200 OK", raw.read_until(b"\r\n"))
        # It tries again ten times a second.
        most = (time.monotonic() - began) * 10 + 1
        self.assertLessEqual(server.log().count("cannot accept a connection"), most)
        self.assertEqual(server.stop(), 0)

    def test_bodies_count_as_they_come_and_until_they_are_read(self):
        server = self.start("--body-max", "2MiB", "--bodies-max", "3MiB", "--api-key", "k",
                            "--body-timeout", "600s")
        key = "Authorization: Bearer k\r\n"
        head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON_TYPE}{key}"
        promised = [Raw(server).send(f"{head}Content-Length: 2000000\r\n\r\n{{") for _ in range(3)]
        promised += [Raw(server).send(f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n")
                     for _ in range(3)]
        large = {**LONG, "user": "x" * 1900000}
        streams = [Raw(server), Raw(server)]
        for stream in streams:
            self.assertIn(b"200", stream.post("/v1/completions", large, key).read_until(b"data: "))
        # Whichever of the two is read first, the other one is too much.
        both = [Raw(server).send(f"{head}Content-Length: 2000000\r\n\r\n" + "x" * 1990000)
                for _ in range(2)]
        answered, _, _ = select.select([raw.socket for raw in both], [], [], WAIT_S)
        refused = [raw for raw in both if raw.socket in answered]
        self.assertEqual(len(refused), 1)
        self.assertIn(b"503", refused[0].read_until(b"\r\n"))
        for raw in (*promised, *streams, *both):
            raw.socket.close()
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_a_body_that_nobody_reads_counts_no_longer_than_its_request(self):
        server = self.start("--body-max", "2MiB", "--bodies-max", "3MiB")
        waiting = [Raw(server), Raw(server)]
        for raw in waiting:
            answer = raw.post("/cache/reset", {"user": "x" * 1900000}).read_until(b"\r\n\r\n")
            self.assertIn(b"HTTP/1.1 200", answer)
        for raw in waiting:
            raw.socket.close()

    def test_a_body_that_has_been_read_counts_no_longer_though_its_answer_is_not_taken(self):
        server = self.start("--body-max", "1MiB", "--bodies-max", "1536KiB")
        with Raw(server, receive_buffer=4096) as one, Raw(server, receive_buffer=4096) as other:
            for raw in (one, other):
                answer = raw.post("/tokenize", {"prompt": "x " * 450000}).read_until(b"\r\n\r\n")
                self.assertIn(b"HTTP/1.1 200", answer)
        self.assertEqual(server.stop(), 0)

    def test_a_header_has_its_own_time(self):
        """Neither a body, an idle connection nor who takes an answer is held to it."""
        server = self.start("--header-timeout", "1s", "--body-timeout", "600s", "--idle-timeout",
                            "600s")
        with (Raw(server) as idle, Raw(server) as body, Raw(server) as header,
              Raw(server, receive_buffer=4096) as reader):
            # More than the kernel keeps for a reader.
            reader.post("/tokenize", {"prompt": "x " * 300000}, "Connection: close\r\n")
            head, _, taken = reader.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
            body.send(f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}Expect: 100-Continue\r\n"
                      "Content-Length: 15\r\n\r\n").read_until(b"100 Continue")
            header.send("GET /health HTTP/1.1\r\n")
            self.assertEqual(header.read_all(), b"")
            length = int(re.search(rb"Content-Length: (\d+)", head)[1])
            self.assertEqual(len(taken + reader.read_all()), length)
            self.assertIn(b" 200 OK", body.send('{"prompt": "x"}').read_until(b"tokens"))
            idle.send(f"GET /health HTTP/1.1\r\n{HOST}\r\n")
            self.assertIn(b" 200 OK", idle.read_until(b"{}"))
        self.assertEqual(server.stop(), 0)

    def test_no_body_is_read_for_those_who_may_not_send_it(self):
        server = self.start("--api-key", "k", "--body-timeout", "600s")
        for path, status in (("/v1/completions", b"401"), ("/nowhere", b"404"), ("/health", b"405")):
            with Raw(server) as raw:
                raw.send(f"POST {path} HTTP/1.1\r\n{HOST}{JSON_TYPE}"
                         "Content-Length: 1000\r\n\r\n{")
                answer = raw.read_all()
            self.assertIn(status, answer.split(b"\r\n")[0])
            self.assertIn(b"Connection: close", answer)
        self.assertEqual(server.stop(), 0)

    def emulated(self, seconds_a_token):
        """Flags of a machine that takes so long."""
        file = tempfile.NamedTemporaryFile("w", suffix=".json")
        self.addCleanup(file.close)
        json.dump({"name": "slow", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 32768,
                   "attention": "dense", "c0": 1e-4, "b": seconds_a_token, "a": 0.0}, file)
        file.flush()
        return "--emulate", file.name

    def test_a_long_prompt_beside_answers_is_computed_in_small_slices(self):
        """A chunk takes longer than the 100 ms that a step may: it is a slice."""
        prompt = [[5 + (i * j) % 90 for i in range(1024)] for j in (1, 7)]
        for flags, small in (((), True), (("--step-ms-max", "100"), True),
                             (("--step-ms-max", "0"), False)):
            server = self.start(*self.emulated(1e-3), *flags)
            server.post("/v1/completions", {"prompt": prompt[0], "max_tokens": 1})
            with Raw(server) as raw:
                raw.post("/v1/completions", {**LONG, "max_tokens": 7000}).read_until(b"data: ")
                answer = server.post("/v1/completions", {
                    "prompt": prompt[1], "max_tokens": 1, "kvcake": {"report": True}})
            slices = re.findall(r"slice of (\d+) chunk", str(answer["kvcake"]["report"]["reasons"]))
            self.assertEqual(set(slices) == {"1"}, small, slices)
            self.assertEqual(server.stop(), 0)

    def test_a_short_prompt_overtakes_a_long_one_unless_they_are_served_as_they_come(self):
        long, short = ({"prompt": [5] * count, "max_tokens": 1} for count in (8000, 300))
        for schedule, done in (("adaptive", 1), ("fcfs", 2)):
            server = self.start("--schedule", schedule, "--slice-tokens", "128",
                                *self.emulated(5e-4))
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                other = pool.submit(server.post, "/v1/completions", long)
                eventually(lambda: server.metric("kvcake_step_tokens_total", kind="fresh") > 0,
                           "the long one")  # running alone may be a wait for the store's answer
                server.post("/v1/completions", short)
                self.assertEqual(server.metric("vllm:request_success_total"), done)
                other.result()
            self.assertEqual(server.stop(), 0)

    def test_no_more_is_promised_than_the_models_context(self):
        with self.assertRaisesRegex(AssertionError, "--max-model-len of 8449 is above the model's "
                                                    "context of 8448 tokens"):
            self.start("--max-model-len", "8449")
        self.assertEqual(self.start("--max-model-len", "8448").stop(), 0)

    def test_one_body_fits_into_all(self):
        with self.assertRaisesRegex(AssertionError, "--body-max of 2097152 .*--bodies-max of 1024"):
            self.start("--body-max", "2MiB", "--bodies-max", "1KiB")
        server = self.start("--body-max", "1MiB", "--bodies-max", "1MiB")
        body = '{"prompt": "x"}'.ljust(1 << 20)
        self.assertEqual(server.request("POST", "/tokenize", body)[0], 200)
        self.assertEqual(server.request("POST", "/tokenize", body + " ")[0], 413)
        self.assertEqual(server.stop(), 0)

    def test_a_large_body_is_asked_for(self):
        """curl sends it once it has heard 100 Continue."""
        server = self.start()
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump({"prompt": "x " * 600000}, file)
            file.flush()
            self.assertIn("tokens", curl(server.url + "/tokenize", "-d", "@" + file.name, "-H",
                                         "Expect: 100-continue"))
        self.assertEqual(server.stop(), 0)

    def test_ids_are_bounded(self):
        server = self.start()
        ids = {"tokens": [5] * (1 << 20)}
        self.assertEqual(len(server.post("/detokenize", ids)["prompt"]), 1 << 20)
        ids["tokens"].append(5)
        refused = server.post("/detokenize", ids, status=400)
        self.assertEqual(refused["error"]["param"], "tokens")
        refused = server.post("/tokenize", {"prompt": ids["tokens"]}, status=400)
        self.assertEqual(refused["error"]["param"], "prompt")
        refused = server.post("/tokenize", {"prompt": "x y " * (1 << 19)}, status=400)
        self.assertIn("more than the limit of 1048576", refused["error"]["message"])
        for fields in ({"prompt": [5] * 8400, "n": 125}, {"prompt": [[5] * 8390] * 5, "n": 25}):
            refused = server.post("/v1/completions", {**fields, "max_tokens": 1}, status=400)
            self.assertEqual(refused["error"]["param"], "n")
            self.assertIn("the prompts of all answers have more tokens than the limit of 1048576",
                          refused["error"]["message"])
        self.assertEqual(server.stop(), 0)

    def test_scores_are_bounded(self):
        server = self.start()
        prompt = [5] * 8000
        for fields in ({"prompt": prompt, "n": 24, "echo": True, "max_tokens": 0},
                       {"prompt": [prompt] * 24, "echo": True, "max_tokens": 0},
                       {"prompt": "x", "n": 24, "max_tokens": 8400}):
            refused = server.post("/v1/completions", {**fields, "logprobs": 20}, status=400)
            self.assertEqual(refused["error"]["param"], "logprobs")
            self.assertIn("more than the limit of 4000000", refused["error"]["message"])
        chat = {"messages": [{"role": "user", "content": "x"}], "n": 24, "logprobs": True,
                "top_logprobs": 20}
        refused = server.post("/v1/chat/completions", {**chat, "max_tokens": 8300}, status=400)
        self.assertEqual(refused["error"]["param"], "logprobs")
        with Raw(server) as raw:  # what nobody has asked for yields
            raw.post("/v1/chat/completions", {**chat, "stream": True})
            self.assertIn(b"200", raw.read_until(b"\r\n").split(b"\r\n")[0])
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_warming_needs_no_room_for_an_answer(self):
        server = self.start("--max-model-len", "400")
        self.assertNotIn("are refused", server.log())
        self.assertEqual(server.post("/cache/warm", {"prompt": [5] * 399})["prompt_tokens"], 399)
        refused = server.post("/cache/warm", {"prompt": [5] * 400}, status=400)
        self.assertEqual(refused["error"]["code"], "context_length_exceeded")
        self.assertEqual(server.stop(), 0)

    def test_warming_answers_nothing(self):
        """Whatever a completion, or a chat, with this prompt would ask for."""
        server = self.start()
        chat = {"messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "f"}}]}
        for body in ({"prompt": "x", "n": 3, "stream": True, "echo": True, "min_tokens": 4}, chat):
            ended = server.metric("vllm:request_success_total")
            self.assertGreater(server.post("/cache/warm", body)["prompt_tokens"], 0)
            eventually(server.idle, "pages given back")
            self.assertEqual(server.metric("vllm:request_success_total"), ended + 1)
        self.assertEqual(server.stop(), 0)

    def test_workers_share_no_cpu_with_the_engine(self):
        cpus = sorted(os.sched_getaffinity(0))[:2]
        if len(cpus) < 2:
            self.skipTest("one CPU")
        server = self.start("--cpu-list", ",".join(map(str, cpus)))
        server.post("/tokenize", {"prompt": "x"})
        pinned = []
        for thread in map(int, os.listdir(f"/proc/{server.process.pid}/task")):
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                if len(os.sched_getaffinity(thread)) == 1:
                    pinned.append(thread)
        self.assertEqual(pinned, [server.process.pid])
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
