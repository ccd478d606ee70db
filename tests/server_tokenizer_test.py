"""What a model's tokenizer says of answers: `kvcake serve`, `run` and `chat` with models/demo's
weights and other tokenizers."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from server_fixture import MODEL, PROGRAM, WAIT_S, Server

VOCABULARY = 4096  # of models/demo
WORD = 500


def spelling(token):
    """A token of the SentencePiece style: all but a few are words with a space."""
    few = ["</s>", "<s>", "<unk>"]
    return few[token] if token < len(few) else f"\u2581w{token}"


def added(token):
    return {"id": token, "content": spelling(token), "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True}


def sentence_piece():
    """A tokenizer.json whose words are whole, with the decoder of Llama 2."""
    return {
        "added_tokens": [added(0), added(1)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
                          "prepend_scheme": "always", "split": True},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "ignore_merges": True, "merges": [],
                  "vocab": {spelling(token): token for token in range(VOCABULARY)}}}


def byte_token(byte):
    return 3 + byte


def byte_fallback():
    """The same with a token for each byte, as Llama 2 has them: "\\n" is none of its words."""
    file = sentence_piece()
    file["decoder"]["decoders"].insert(1, {"type": "ByteFallback"})
    model = file["model"]
    model["byte_fallback"] = True
    for byte in range(256):
        del model["vocab"][spelling(byte_token(byte))]
        model["vocab"][f"<0x{byte:02X}>"] = byte_token(byte)
    return file


class TokenizerTest(unittest.TestCase):
    def model(self, files):
        """models/demo with these files instead of its own."""
        directory = tempfile.TemporaryDirectory(prefix="kvcake-model-")
        self.addCleanup(directory.cleanup)
        for path in pathlib.Path(MODEL).iterdir():
            if path.name not in files:
                pathlib.Path(directory.name, path.name).symlink_to(path)
        for name, value in files.items():
            pathlib.Path(directory.name, name).write_text(json.dumps(value), encoding="utf-8")
        return directory.name

    def serve(self, files):
        server = Server(model=self.model(files))
        self.addCleanup(server.kill)
        return server

    def ask(self, command, model, *flags, text=""):
        done = subprocess.run(
            [*PROGRAM.split(), command, "--model", model, "--threads", "1", "--ram-capacity",
             "64MiB", "--temperature", "0", *flags],
            input=text.encode(), stdout=subprocess.PIPE, timeout=WAIT_S, check=True)
        return done.stdout.decode()

    def chat(self, model, message):
        """Three tokens of an answer to the message's own tokens."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as template:
            template.write("{{ messages[-1]['content'] }}")
            template.flush()
            return self.ask("chat", model, "--chat-template", template.name, "--max-tokens", "3",
                            text=message + "\n")


FILES = {"tokenizer.json": sentence_piece(), "tokenizer_config.json": {}}


class LeadingSpaceTest(TokenizerTest):
    """An answer goes on behind its prompt, and keeps the space that it begins with."""

    def test_completions(self):
        server = self.serve(FILES)

        def complete(prompt, **fields):
            asked = {"prompt": prompt, "max_tokens": 2, "logit_bias": {str(WORD): 100}, **fields}
            return server.post("/v1/completions", asked)["choices"]

        self.assertEqual(complete("w100")[0]["text"], " w500 w500")
        self.assertEqual(complete("w100", echo=True)[0]["text"], "w100 w500 w500")
        self.assertEqual(complete([1, 700], echo=True)[0]["text"], "w700 w500 w500")
        self.assertEqual(complete([1])[0]["text"], "w500 w500")  # nothing stands before it
        self.assertEqual(complete([1], skip_special_tokens=False)[0]["text"], " w500 w500")
        self.assertEqual(complete([1, 700], echo=True, skip_special_tokens=False)[0]["text"],
                         "<s> w700 w500 w500")
        self.assertEqual(server.post("/detokenize", {"tokens": [1, 700]})["prompt"], "<s> w700")
        self.assertEqual([choice["text"] for choice in complete(["w100", [1], "w100 w200"], n=2)],
                         [" w500 w500"] * 2 + ["w500 w500"] * 2 + [" w500 w500"] * 2)
        scored = complete("w100", logprobs=0)[0]
        self.assertEqual(scored["logprobs"]["tokens"], [" w500", " w500"])
        self.assertEqual(scored["logprobs"]["text_offset"], [0, 5])
        stopped = complete("w100", stop=" w500")[0]
        self.assertEqual((stopped["text"], stopped["finish_reason"]), ("", "stop"))

    def test_chats(self):
        server = self.serve(FILES)
        answer = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "w100"}], "max_tokens": 2,
            "logit_bias": {str(WORD): 100}})
        self.assertEqual(answer["choices"][0]["message"]["content"], " w500 w500")

    def test_run_and_chat(self):
        model = self.model(FILES)
        answer = json.loads(self.ask("run", model, "--prompt", "w100 w200 w300", "--max-tokens",
                                     "3", "--ignore-eos", "--json"))
        tokens = [spelling(token) for token in answer["tokens"] if token > 1]
        self.assertTrue(tokens and tokens[0].startswith("\u2581"), tokens)
        self.assertEqual(answer["text"], "".join(tokens).replace("\u2581", " "))
        text = self.chat(model, "w100 w200 w300")
        self.assertTrue(text.startswith(" w"), text)


