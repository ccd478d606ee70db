"""The openai package against `kvcake serve`: what its users do."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

import openai

from server_fixture import MODEL, PROGRAM, OwnServersTest, Server, ServerTest, eventually

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(60))
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]


def run(prompt, *flags):
    """What `kvcake run` answers."""
    command = [*PROGRAM.split(), "run", "--model", MODEL, "--threads", "1", "--ram-capacity", "64MiB",
               "--json", "--prompt", prompt, *flags]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


class OpenAiTest(ServerTest):
    FLAGS = ("--served-model-name", "demo", "alias", "org/name", "--choices-max", "6")

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def complete(self, prompt=PROMPT, **fields):
        fields = {"model": "demo", "temperature": 0, "max_tokens": 24, **fields}
        return self.client.completions.create(prompt=prompt, **fields)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()],
                         ["demo", "alias", "org/name"])
        for name in ("alias", "org/name"):
            self.assertEqual(self.client.models.retrieve(name).id, name)
        for path, status in (("/v1/models/", 404), ("/v1/models/org%2Fname", 200),
                             ("/v1/models/dem%6F", 200), ("/v1/models/%64emo", 200),
                             ("/v1/models/demo%", 404), ("/v1/models/dem%zz", 404)):
            self.assertEqual(self.server.request("GET", path)[0], status)
        self.assertEqual(json.loads(self.server.request("GET", "/v1/models")[2])["object"], "list")
        for model in self.client.models.list():
            self.assertEqual(model.object, "model")
            self.assertEqual(model.model_extra["root"], "demo")
            self.assertEqual(model.model_extra["max_model_len"], 8448)
            self.assertLessEqual(model.created, time.time())
            self.assertLess(time.time() - model.created, 86400)
        with self.assertRaises(openai.NotFoundError) as error:
            self.client.models.retrieve("gpt")
        self.assertEqual(error.exception.code, "model_not_found")

    def test_an_answer_says_the_name_that_was_asked_for(self):
        for name in ("alias", "demo"):
            self.assertEqual(self.complete("x", model=name, max_tokens=1).model, name)
            streamed = self.complete("x", model=name, max_tokens=1, stream=True)
            self.assertEqual({chunk.model for chunk in streamed}, {name})
        nameless = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        self.assertEqual(nameless["model"], "demo")

    def test_an_answer_says_when_it_was_made_and_of_what_kind_it_is(self):
        chat = {"model": "demo", "messages": MESSAGES, "max_tokens": 1}
        before = int(time.time())
        for answer, kind in ((self.complete(max_tokens=1), "cmpl-"),
                             (self.client.chat.completions.create(**chat), "chatcmpl-")):
            self.assertTrue(answer.id.startswith(kind), answer.id)
            self.assertLessEqual(before, answer.created)
            self.assertLessEqual(answer.created, time.time())

    def test_a_stream_is_not_to_be_kept_on_its_way(self):
        headers = self.server.request("POST", "/v1/completions", {
            "prompt": "x", "max_tokens": 1, "stream": True})[1]
        self.assertEqual(headers["Content-Type"], "text/event-stream; charset=utf-8")
        self.assertEqual(headers["Cache-Control"], "no-cache")

    def test_another_model_is_none_of_any_endpoints(self):
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", chat),
                           ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]}),
                           ("/cache/warm", {"prompt": "x"})):
            error = self.server.post(path, {**body, "model": "gpt"}, status=404)["error"]
            self.assertEqual((error["code"], error["param"]), ("model_not_found", "model"), path)

    def test_completion_is_what_run_answers(self):
        expected = run(PROMPT, "--max-tokens", "24")
        answer = self.complete()
        self.assertEqual(answer.choices[0].text, expected["text"])
        self.assertEqual(answer.choices[0].finish_reason, expected["finish_reason"])
        self.assertEqual(answer.usage.prompt_tokens, expected["prompt_tokens"])
        self.assertEqual(answer.usage.completion_tokens, len(expected["tokens"]))
        self.assertEqual(answer.usage.total_tokens,
                         answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_second_request_is_cached(self):
        fields = {"extra_body": {"cache_salt": "second"}}
        first, second = self.complete(**fields), self.complete(**fields)
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 500)
        self.assertEqual(first.choices[0].text, second.choices[0].text)
        other = self.complete(extra_body={"cache_salt": "other"})
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(other.choices[0].text, first.choices[0].text)

    def test_streamed_completion(self):
        whole = self.complete()
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        self.assertEqual([r for r in reasons if r], ["length"])
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        for chunk in self.complete(stream=True):
            self.assertIsNone(chunk.usage)

    def test_usage_in_every_chunk(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        prompts = ["Once upon a time", PROMPT]
        whole = [self.complete(prompt=prompt).usage for prompt in prompts]
        chunks = list(self.complete(prompt=prompts, stream=True, stream_options=options))
        for index, expected in enumerate(whole):
            own = [chunk.usage for chunk in chunks
                   if chunk.choices and chunk.choices[0].index == index]
            counts = [usage.completion_tokens for usage in own]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(counts[-1], expected.completion_tokens)
            self.assertEqual({usage.prompt_tokens for usage in own}, {expected.prompt_tokens})
            for usage in own:
                self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.completion_tokens,
                         sum(usage.completion_tokens for usage in whole))
        first = next(iter(self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "hi"}], max_tokens=2, stream=True,
            stream_options=options)))
        self.assertEqual(first.usage.completion_tokens, 0)
        self.assertGreater(first.usage.prompt_tokens, 0)
        alone = {"continuous_usage_stats": True}  # says nothing by itself, as in vLLM
        for chunk in self.complete(stream=True, stream_options=alone):
            self.assertIsNone(chunk.usage)

    def test_several_prompts_and_answers(self):
        prompts = ["Once upon a time", PROMPT]
        alone = [self.complete(prompt=prompt) for prompt in prompts]
        both = self.complete(prompt=prompts, n=2)
        self.assertEqual([choice.index for choice in both.choices], [0, 1, 2, 3])
        self.assertEqual([choice.text for choice in both.choices],
                         [answer.choices[0].text for answer in alone for _ in range(2)])
        self.assertEqual(both.usage.prompt_tokens, sum(a.usage.prompt_tokens for a in alone))
        self.assertEqual(both.usage.completion_tokens,
                         2 * sum(a.usage.completion_tokens for a in alone))
        ids = self.server.post("/tokenize", {"prompt": prompts[0]})["tokens"]
        tokens = self.complete(prompt=[ids, ids])
        self.assertEqual([choice.text for choice in tokens.choices],
                         [alone[0].choices[0].text] * 2)
        # Streams are interleaved, and say the same.
        texts, reasons, usage = [""] * 4, [None] * 4, None
        for chunk in self.complete(prompt=prompts, n=2, stream=True,
                                   stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        self.assertEqual(texts, [choice.text for choice in both.choices])
        self.assertEqual(reasons, [choice.finish_reason for choice in both.choices])
        self.assertEqual(usage.total_tokens, both.usage.total_tokens)

    def test_n_answers_share_their_prompt(self):
        fields = {"temperature": 1, "seed": 7, "extra_body": {"cache_salt": "n"}}
        before = self.server.metric("kvcake_step_tokens_total")
        answers = self.complete(n=4, **fields)
        computed = self.server.metric("kvcake_step_tokens_total") - before
        # What is computed four times is what follows the last full chunk, and the answers.
        self.assertLess(computed, answers.usage.prompt_tokens +
                        4 * 128 + answers.usage.completion_tokens)
        texts = [choice.text for choice in answers.choices]
        self.assertEqual(len(set(texts)), 4)
        # Seeds in a row, as vLLM has them: every answer can be had alone.
        for i, text in enumerate(texts):
            self.assertEqual(self.complete(**{**fields, "seed": 7 + i}).choices[0].text, text)
        chat = {"model": "demo", "messages": MESSAGES, "temperature": 1, "seed": 1, "n": 3,
                "max_tokens": 8}
        whole = self.client.chat.completions.create(**chat)
        contents, roles = [""] * 3, set()
        for chunk in self.client.chat.completions.create(stream=True, **chat):
            for choice in chunk.choices:
                contents[choice.index] += choice.delta.content or ""
                if choice.delta.role:
                    roles.add(choice.index)
        self.assertEqual(contents, [choice.message.content for choice in whole.choices])
        self.assertEqual(roles, {0, 1, 2})

    def test_choices_are_bounded(self):
        for fields in ({"n": 7}, {"prompt": ["a"] * 4, "n": 2}, {"n": 2**31 - 1}):
            with self.assertRaises(openai.BadRequestError) as error:
                self.complete(**fields)
            self.assertEqual(error.exception.param, "n")
            self.assertIn("--choices-max", str(error.exception))
        with self.assertRaises(openai.BadRequestError) as error:
            self.complete(prompt=["a"] * 7)
        self.assertEqual(error.exception.param, "prompt")

    def test_one_bad_prompt_of_several_fails_all(self):
        with self.assertRaises(openai.BadRequestError) as error:
            self.complete(prompt=["fine", ""])
        self.assertEqual(error.exception.status_code, 400)
        with self.assertRaises(openai.BadRequestError):
            self.complete(prompt=[[5, 6], [99999]])

    def test_biases(self):
        plain = self.complete(logprobs=0).choices[0]
        first = self.server.post("/tokenize", {"prompt": PROMPT + plain.logprobs.tokens[0]})
        token = first["tokens"][-1]
        other = self.complete(logit_bias={str(token): -100}).choices[0]
        self.assertNotEqual(other.text[:3], plain.text[:3])
        forced = self.complete(logit_bias={str(token): 100}, max_tokens=5, logprobs=0).choices[0]
        self.assertEqual(forced.text, plain.logprobs.tokens[0] * 5)
        # Log probabilities are the model's own.
        self.assertEqual(forced.logprobs.token_logprobs[0], plain.logprobs.token_logprobs[0])
        with self.assertRaises(openai.BadRequestError) as error:
            self.complete(logit_bias={"99999": 1})
        self.assertEqual(error.exception.param, "logit_bias")

    def test_the_fewest_tokens(self):
        stop = self.complete().choices[0].text[4:7]
        short = self.complete(stop=stop, max_tokens=24)
        longer = self.complete(stop=stop, max_tokens=24, extra_body={"min_tokens": 12})
        self.assertLess(short.usage.completion_tokens, 12)
        self.assertGreaterEqual(longer.usage.completion_tokens, 12)
        self.assertIn(stop, longer.choices[0].text)
        end = self.server.post("/tokenize", {"prompt": PROMPT + short.choices[0].text + stop})
        fields = {"stop_token_ids": [end["tokens"][-1], end["tokens"][-2]]}
        early = self.complete(extra_body=fields)
        late = self.complete(extra_body={**fields, "min_tokens": 20})
        self.assertLess(early.usage.completion_tokens, 20)
        self.assertGreaterEqual(late.usage.completion_tokens, 20)

    def test_a_stop_may_begin_in_the_fewest_tokens(self):
        """As vLLM has it: what counts is where it is complete."""
        plain = self.complete(max_tokens=9, logprobs=0).choices[0]
        tokens = plain.logprobs.tokens
        stop, before = "".join(tokens[3:6]), "".join(tokens[:3])
        self.assertEqual(plain.text.index(stop), len(before))
        for least, expected in ((0, (before, "stop")), (4, (before, "stop")),
                                (5, (before, "stop")), (6, (plain.text, "length"))):
            fields = {"max_tokens": 9, "stop": stop, "extra_body": {"min_tokens": least}}
            answer = self.complete(**fields).choices[0]
            self.assertEqual((answer.text, answer.finish_reason), expected, least)
            streamed = "".join(c.choices[0].text for c in self.complete(stream=True, **fields))
            self.assertEqual(streamed, answer.text)

    def test_twenty_top_logprobs_are_distinct(self):
        answer = self.complete(logprobs=20, max_tokens=8, temperature=1, seed=3)
        for top in answer.choices[0].logprobs.top_logprobs:
            self.assertIn(len(top), (20, 21))
        chat = self.client.chat.completions.create(
            model="demo", messages=MESSAGES, max_tokens=8, logprobs=True, top_logprobs=20)
        for entry in chat.choices[0].logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 20)

    def test_chat(self):
        fields = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
        answer = self.client.chat.completions.create(**fields)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        written = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in MESSAGES)
        written += "<|im_start|>assistant\n"
        self.assertEqual(answer.choices[0].message.content,
                         run(written, "--max-tokens", "12")["text"])
        chunks = list(self.client.chat.completions.create(stream=True, **fields))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                         answer.choices[0].message.content)

    def test_the_answer_fills_what_room_there_is(self):
        ids = [5] * 8440  # of a context of 8448
        answer = self.client.completions.create(model="demo", prompt=ids, max_tokens=8,
                                                extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.total_tokens, 8448)
        with self.assertRaises(openai.BadRequestError) as error:
            self.complete(prompt=ids, max_tokens=9)
        self.assertEqual(error.exception.param, "max_tokens")

    def test_sampling(self):
        fields = {"temperature": 1, "seed": 7, "top_p": 0.95, "presence_penalty": 0.5,
                  "extra_body": {"top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}}
        one, two = self.complete(**fields), self.complete(**fields)
        self.assertEqual(one.choices[0].text, two.choices[0].text)
        others = {self.complete(**{**fields, "seed": seed}).choices[0].text for seed in range(5)}
        self.assertGreater(len(others), 1)
        punished = self.complete(frequency_penalty=2, presence_penalty=2, max_tokens=48,
                                 extra_body={"ignore_eos": True})
        plain = self.complete(max_tokens=48, extra_body={"ignore_eos": True})
        self.assertNotEqual(punished.choices[0].text, plain.choices[0].text)

    def test_stop(self):
        whole = self.complete().choices[0].text
        stop = whole[8:12]
        cut = self.complete(stop=[stop, "never to be seen"])
        self.assertEqual(cut.choices[0].text, whole[:whole.index(stop)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        streamed = "".join(c.choices[0].text for c in self.complete(stop=stop, stream=True))
        self.assertEqual(streamed, cut.choices[0].text)
        begun = whole[-1] + "never to be seen"  # what may begin it is held until the end
        self.assertEqual(self.complete(stop=begun).choices[0].text, whole)

    def test_what_stopped_an_answer(self):
        """As vLLM says it: a stop string, a token of stop_token_ids, or null."""
        def chat(**fields):
            fields = {"model": "demo", "temperature": 0, "max_tokens": 24, **fields}
            return self.client.chat.completions.create(messages=MESSAGES, **fields)

        stops = [(self.complete, self.complete().choices[0].text[8:12]),
                 (chat, chat().choices[0].message.content[4:8])]
        token, eos = 500, 0
        for ask, stop in stops:
            for fields, expected in (
                    ({"max_tokens": 2}, ("length", None)),
                    ({"stop": ["never to be seen", stop]}, ("stop", stop)),
                    ({"forced": token, "stop_token_ids": [eos, token]}, ("stop", token)),
                    ({"forced": eos, "stop_token_ids": [eos, token]}, ("stop", None)),
                    ({"forced": eos, "stop_token_ids": [eos], "ignore_eos": True}, ("stop", eos))):
                fields = {"extra_body": fields}
                if "forced" in fields["extra_body"]:
                    fields["logit_bias"] = {str(fields["extra_body"].pop("forced")): 100}
                choice = ask(**fields).choices[0]
                self.assertEqual((choice.finish_reason, choice.stop_reason), expected)
                last = list(ask(stream=True, **fields))[-1].choices[0]
                self.assertEqual((last.finish_reason, last.stop_reason), expected)

    def test_logprobs(self):
        answer = self.complete(logprobs=3, max_tokens=6)
        logprobs = answer.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), answer.choices[0].text)
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs,
                                       logprobs.top_logprobs, strict=True):
            self.assertEqual(top[token], logprob)
            self.assertEqual(max(top.values()), logprob)  # greedy
        chat = self.client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0,
                                                   max_tokens=4, logprobs=True, top_logprobs=2)
        for entry in chat.choices[0].logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 2)
            self.assertEqual(entry.top_logprobs[0].logprob, entry.logprob)
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)

    def test_logprobs_of_the_prompt(self):
        ask = {"prompt": "Once upon a time there was", "logprobs": 2, "max_tokens": 4}
        plain = self.complete(**ask).choices[0]
        echoed = self.complete(echo=True, **ask).choices[0]
        logprobs = echoed.logprobs
        self.assertEqual(echoed.text, ask["prompt"] + plain.text)
        self.assertEqual("".join(logprobs.tokens), echoed.text)
        self.assertEqual(logprobs.text_offset[0], 0)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertIsNone(logprobs.top_logprobs[0])
        self.assertEqual(logprobs.token_logprobs[-4:], plain.logprobs.token_logprobs)
        for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs,
                                            logprobs.top_logprobs, strict=True))[1:]:
            self.assertEqual(top[token], logprob)
        streamed = list(self.complete(echo=True, stream=True, **ask))
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), echoed.text)
        self.assertEqual([value for chunk in streamed if chunk.choices[0].logprobs
                          for value in chunk.choices[0].logprobs.token_logprobs],
                         logprobs.token_logprobs)

    def test_echo(self):
        plain = self.complete(prompt="Once upon")
        ids = self.server.post("/tokenize", {"prompt": "Once upon"})["tokens"]
        for prompt in ("Once upon", ids):
            self.assertEqual(self.complete(prompt=prompt, echo=True).choices[0].text,
                             "Once upon" + plain.choices[0].text)
        others = self.complete(prompt=["Once upon", "There was"], echo=True, n=2)
        self.assertEqual([choice.text[:9] for choice in others.choices],
                         ["Once upon"] * 2 + ["There was"] * 2)

    def test_a_prompt_that_is_scored_may_fill_the_context(self):
        """All that the model has, or less by a flag; one that is to be answered may not."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = pathlib.Path(folder.name, "small")
        shutil.copytree(MODEL, model, copy_function=os.symlink)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").unlink()
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 700}))
        for flags, length in (((), 700), (("--max-model-len", "100"), 100)):
            server = Server(*flags, model=str(model))
            self.addCleanup(server.kill)
            ids = [5 + i % 90 for i in range(length)]
            fields = {"prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 1}
            full = server.post("/v1/completions", fields)
            self.assertEqual(full["usage"]["total_tokens"], length)
            shorter = server.post("/v1/completions", {**fields, "prompt": ids[:-1]})
            scores, fewer = (answer["choices"][0]["logprobs"]["token_logprobs"]
                             for answer in (full, shorter))
            self.assertEqual(len(scores), length)
            self.assertEqual(scores[:-1], fewer)
            unscored = {**fields, "logprobs": None, "stream": True}
            self.assertEqual(server.request("POST", "/v1/completions", unscored)[0], 200)
            for refused in ({**fields, "prompt": [*ids, 5]}, {**fields, "max_tokens": 1}):
                error = server.post("/v1/completions", refused, status=400)["error"]
                self.assertEqual(error["code"], "context_length_exceeded")
            eventually(server.idle, "pages given back")
            self.assertEqual(server.stop(), 0)

    def test_report(self):
        answer = self.complete(extra_body={"kvcake": {"report": True, "policy": "compute"}})
        report = answer.model_extra["kvcake"]["report"]
        self.assertEqual(report["policy"], "compute")
        chunks = list(self.complete(stream=True, extra_body={"kvcake": {"report": True}}))
        self.assertIn("report", chunks[-1].model_extra["kvcake"])

    def test_errors(self):
        for fields, param in (({"temperature": -1}, "temperature"), ({"n": 0}, "n"),
                              ({"max_tokens": 0}, "max_tokens"), ({"logprobs": 100}, "logprobs"),
                              ({"prompt": ""}, "prompt"), ({"prompt": [99999]}, "prompt")):
            with self.assertRaises(openai.BadRequestError) as error:
                self.complete(**fields)
            self.assertEqual(error.exception.param, param)
            self.assertEqual(error.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError) as error:
            self.complete(model="gpt")
        self.assertEqual(error.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as error:
            self.client.chat.completions.create(
                model="demo", messages=MESSAGES,
                tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual(error.exception.param, "tool_choice")
        self.assertIn("--enable-auto-tool-choice", str(error.exception))

    def test_cancelled_stream_gives_its_pages_back(self):
        cancelled = self.server.metric("vllm:request_success_total", finished_reason="abort")
        with self.complete(max_tokens=6000, stream=True, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
            self.assertGreater(self.server.metric("kvcake_pages", state="referenced"), 0)
        eventually(lambda: self.server.metric("vllm:request_success_total",
                                              finished_reason="abort") > cancelled, "the cancel")
        eventually(self.server.idle, "pages given back")


class TimeoutTest(OwnServersTest):
    def test_what_took_too_long_is_not_asked_for_again(self):
        server = self.start("--request-timeout", "3s", step_s=0.03)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")  # which would try again
        with self.assertRaises(openai.InternalServerError) as error:
            client.completions.create(model="demo", prompt="Once", max_tokens=8000,
                                      extra_body={"ignore_eos": True})
        self.assertEqual(error.exception.status_code, 504)
        self.assertIn("max_tokens", error.exception.message)
        self.assertNotIn("Retry-After", error.exception.response.headers)
        eventually(server.idle, "pages given back")
        self.assertEqual(server.log().count("POST /v1/completions"), 1, server.log())
        self.assertEqual(server.stop(), 0)

    def test_a_stream_that_takes_too_long_says_so_as_it_ends(self):
        server = self.start("--request-timeout", "3s", step_s=0.03)
        status, _, content = server.request("POST", "/v1/completions", {
            "prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True})
        self.assertEqual(status, 200)
        *_, last, done, rest = content.decode().split("\n\n")
        self.assertEqual((done, rest), ("data: [DONE]", ""))
        error = json.loads(last.removeprefix("data: "))["error"]
        self.assertIn("--request-timeout", error["message"])
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_what_had_not_begun_may_be_asked_for_again(self):
        server = self.start("--request-timeout", "300ms", step_s=4.0)
        status, headers, content = server.request(
            "POST", "/v1/completions", {"model": "demo", "prompt": "Once", "max_tokens": 1})
        self.assertEqual(status, 503)
        self.assertIn("Retry-After", headers)
        self.assertIn("--request-timeout", json.loads(content)["error"]["message"])


if __name__ == "__main__":
    unittest.main()
