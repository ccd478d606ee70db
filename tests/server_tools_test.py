"""Tools and thoughts in `kvcake serve`: the demo model knows neither, but goes on with a pattern."""
import json
import pathlib
import tempfile
import unittest

import openai

from server_fixture import CHATML, MODEL, OwnServersTest, ServerTest

TOOLS = [{"type": "function", "function": {
    "name": "count", "description": "Counts.",
    "parameters": {"type": "object", "properties": {"of": {"type": "string"}}}}}]
CALL = '<tool_call>{"name": "count", "arguments": {"of": "a"}}</tool_call>'
END = "</tool_call>"
THOUGHT = "<think>Once upon a time.</think>There was a cat."


def pattern(text, times=8):
    """A conversation whose answers are all the same."""
    turns = [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}]
    return turns * times + turns[:1]


class ToolsTest(ServerTest):
    FLAGS = ("--served-model-name", "demo", "--enable-auto-tool-choice", "--tool-call-parser",
             "hermes", "--reasoning-parser", "qwen3")

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, messages, **fields):
        fields = {"model": "demo", "temperature": 0, "max_tokens": 60, **fields}
        return self.client.chat.completions.create(messages=messages, **fields)

    def test_calls(self):
        plain = self.chat(pattern(CALL)).choices[0]  # without tools all is content
        self.assertTrue(plain.message.content.startswith(CALL), plain.message.content)
        self.assertIsNone(plain.message.tool_calls)
        choice = self.chat(pattern(CALL), tools=TOOLS, stop=END).choices[0]
        (call,) = choice.message.tool_calls
        self.assertEqual(call.function.name, "count")
        self.assertEqual(json.loads(call.function.arguments), {"of": "a"})
        self.assertEqual(call.type, "function")
        self.assertIsNone(choice.message.content)
        self.assertEqual(choice.finish_reason, "tool_calls")
        none = self.chat(pattern(CALL), tools=TOOLS, tool_choice="none").choices[0]
        self.assertEqual(none.message.content, plain.message.content)

    def test_streamed_calls(self):
        index, name, arguments, reasons = None, "", "", []
        for chunk in self.chat(pattern(CALL), tools=TOOLS, stop=END, stream=True, n=2):
            (choice,) = chunk.choices
            self.assertFalse(choice.delta.content)
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or [] if choice.index == 1 else []:
                index = call.index
                name += call.function.name or ""
                arguments += call.function.arguments
        self.assertEqual((index, name, json.loads(arguments)), (0, "count", {"of": "a"}))
        self.assertEqual(reasons, ["tool_calls"] * 2)

    def test_no_two_calls_have_the_same_id(self):
        ids = [call.id for _ in range(2)
               for choice in self.chat(pattern(CALL), tools=TOOLS, stop=END, n=2).choices
               for call in choice.message.tool_calls]
        self.assertEqual(len(ids), 4)
        self.assertEqual(len(set(ids)), 4, ids)

    def test_a_call_that_is_cut_short(self):
        choice = self.chat(pattern(CALL), tools=TOOLS, max_tokens=14).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertIn(choice.message.content or CALL, CALL)

    def test_a_chat_goes_on_with_whatever_was_called(self):
        for arguments in ('{"of": "a"}', '{"of": "a', '"a"', "null", "", '{"of": "x\ny"}'):
            call = {"id": "c", "type": "function",
                    "function": {"name": "count", "arguments": arguments}}
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
            found = {"role": "tool", "tool_call_id": "c", "content": "3"}
            answer = self.chat(pattern(CALL, 1) + [said, found], tools=TOOLS, max_tokens=1)
            self.assertEqual(answer.usage.completion_tokens, 1, arguments)

    def test_what_is_refused(self):
        named = {"type": "function", "function": {"name": "count"}}
        for choice in ("required", named):
            with self.assertRaises(openai.BadRequestError) as error:
                self.chat(pattern(CALL), tools=TOOLS, tool_choice=choice)
            self.assertEqual(error.exception.param, "tool_choice")
            self.assertEqual(error.exception.code, "unsupported_parameter")
        with self.assertRaises(openai.BadRequestError) as error:
            self.chat(pattern(CALL), tool_choice="auto")
        self.assertEqual(error.exception.param, "tool_choice")

    def test_thoughts(self):
        fields = {"max_tokens": 40, "stop": "<|im_end|>"}
        message = self.chat(pattern(THOUGHT), **fields).choices[0].message
        for name in ("reasoning", "reasoning_content"):  # as vLLM has it, and had it
            self.assertEqual(message.model_extra[name], "Once upon a time.")
        self.assertTrue(message.content.startswith("There was a cat."), message.content)
        thoughts = older = content = ""
        for chunk in self.chat(pattern(THOUGHT), stream=True, **fields):
            thoughts += chunk.choices[0].delta.model_extra.get("reasoning", "")
            older += chunk.choices[0].delta.model_extra.get("reasoning_content", "")
            content += chunk.choices[0].delta.content or ""
        self.assertEqual((thoughts, content), ("Once upon a time.", message.content))
        self.assertEqual(older, thoughts)
        silent = self.chat(pattern(THOUGHT), extra_body={"include_reasoning": False}, **fields)
        for name in ("reasoning", "reasoning_content"):
            self.assertNotIn(name, silent.choices[0].message.model_extra)

    def test_thoughts_that_are_not_to_be_told_have_no_logprobs(self):
        """As vLLM has it: their tokens would tell them."""
        fields = {"max_tokens": 40, "stop": "<|im_end|>", "logprobs": True, "top_logprobs": 1}
        told = self.chat(pattern(THOUGHT), **fields).choices[0]
        self.assertIn("Once upon", "".join(entry.token for entry in told.logprobs.content))
        fields["extra_body"] = {"include_reasoning": False}
        silent = self.chat(pattern(THOUGHT), **fields).choices[0]
        self.assertEqual(silent.message.content, told.message.content)
        self.assertIsNone(silent.logprobs)
        for chunk in self.chat(pattern(THOUGHT), stream=True, **fields):
            self.assertIsNone(chunk.choices[0].logprobs)

    def test_thoughts_go_on_with_the_message_that_is_continued(self):
        going_on = [*pattern(THOUGHT), {"role": "assistant", "content": "<think>Once upon"}]
        message = self.chat(going_on, max_tokens=30, stop="<|im_end|>", extra_body={
            "continue_final_message": True, "add_generation_prompt": False}).choices[0].message
        self.assertEqual(message.model_extra["reasoning"], " a time.")
        self.assertTrue(message.content.startswith("There was"), message.content)

    def test_thoughts_of_what_is_no_chat_are_its_text(self):
        fields = {"prompt": f"{THOUGHT}\n" * 8, "max_tokens": 40, "temperature": 0, "stop": "\n"}
        text = self.server.post("/v1/completions", fields)["choices"][0]["text"]
        self.assertTrue(text.startswith("<think>Once upon a time.</think>"), text)

    def test_what_the_template_writes_can_be_seen(self):
        messages = pattern("x", 1)
        answer = self.chat(messages, max_tokens=1)
        ids = self.server.post("/tokenize", {"messages": messages, "tools": TOOLS,
                                             "chat_template_kwargs": {"enable_thinking": False},
                                             "add_generation_prompt": True})
        self.assertEqual(ids["count"], answer.usage.prompt_tokens)
        text = self.server.post("/detokenize", {"tokens": ids["tokens"]})["prompt"]
        self.assertTrue(text.endswith("<|im_start|>assistant\n"), text)