class AddedTokenTest(TokenizerTest):
    """What a tokenizer puts before texts is not before chats, whose templates write it."""

    def test_it_is_added_where_it_is_wanted(self):
        begin = {"type": "TemplateProcessing",
                 "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                            {"Sequence": {"id": "A", "type_id": 0}}],
                 "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
        server = self.serve({**FILES, "tokenizer.json": {**sentence_piece(),
                                                         "post_processor": begin}})
        text = {"prompt": "w100"}
        chat = {"messages": [{"role": "user", "content": "w100"}]}
        for path, body, added in (("/v1/completions", text, True),
                                  ("/v1/chat/completions", chat, False)):
            counts = {}
            for given in (None, True, False):
                asked = {**body, "add_special_tokens": given}
                counts[given] = server.post("/tokenize", asked)["count"]
                usage = server.post(path, {**asked, "max_tokens": 1})["usage"]
                self.assertEqual(usage["prompt_tokens"], counts[given], (path, given))
            self.assertEqual(counts[True], counts[False] + 1, path)
            self.assertEqual(counts[None], counts[added], path)


class ByteFallbackTest(TokenizerTest):
    """What bytes mean is known when a character of them is whole, not when another token comes."""

    def test_a_stop_string_of_bytes_stops_at_once(self):
        server = self.serve({**FILES, "tokenizer.json": byte_fallback()})
        asked = {"prompt": "w300", "max_tokens": 4, "logit_bias": {str(byte_token(10)): 100}}
        plain = server.post("/v1/completions", asked)
        self.assertEqual(plain["choices"][0]["text"], "\n" * 4)
        for stop, tokens in (("\n", 1), ("\n\n", 2)):
            answer = server.post("/v1/completions", {**asked, "stop": stop, "logprobs": 0})
            choice = answer["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"]), ("", "stop"))
            self.assertEqual(answer["usage"]["completion_tokens"], tokens)
            self.assertEqual(choice["logprobs"]["tokens"], ["\n"] * tokens)


class EndTokenTest(TokenizerTest):
    """The tokenizer's end token ends an answer, beside those of the model, which is 0 here."""

    def files(self):
        return {**FILES, "tokenizer_config.json": {"eos_token": spelling(WORD)}}

    def test_completions(self):
        server = self.serve(self.files())

        def complete(token, **fields):
            asked = {"prompt": "w100", "max_tokens": 3, "logit_bias": {str(token): 100}, **fields}
            answer = server.post("/v1/completions", asked)
            choice = answer["choices"][0]
            return choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]

        for token in (0, WORD):
            self.assertEqual(complete(token), ("", "stop", 1))
            self.assertEqual(complete(token, ignore_eos=True)[1:], ("length", 3))
        self.assertEqual(complete(WORD + 1), (" w501 w501 w501", "length", 3))

    def test_run_and_chat(self):
        plain = self.model(FILES)
        run = ("--prompt", "w100 w200 w300", "--max-tokens", "3", "--json")
        first = json.loads(self.ask("run", plain, *run, "--ignore-eos"))["tokens"][0]
        named = self.model({**FILES, "tokenizer_config.json": {"eos_token": spelling(first)}})
        answer = json.loads(self.ask("run", named, *run))
        self.assertEqual((answer["tokens"], answer["finish_reason"]), ([first], "stop"))
        ignoring = json.loads(self.ask("run", named, *run, "--ignore-eos"))
        self.assertEqual(len(ignoring["tokens"]), 3)
        self.assertEqual(self.chat(named, "w100 w200 w300"), "\n")
        self.assertNotEqual(self.chat(plain, "w100 w200 w300"), "\n")


if __name__ == "__main__":
    unittest.main()
