"""`kvcake chat`, in a terminal and through a pipe."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

from server_fixture import CHATML, MODEL, PROGRAM, SANITIZER_REPORT, WAIT_S

LONG = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))
VERY_LONG = " ".join([LONG] * 4)
LAST_LINE = r"\[(\d+) prompt tokens, (\d+) computed; first token after [0-9.]+ s\]"
FOREVER = 8000  # tokens: more than anybody waits for


class ChatTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="kvcake-chat-")
        self.addCleanup(self.dir.cleanup)
        template = pathlib.Path(self.dir.name, "chatml.jinja")
        template.write_text(CHATML)
        self.command = ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), "chat", "--model", MODEL,
                        "--threads", "1", "--ram-capacity", "64MiB", "--chat-template",
                        str(template), "--temperature", "0"]

    def pipe(self, text, *flags):
        """(stdout, stderr) of a conversation whose messages are lines of `text`."""
        done = subprocess.run([*self.command, *flags], input=text.encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def test_a_pipe(self):
        flags = ("--max-tokens", "12")
        once, errors = self.pipe("Who are you?\n", *flags)
        self.assertTrue(once.strip())
        self.assertNotIn(">", errors)  # no prompts where nobody types
        twice, _ = self.pipe("Who are you?\nAnd who am I?", *flags)  # the end of file ends a line
        self.assertTrue(twice.startswith(once))
        self.assertGreater(len(twice), len(once))
        alone, _ = self.pipe("And who am I?\n", *flags)
        self.assertNotEqual(twice[len(once):], alone)  # it knows what was said before
        other, _ = self.pipe("Who are you?\n", "--system", "Speak of ships.", *flags)
        self.assertNotEqual(other, once)
        self.assertEqual(self.pipe("", *flags)[0], "")
        self.assertEqual(self.pipe("\nWho are you?\n", *flags)[0], "")  # an empty line ends it

    def test_answers_are_drawn_where_that_is_wanted(self):
        self.command[-1] = "1"  # the temperature
        answers = [self.pipe("Who are you?\n", "--max-tokens", "12", "--seed", seed)[0]
                   for seed in ("1", "1", "2")]
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])

    def test_an_answer_ends_where_the_model_ends_it(self):
        model = pathlib.Path(self.dir.name, "model")
        model.mkdir()
        for file in pathlib.Path(MODEL).iterdir():
            if file.is_file() and not file.name.endswith("config.json"):
                (model / file.name).symlink_to(file)
        config = json.loads(pathlib.Path(MODEL, "config.json").read_text())
        self.command[self.command.index(MODEL)] = str(model)
        answers = []
        for ends, most in ((0, "12"), (list(range(4096)), "12"), (0, "1")):
            (model / "config.json").write_text(json.dumps({**config, "eos_token_id": ends}))
            answers.append(self.pipe("Who are you?\n", "--max-tokens", most)[0])
        self.assertGreater(len(answers[0]), len(answers[1]))
        self.assertEqual(answers[1], answers[2], "the first token is an end")

    def test_a_conversation_that_outgrows_the_context_says_so(self):
        done = subprocess.run([*self.command, "--max-tokens", "4"],
                              input=(LONG * 20).encode() + b"\n", stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"context", done.stderr)

    def test_an_interrupt_ends_it_where_nobody_types(self):
        with subprocess.Popen([*self.command, "--max-tokens", str(FOREVER)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            process.stdin.write(b"Tell me more.\n")
            process.stdin.flush()
            self.assertTrue(process.stdout.read(1))
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(WAIT_S), -signal.SIGINT)

    # ---- in a terminal ----

    def open(self, *flags):
        process, self.terminal = pty.fork()
        if process == 0:
            os.execvp(self.command[0], [*self.command, *flags])
        self.process = process
        self.addCleanup(self.kill, process, self.terminal)
        self.expect("> ")

    def kill(self, process, terminal):
        os.close(terminal)
        if self.process == process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def expect(self, pattern):
        """What is printed up to the first match of `pattern`, which is returned."""
        seen = ""
        deadline = time.monotonic() + WAIT_S
        while not (match := re.search(pattern, seen)):
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                self.fail(f"no {pattern!r} in {seen!r}")
            # A byte at a time, so that nothing after the match is taken.
            seen += os.read(self.terminal, 1).decode("latin-1")
        self.assertNotRegex(seen, SANITIZER_REPORT)
        return match

    def say(self, keys):
        os.write(self.terminal, keys.encode())

    def ask(self, message):
        """(prompt tokens, computed tokens) of the answer."""
        self.say(message + "\n")
        match = self.expect(LAST_LINE)
        self.expect("> ")
        return int(match[1]), int(match[2])

    def end(self, keys, code=0):
        self.say(keys)
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:  # Linux's end of file
            pass
        _, status = os.waitpid(self.process, 0)
        self.process = None
        self.assertEqual(os.waitstatus_to_exitcode(status), code)

    def test_several_turns_are_not_computed_again(self):
        self.open("--max-tokens", "8")
        first, computed = self.ask(LONG)
        self.assertEqual(computed, first)
        second, computed = self.ask("And then?")
        self.assertGreater(second, first)
        self.assertLess(computed, second / 2)
        third, computed = self.ask("And after that?")
        self.assertGreater(third, second)
        self.assertLess(computed, third / 2)
        self.end("\x04")  # Ctrl-D

    def test_a_message_that_is_too_long_is_dropped_and_the_rest_is_not(self):
        self.open("--max-tokens", "4")
        first, _ = self.ask("Who are you?")
        for _ in range(100):
            self.say(LONG + "\n")
            if self.expect(LAST_LINE + "|context is")[0] == "context is":
                break
            self.expect("> ")
        self.expect("the message is dropped.*\n> ")
        prompt, computed = self.ask("And then?")
        self.assertGreater(prompt, first)
        self.assertLess(computed, prompt / 2)  # the conversation is still there
        self.end("\x04")

    def test_another_day_it_comes_from_the_store(self):
        flags = ("--max-tokens", "8", "--store", self.dir.name + "/store")
        self.open(*flags)
        first, computed = self.ask(VERY_LONG)
        self.assertEqual(computed, first)
        self.end("\n")  # an empty line
        # Where the machine is busy elsewhere, cake may have computed all before a chunk is there.
        self.open(*flags, "--policy", "load")
        again, computed = self.ask(VERY_LONG)
        self.assertEqual(again, first)
        self.assertLess(computed, 128)  # what fills no chunk
        self.end("\x04")
        self.open(*flags, "--policy", "compute")
        self.assertEqual(self.ask(VERY_LONG), (first, first))
        self.end("\x04")

    def test_an_interrupt_ends_the_answer(self):
        self.open("--max-tokens", str(FOREVER))
        for _ in range(2):
            self.say("Tell me more.\n")
            self.expect(r"more\.\r\n(.|\n)+")  # it has begun
            self.say("\x03")
            self.expect(LAST_LINE)
            self.expect("> ")
        self.say("not what I meant\x03")  # at the prompt it drops the line
        time.sleep(0.2)
        self.end("\x04")


if __name__ == "__main__":
    unittest.main()
