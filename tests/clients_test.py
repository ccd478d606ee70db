"""Programs that people use with OpenAI's API, against `kvcake serve`: openai, langchain-openai, litellm
and lm-eval. Run by ./dev clients, which installs them."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Nothing is looked up elsewhere, and nobody is told.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false",
                  OPENAI_API_KEY="none")

import unittest  # noqa: E402

import langchain_openai  # noqa: E402
import litellm  # noqa: E402
import openai  # noqa: E402

from server_fixture import MODEL, ServerTest  # noqa: E402
from server_tools_test import CALL, END, TOOLS, pattern  # noqa: E402

litellm.suppress_debug_info = True
PROMPT = "Once upon a time there was"
MESSAGES = [{"role": "user", "content": "Who are you?"}]


class ClientsTest(ServerTest):
    FLAGS = ("--served-model-name", "demo", "--enable-auto-tool-choice", "--tool-call-parser",
             "hermes")

    @property
    def base(self):
        return self.server.url + "/v1"

    def expected(self, path, **fields):
        """What the server says to nobody's client."""
        answer = self.server.post(path, {"temperature": 0, "max_tokens": 12, **fields})
        choice = answer["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]


class OpenAiClientTest(ClientsTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base, api_key="none", max_retries=0)
        self.fields = {"model": "demo", "temperature": 0, "max_tokens": 12}

    def test_completions(self):
        answer = self.client.completions.create(prompt=[PROMPT, PROMPT], logprobs=3, n=2,
                                                **self.fields)
        self.assertEqual([choice.text for choice in answer.choices],
                         [self.expected("/v1/completions", prompt=PROMPT)] * 4)
        self.assertEqual(len(answer.choices[3].logprobs.tokens), 12)

    def test_chat(self):
        said = self.expected("/v1/chat/completions", messages=MESSAGES)
        answer = self.client.chat.completions.create(messages=MESSAGES, logprobs=True,
                                                     top_logprobs=5, **self.fields)
        self.assertEqual(answer.choices[0].message.content, said)
        self.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 5)
        pieces = self.client.chat.completions.create(messages=MESSAGES, stream=True, **self.fields)
        self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces), said)

    def test_tools(self):
        fields = {**self.fields, "max_tokens": 60, "tools": TOOLS, "messages": pattern(CALL),
                  "stop": END}
        (call,) = self.client.chat.completions.create(**fields).choices[0].message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"of": "a"})
        with self.client.chat.completions.stream(**fields) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        self.assertEqual(streamed.function.arguments, call.function.arguments)


class LangchainTest(ClientsTest):
    def model(self, **fields):
        return langchain_openai.ChatOpenAI(base_url=self.base, api_key="none", model="demo",
                                           temperature=0, max_retries=0,
                                           **{"max_tokens": 12, **fields})

    def test_chat(self):
        said = self.expected("/v1/chat/completions", messages=MESSAGES)
        answer = self.model().invoke("Who are you?")
        self.assertEqual(answer.content, said)
        self.assertEqual(answer.usage_metadata["output_tokens"], 12)
        self.assertEqual("".join(piece.content for piece in self.model().stream("Who are you?")),
                         said)
        scored = self.model().bind(logprobs=True).invoke("Who are you?")
        self.assertEqual(len(scored.response_metadata["logprobs"]["content"]), 12)

    def test_completions(self):
        model = langchain_openai.OpenAI(base_url=self.base, api_key="none", model="demo",
                                        temperature=0, max_tokens=12, max_retries=0)
        self.assertEqual(model.invoke(PROMPT), self.expected("/v1/completions", prompt=PROMPT))
        self.assertEqual(len(model.generate([PROMPT, PROMPT]).generations), 2)

    def test_tools(self):
        model = self.model(max_tokens=60, stop_sequences=[END]).bind_tools(TOOLS)
        messages = [(message["role"], message["content"]) for message in pattern(CALL)]
        (call,) = model.invoke(messages).tool_calls
        self.assertEqual((call["name"], call["args"]), ("count", {"of": "a"}))
        whole = None
        for piece in model.stream(messages):
            whole = piece if whole is None else whole + piece
        self.assertEqual(whole.tool_calls[0]["args"], {"of": "a"})


class LitellmTest(ClientsTest):
    def ask(self, **fields):
        return litellm.completion(model="openai/demo", api_base=self.base, api_key="none",
                                  temperature=0, num_retries=0, **{"max_tokens": 12, **fields})

    def test_chat(self):
        said = self.expected("/v1/chat/completions", messages=MESSAGES)
        answer = self.ask(messages=MESSAGES, logprobs=True, top_logprobs=2)
        self.assertEqual(answer.choices[0].message.content, said)
        pieces = [chunk.choices[0].delta.content or ""
                  for chunk in self.ask(messages=MESSAGES, stream=True)]
        self.assertEqual("".join(pieces), said)

    def test_completions(self):
        answer = litellm.text_completion(model="text-completion-openai/demo", api_base=self.base,
                                         api_key="none", prompt=PROMPT, temperature=0,
                                         max_tokens=12)
        self.assertEqual(answer.choices[0].text, self.expected("/v1/completions", prompt=PROMPT))

    def test_tools(self):
        fields = {"messages": pattern(CALL), "tools": TOOLS, "max_tokens": 60, "stop": END}
        (call,) = self.ask(**fields).choices[0].message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"of": "a"})
        chunks = list(self.ask(stream=True, **fields))
        (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
        self.assertEqual(streamed.function.arguments, call.function.arguments)


class LmEvalTest(ClientsTest):
    TASKS = {
        "tiny_choice": """
task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
""",
        "tiny_words": """
task: tiny_words
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
""",
    }

    def test_local_completions(self):
        documents = [{"question": f"Sentence {i} says that", "answer": 0,
                      "choices": [f"{i * i} is the square of {i}.", "the cat sat."]}
                     for i in range(6)]
        with tempfile.TemporaryDirectory(prefix="kvcake-lm-eval-") as name:
            directory = pathlib.Path(name)
            data = directory / "tiny.jsonl"
            data.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
            for task, text in self.TASKS.items():
                path = directory / f"{task}.yaml"
                path.write_text(text.replace("FILE", str(data)), encoding="utf-8")
            command = [sys.executable, "-m", "lm_eval", "--model", "local-completions",
                       "--model_args", f"model=demo,base_url={self.base}/completions,"
                       f"tokenizer={MODEL},tokenizer_backend=huggingface,num_concurrent=2",
                       "--batch_size", "3", "--tasks", ",".join(self.TASKS), "--include_path",
                       name, "--output_path", name + "/out"]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env={**os.environ, "HF_HOME": name + "/hf"}, timeout=600,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout.decode(errors="replace")[-4000:])
            (results,) = directory.glob("out/**/results_*.json")
            results = json.loads(results.read_text(encoding="utf-8"))["results"]
        self.assertEqual(set(results), set(self.TASKS))
        # What the scores say is what the server's own log probabilities do.
        right = sum(self.score(d, 0) > self.score(d, 1) for d in documents)
        self.assertAlmostEqual(results["tiny_choice"]["acc,none"], right / len(documents))

    def score(self, document, choice):
        question = document["question"]
        answer = self.server.post("/v1/completions", {
            "prompt": f"{question} {document['choices'][choice]}", "echo": True, "logprobs": 1,
            "max_tokens": 0})
        logprobs = answer["choices"][0]["logprobs"]
        return sum(logprob for logprob, offset in zip(logprobs["token_logprobs"],
                                                      logprobs["text_offset"], strict=True)
                   if offset >= len(question))


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # litellm has many