TEMPLATE = """{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'nobody' %}{{ raise_exception('nobody may speak') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content is not none %}
{%- for part in message.content %}[{{ part.text }}]{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if documents %}{{ raise_exception('no documents, please') }}{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"""


class TemplatesTest(OwnServersTest):
    """The model's template is run, whatever it says."""

    def written(self, server, **fields):
        ids = server.post("/tokenize", {**fields})["tokens"]
        return server.post("/detokenize", {"tokens": ids})["prompt"]

    def test_tools_their_calls_and_results_are_written(self):
        server = self.start("--enable-auto-tool-choice", "--tool-call-parser", "hermes",
                            template=TEMPLATE)
        question = [{"role": "user", "content": [{"type": "text", "text": "A"},
                                                 {"type": "text", "text": "B"}]}]
        messages = question + [
            {"role": "assistant", "content": None, "tool_calls": [{
                "id": "1", "type": "function",
                "function": {"name": "count", "arguments": '{"of": "é"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2"}]
        self.assertEqual(
            self.written(server, messages=messages, tools=TOOLS,
                         chat_template_kwargs={"enable_thinking": False}),
            "<|im_start|>system" + json.dumps(TOOLS[0], ensure_ascii=False) + "<|im_end|>\n"
            "<|im_start|>user\n[A][B]<|im_end|>\n"
            '<|im_start|>assistant\n<tool_call>{"name": "count", "arguments": {"of": "é"}}'
            "</tool_call><|im_end|>\n<|im_start|>tool\n2<|im_end|>\n"
            "<|im_start|>assistant\n<think></think>")
        answer = server.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS,
                                                      "max_tokens": 1})
        self.assertEqual(answer["usage"]["prompt_tokens"],
                         server.post("/tokenize", {"messages": messages, "tools": TOOLS})["count"])
        going_on = [*question, {"role": "assistant", "content": "It is"}]
        self.assertTrue(self.written(server, messages=going_on, continue_final_message=True)
                        .endswith("<|im_start|>assistant\nIt is"))
        error = server.post("/v1/chat/completions",
                            {"messages": question, "documents": [{"title": "t"}]}, status=400)
        self.assertIn("no documents, please", error["error"]["message"])
        self.assertEqual(error["error"]["param"], "messages")

    def test_limits_are_flags(self):
        server = self.start("--chat-template-steps", "2000",
                            template="{% for i in range(messages[0].content | int) %}{% endfor %}x")
        def ask(times, status):
            return server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": str(times)}], "max_tokens": 1}, status)
        ask(10, 200)
        self.assertIn("steps", ask(100000, 400)["error"]["message"])
        ask(10, 200)

    def test_a_template_of_the_model_that_is_not_known_stops_chats_only(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(MODEL).iterdir():
                if file.is_file():
                    pathlib.Path(folder, file.name).symlink_to(file)
            pathlib.Path(folder, "chat_template.jinja").write_text("x\n{% include 'y' %}",
                                                                   encoding="utf-8")
            server = self.start(model=folder, template=None)
            self.assertIn("line 2", server.log())
            error = server.post("/v1/chat/completions",
                                {"messages": [{"role": "user", "content": "x"}]}, status=400)
            self.assertIn("include", error["error"]["message"])
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})


    def test_a_template_that_begins_the_thoughts_leaves_their_text(self):
        server = self.start("--reasoning-parser", "qwen3", template=CHATML.replace(
            "assistant\\n'", "assistant\\n<think>'"))
        message = server.post("/v1/chat/completions", {
            "messages": pattern(THOUGHT), "max_tokens": 30, "temperature": 0,
            "stop": "<|im_end|>"})["choices"][0]["message"]
        self.assertEqual(message["reasoning"], "Once upon a time.")
        self.assertTrue(message["content"].startswith("There was"), message)


class FlagsTest(OwnServersTest):
    def test_tools_need_their_flags(self):
        server = self.start()
        body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
        error = server.post("/v1/chat/completions", body, status=400)["error"]
        self.assertEqual(error["param"], "tool_choice")
        self.assertIn("--enable-auto-tool-choice", error["message"])
        server.post("/v1/chat/completions", {**body, "tool_choice": "none", "max_tokens": 1})

    def test_one_call_where_no_more_are_wanted(self):
        server = self.start("--enable-auto-tool-choice", "--tool-call-parser", "llama3_json")
        calls = '{"name": "count", "parameters": {"of": "a"}}; ' * 2
        for parallel in (True, False):
            message = server.post("/v1/chat/completions", {
                "messages": pattern(calls), "tools": TOOLS, "max_tokens": 80, "temperature": 0,
                "parallel_tool_calls": parallel})["choices"][0]["message"]
            self.assertEqual(len(message["tool_calls"]) > 1, parallel, message)

    def test_a_parser_must_be_named(self):
        with self.assertRaises(AssertionError) as error:
            self.start("--enable-auto-tool-choice")
        self.assertIn("--tool-call-parser", str(error.exception))

    def test_sampling_defaults(self):
        ask = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 5}
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "generation_config.json").write_text(
                '{"temperature": 0.7, "top_k": 3, "max_new_tokens": 8}', encoding="utf-8")
            own = self.start("--generation-config", directory).post("/v1/completions", ask)
        plain = self.start("--generation-config", "vllm")
        said = {**ask, "temperature": 0.7, "top_k": 3, "max_tokens": 8}
        self.assertEqual(own["choices"][0]["text"],
                         plain.post("/v1/completions", said)["choices"][0]["text"])
        self.assertEqual(own["usage"]["completion_tokens"], 8)
        with self.assertRaises(AssertionError) as error:
            self.start("--generation-config", "/nonexistent")
        self.assertIn("generation_config.json", str(error.exception))

    def test_sampling_defaults_are_the_models_unless_others_are_asked_for(self):
        with tempfile.TemporaryDirectory() as model:
            for file in pathlib.Path(MODEL).iterdir():
                if file.is_file() and file.name != "generation_config.json":
                    pathlib.Path(model, file.name).symlink_to(file)
            pathlib.Path(model, "generation_config.json").write_text('{"max_new_tokens": 3}',
                                                                     encoding="utf-8")
            for flags, tokens in (((), 3), (("--generation-config", "vllm"), 5)):
                answer = self.start(*flags, model=model).post(
                    "/v1/completions", {"prompt": "Once", "max_tokens": 5, "ignore_eos": True})
                self.assertEqual(answer["usage"]["completion_tokens"], tokens)

    def test_defaults_yield_where_there_is_less_room(self):
        chat = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "generation_config.json").write_text(
                '{"max_new_tokens": 4096}', encoding="utf-8")
            server = self.start("--generation-config", directory, "--max-model-len", "64")
        for path, body in (("/v1/chat/completions", chat),
                           ("/v1/completions", {"prompt": [5] * 60, "ignore_eos": True})):
            self.assertEqual(server.post(path, body)["usage"]["total_tokens"], 64)
            error = server.post(path, {**body, "max_tokens": 64}, status=400)["error"]
            self.assertEqual((error["param"], error["code"]),
                             ("max_tokens", "context_length_exceeded"))
        server = self.start("--chunk-tokens", "128", ram="8MiB")  # a fourth of the context
        self.assertEqual(server.post("/v1/chat/completions", chat)["usage"]["total_tokens"] % 128, 0)
        error = server.post("/v1/chat/completions", {**chat, "max_tokens": 8192}, status=400)
        self.assertIn("--ram-capacity", error["error"]["message"])


if __name__ == "__main__":
    unittest.main()
