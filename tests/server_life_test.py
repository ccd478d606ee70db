"""A server's life as whoever watches it sees it: loading, ready, stuck, told to stop."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from server_fixture import CHATML, MODEL, PROGRAM, WAIT_S, OwnServersTest, eventually

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))


class LoadingServer:
    """A server that goes on loading until it is let go: its chat template is a pipe."""

    def __init__(self, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.pipe = self.folder.name + "/template"
        os.mkfifo(self.pipe)
        self.log_path = pathlib.Path(self.folder.name, "log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), "serve", "--model", MODEL,
                 "--port", "0", "--threads", "1", "--ram-capacity", "64MiB", "--chat-template",
                 self.pipe, *flags], stdout=log, stderr=log)
        eventually(lambda: self.process.poll() is not None or "listening at" in self.log(),
                   "a listener")
        self.port = int(re.search(r"listening at \S+ port (\d+)", self.log())[1])

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    def let_go(self):
        with open(self.pipe, "w", encoding="utf-8") as pipe:
            pipe.write(CHATML)

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request(method, path, body,
                           {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        content = json.loads(response.read())
        connection.close()
        return response.status, content

    def send(self, text):
        """What is answered up to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as raw:
            raw.sendall(text.encode())
            return raw.makefile("rb").read().decode()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class LoadingTest(unittest.TestCase):
    def start(self, *flags):
        server = LoadingServer(*flags)
        self.addCleanup(server.kill)
        return server

    def test_it_says_that_it_loads_and_then_serves(self):
        server = self.start()
        body = json.dumps({"prompt": "Once", "max_tokens": 1})
        self.assertEqual(server.request("GET", "/health"), (200, {}))
        for method, path in (("GET", "/ready"), ("POST", "/v1/completions"), ("GET", "/v1/models")):
            status, content = server.request(method, path, body if method == "POST" else None)
            self.assertEqual((status, content["error"]["code"]), (503, "loading"))
        eventually(lambda: "/v1/models 503" in server.log(), "the last one's line")
        self.assertNotIn("/ready 503", server.log())  # a probe would fill the log
        self.assertIn("Retry-After: 1\r\n", server.send("GET /v1/models HTTP/1.0\r\n\r\n"))
        server.let_go()
        eventually(lambda: server.request("GET", "/ready")[0] == 200, "the model")
        self.assertEqual(server.request("POST", "/v1/completions", body)[0], 200)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(WAIT_S), 0)

    def test_who_asks_while_it_loads_has_a_line(self):
        server = self.start("--log-format", "json")
        sent = [len(server.send(text).partition("\r\n\r\n")[2].encode())
                for text in ("GET /v1/models HTTP/1.0\r\n\r\n", "hello there\r\n\r\n")]
        eventually(lambda: server.log().count('"request_id"') == 2, "their lines")
        lines = [json.loads(line) for line in server.log().splitlines() if '"request_id"' in line]
        self.assertEqual([(line["path"], line["status"], line["sent_bytes"]) for line in lines],
                         [("/v1/models", 503, sent[0]), ("", 400, sent[1])])
        self.assertEqual(lines[0]["error"]["code"], "loading")
        self.assertIn("not HTTP", lines[1]["error"]["message"])

    def test_it_says_why_it_is_not_ready(self):
        server = self.start("--shutdown-delay", "1h")

        def why():
            return server.request("GET", "/ready")[1]["error"]["message"]
        self.assertIn("is being loaded", why())
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: "shutting down" in why(), "another reason")
        server.process.send_signal(signal.SIGINT)
        server.process.wait(WAIT_S)

    def test_signals_end_it_while_it_loads(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.start()
            server.process.send_signal(number)
            self.assertEqual(server.process.wait(WAIT_S), 0)
            self.assertIn("while the model was being loaded", server.log())

    def test_it_is_never_ready_where_it_was_told_to_stop_while_it_loads(self):
        server = self.start("--shutdown-delay", "1h")
        server.process.send_signal(signal.SIGTERM)

        def told():
            return server.request("GET", "/ready")[1]["error"]["code"]
        eventually(lambda: told() != "loading", "the signal")
        server.let_go()
        body = json.dumps({"prompt": "Once", "max_tokens": 1})
        eventually(lambda: server.request("POST", "/v1/completions", body)[0] == 200, "the model")
        self.assertEqual(server.request("GET", "/ready")[0], 503)

    def test_who_asks_as_it_is_told_to_stop_is_answered_when_it_has_loaded(self):
        server = self.start("--header-timeout", "1h")
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\n")
            eventually(lambda: server.request("GET", "/health")[0] == 200, "it is read")
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "finishing what runs" in server.log(), "the signal")
            server.let_go()
            eventually(lambda: "serving" in server.log(), "the model")
            raw.sendall(b"Host: localhost\r\n\r\n")
            self.assertIn(b" 200 OK", raw.makefile("rb").read())
        self.assertEqual(server.process.wait(WAIT_S), 0)

    def test_keys_that_are_to_be_read_again_while_it_loads_are(self):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as keys:
            keys.write("ann old\n")
            keys.flush()
            server = self.start("--api-key-file", keys.name)
            keys.seek(0)
            keys.write("ann new\n")
            keys.flush()
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(server.request("GET", "/health"), (200, {}))
            server.let_go()
            eventually(lambda: "read again" in server.log(), "new keys")
        status = {key: server.request("GET", "/v1/models",
                                      headers={"Authorization": "Bearer " + key})[0]
                  for key in ("old", "new")}
        self.assertEqual(status, {"old": 401, "new": 200})
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(WAIT_S), 0)

    def test_what_cannot_be_loaded_ends_it(self):
        server = self.start()
        with open(server.pipe, "w", encoding="utf-8") as pipe:
            pipe.write("{% if %}")
        self.assertEqual(server.process.wait(WAIT_S), 1)
        self.assertIn("line 1", server.log())


class HealthTest(OwnServersTest):
    def test_an_engine_that_does_not_come_around_is_told_of(self):
        """One step of this emulated machine takes many times as long as --health-timeout."""
        server = self.start("--health-timeout", "200ms", step_s=2.0)
        eventually(lambda: server.request("GET", "/health")[0] == 200, "health")
        asked = threading.Thread(target=server.request, args=(
            "POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 4}),
            {"Content-Type": "application/json"}))
        asked.start()
        eventually(lambda: server.request("GET", "/health")[0] == 503, "an unhealthy server")
        answers = []

        def not_ready():
            answers.append(server.request("GET", "/ready"))
            return answers[-1][0] == 503
        eventually(not_ready, "a server that is not ready")  # it may just have come around
        error = json.loads(answers[-1][2])["error"]
        self.assertEqual(error["code"], "engine_stuck")
        self.assertIn("--health-timeout", error["message"])
        asked.join()
        eventually(lambda: server.request("GET", "/health")[0] == 200, "health again")
        self.assertEqual(server.stop(), 0)


class ServiceManagerTest(OwnServersTest):
    def test_it_hears_of_the_servers_life(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/notify"
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(manager.close)
            manager.bind(path)
            manager.settimeout(WAIT_S)

            def heard(what):
                while not (told := manager.recv(4096).decode()).startswith(what):
                    self.assertEqual(told, "WATCHDOG=1")
                return told
            socket_name = f"NOTIFY_SOCKET={path}"
            server = self.start(wrapper=("env", socket_name))
            self.assertRegex(heard("READY=1"), r"^READY=1\nSTATUS=serving \w+$")
            server.process.send_signal(signal.SIGTERM)
            heard("STOPPING=1")
            self.assertEqual(server.process.wait(WAIT_S), 0)
            # Another one, as what is told while the socket's queue is full is lost.
            server = self.start(wrapper=("env", socket_name, "WATCHDOG_USEC=20000"))
            heard("READY=1")
            for _ in range(3):
                heard("WATCHDOG=1")

    def test_it_hears_nothing_of_an_engine_that_is_stuck(self):
        with tempfile.TemporaryDirectory() as folder:
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(manager.close)
            manager.bind(folder + "/notify")
            manager.setblocking(False)

            def heard():
                """How many messages have come."""
                count = 0
                with contextlib.suppress(BlockingIOError):
                    while manager.recv(4096):
                        count += 1
                return count
            server = self.start("--health-timeout", "200ms", step_s=3.0, wrapper=(
                "env", f"NOTIFY_SOCKET={folder}/notify", "WATCHDOG_USEC=20000"))
            asked = threading.Thread(target=server.request, args=(
                "POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 1}),
                {"Content-Type": "application/json"}))
            asked.start()

            def is_stuck():
                return server.request("GET", "/health")[0] == 503
            eventually(is_stuck, "an unhealthy server")
            heard()
            since = came = 0
            while is_stuck():  # also when the last came
                since += came
                came = heard()
            self.assertLess(since, 2, "one may have been on its way")
            asked.join()
            eventually(lambda: heard() > 2, "that it goes on")
            self.assertEqual(server.stop(), 0)


class ConfigTest(OwnServersTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text, mode=0o600):
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def models(self, server, headers):
        """[(id, length)] of what it serves."""
        listed = json.loads(server.request("GET", "/v1/models", headers=headers)[2])["data"]
        return [(model["id"], model["max_model_len"]) for model in listed]

    def status(self, server, key=None):
        headers = {"Authorization": "Bearer " + key} if key else {}
        return server.request("GET", "/v1/models", headers=headers)[0]

    def test_keys_are_read_again_at_sighup(self):
        keys = self.write("keys", "ann old\n")
        server = self.start("--api-key-file", keys)
        self.assertEqual((self.status(server, "old"), self.status(server, "new")), (200, 401))
        self.write("keys", "ann new\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "read again" in server.log(), "new keys")
        self.assertEqual((self.status(server, "old"), self.status(server, "new")), (401, 200))
        self.write("keys", "ann\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "stay as they were" in server.log(), "a refusal")
        self.assertIn("keys:1: not a tenant's name and its key", server.log())
        os.remove(keys)
        os.mkfifo(keys, 0o600)  # that nobody ever writes to
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "is not a regular file" in server.log(), "another refusal")
        self.assertEqual([self.status(server, key) for key in ("new", "old", None)],
                         [200, 401, 401])
        self.assertNotIn("the file with keys", server.log())
        self.assertEqual(server.stop(), 0)

    def test_keys_come_from_the_environment(self):
        server = self.start(wrapper=("env", "KVCAKE_API_KEY=secret"))
        self.assertEqual((self.status(server), self.status(server, "secret")), (401, 200))
        self.assertEqual(server.stop(), 0)

    def test_a_key_that_is_lost_on_its_way_is_not_taken_for_none(self):
        for name in ("api", "admin"):
            variable, flag = f"KVCAKE_{name.upper()}_KEY", f"--{name}-key"
            for value, says in (("", "set, and empty"), ("secret\n", "white space")):
                refused = subprocess.run(
                    [*PROGRAM.split(), "serve", "--model", MODEL, "--port", "0"], text=True,
                    env={**os.environ, variable: value}, capture_output=True)
                self.assertEqual(refused.returncode, 1, refused.stderr)
                self.assertRegex(refused.stderr, f"{variable}.*{says}")
            keys = self.write("keys", "ann secret\n" if name == "api" else "secret\n")
            for given in ((flag, "secret"), (flag + "-file", keys)):
                server = self.start(*given, wrapper=("env", f"{variable}="))
                self.assertEqual(server.stop(), 0)

    def test_files_that_others_may_read_are_warned_of(self):
        keys = self.write("keys", "ann key\n", mode=0o644)
        config = self.write("config.toml", 'admin-key = "root"\n', mode=0o604)
        server = self.start("--api-key-file", keys, "--config", config)
        for path in (keys, config):
            self.assertIn(f"the file with keys {path} has mode", server.log())
        self.assertEqual(server.stop(), 0)
        for mode, warned in ((0o604, True), (0o640, False)):  # a group has its reasons
            admin = self.write("admin", "root\n", mode=mode)
            config = self.write("config.toml", 'api-key = "secret"\n', mode=mode)
            server = self.start("--admin-key-file", admin, "--config", config)
            for path in (admin, config):
                self.assertIs(f"the file with keys {path} has mode" in server.log(), warned)
            self.assertEqual(server.stop(), 0)

    def test_a_warning_of_the_file_of_flags_is_a_line_of_the_log(self):
        config = self.write("config.toml", 'admin-key = "root"\nlog-format = "json"\n', mode=0o604)
        server = self.start("--config", config)
        lines = [json.loads(line) for line in server.log().splitlines()]
        self.assertEqual(sum("config.toml has mode" in line["message"] for line in lines), 1)
        self.assertEqual(server.stop(), 0)
        server = self.start("--config", config, "--admin-key", "other", "--log-level", "info")
        self.assertNotIn("has mode", server.log())  # its key is not used
        self.assertEqual(server.stop(), 0)

    def test_a_model_is_called_as_its_directory_however_that_is_named(self):
        (self.folder / "here").symlink_to(MODEL)
        for path, name in ((MODEL + "/", "demo"), (f"{MODEL}/../demo/.", "demo"),
                           (str(self.folder / "here"), "here")):
            server = self.start(model=path)
            self.assertEqual([one for one, _ in self.models(server, {})], [name])
            self.assertEqual(server.stop(), 0)

    def test_flags_come_from_a_file(self):
        config = self.write("config.toml", """
            max-model-len = 100
            served-model-name = ["one", "two"]
            api-key = "secret"
            enforce-eager = true
            [run]
            max-model-len = 7
            [serve]
            body-max = "1KiB"
            """)
        server = self.start("--config", config, "--served-model-name", "three")
        headers = {"Authorization": "Bearer secret"}
        # The command line goes before the file.
        self.assertEqual(self.models(server, headers), [("three", 100)])
        self.assertEqual(server.request("POST", "/tokenize", " " * 2000, headers)[0], 413)
        self.assertNotIn("everybody", server.log())
        self.assertEqual(server.stop(), 0)
        server = self.start("--config=" + config, "--max-model-len=50")
        self.assertEqual(self.models(server, headers), [("one", 50), ("two", 50)])
        self.assertEqual(server.stop(), 0)

    def test_a_hash_in_quotes_begins_no_comment(self):
        config = self.write("config.toml", """
            # Keys' "quotes
            api-key = 'a#b'  # of all
            served-model-name = ["one#1",  # the first's
                                 "two"]
            max-model-len = 50# tokens
            """)
        server = self.start("--config", config)
        self.assertEqual(self.models(server, {"Authorization": "Bearer a#b"}),
                         [("one#1", 50), ("two", 50)])
        self.assertEqual(server.stop(), 0)

    def test_escapes_in_quotes_are_tomls(self):
        config = self.write("config.toml", r"""
            served-model-name = ["a\tb", "a\"b\\n", 'a\tb', "a\d \" # b"]
            max-model-len = 50
            """)
        server = self.start("--config", config)
        self.assertEqual([name for name, _ in self.models(server, {})],
                         ["a\tb", 'a"b\\n', "a\\tb", 'a\\d " # b'])
        self.assertEqual(server.stop(), 0)

    def test_an_empty_value_is_not_the_next_flag(self):
        done = subprocess.run([*PROGRAM.split(), "serve", "--api-key=", f"--model={MODEL}"],
                              stderr=subprocess.PIPE, check=False, timeout=WAIT_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"--api-key (or KVCAKE_API_KEY) is empty", done.stderr)
        config = self.write("config.toml", """
            allowed-origins = ""
            served-model-name = "one"
            max-model-len = 50
            """)
        server = self.start("--config", config)
        self.assertEqual(self.models(server, {}), [("one", 50)])
        self.assertEqual(server.stop(), 0)

    def test_another_name_of_a_flag_on_the_command_line_goes_before_the_file(self):
        config = self.write("config.toml", 'allowed-origins = ["https://one.example"]\n')
        server = self.start("--config", config, "--allowed-origin", "https://two.example")
        for origin, allowed in (("https://one.example", None),
                                ("https://two.example", "https://two.example")):
            headers = server.request("GET", "/health", headers={"Origin": origin})[1]
            self.assertEqual(headers["Access-Control-Allow-Origin"], allowed)
        self.assertEqual(server.stop(), 0)
        config = self.write("config.toml", "slice-tokens = 1\n")  # by itself less than a chunk
        server = self.start("--config", config, "--max-num-batched-tokens", "256")
        self.assertEqual(server.stop(), 0)

    def test_a_commands_section_goes_before_what_is_for_all(self):
        config = self.write("config.toml", """
            max-model-len = 100
            served-model-name = ["one", "two"]
            allowed-origins = "https://one.example"
            [serve]
            max-model-len = 50
            served-model-name = "three"
            allowed-origin = "https://two.example"
            """)
        server = self.start("--config", config)
        origin = {"Origin": "https://two.example"}
        self.assertEqual(self.models(server, origin), [("three", 50)])
        headers = server.request("GET", "/v1/models", headers=origin)[1]
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://two.example")
        self.assertEqual(server.stop(), 0)

    def test_the_flags_of_other_commands_come_from_a_file_too(self):
        config = self.write("config.toml", f"""
            model = "{MODEL}"
            ram-capacity = "64MiB"
            threads = 1
            [run]
            prompt = "Once upon a time"
            max-tokens = 3
            json = true
            [serve]
            max-num-seqs = 4
            [worker]
            listen = "127.0.0.1:0"
            rank-timeout = "soon"
            """)
        for command, code, said in (("run", 0, '"tokens": ['), ("worker", 2, "--rank-timeout"),
                                    ("chat", 1, "models/demo has no chat template")):
            done = subprocess.run([*PROGRAM.split(), command, "--config", config], input=b"",
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                  timeout=WAIT_S)
            self.assertEqual(done.returncode, code, done.stdout)
            self.assertIn(said, done.stdout.decode())
        server = self.start("--config", config, "--ranks", "2")  # its workers have no file
        self.assertEqual(server.stop(), 0)

    def test_files_of_other_flags_are_refused(self):
        for text, part in (("max-modle-len = 3", "--max-modle-len"), ('config = "x"', "another"),
                           ("max-model-len = 1", "max-model-len"),
                           ("[sevre]\nmax-num-seqs = 3", "[sevre] is no command"),
                           ("[serve.more]\nmax-num-seqs = 3", "[serve.more] is no command")):
            config = self.write("config.toml", text)
            done = subprocess.run([*PROGRAM.split(), "serve", "--model", MODEL, "--config", config],
                                  stderr=subprocess.PIPE, stdout=subprocess.PIPE, check=False,
                                  timeout=WAIT_S)
            self.assertEqual(done.returncode, 2)
            self.assertIn(part, (done.stderr + done.stdout).decode())


class ShutdownTest(OwnServersTest):
    def test_requests_are_taken_until_the_delay_has_passed(self):
        server = self.start("--shutdown-delay", "1h")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.request("GET", "/ready")[0] == 503, "not ready")
        answer = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1})
        self.assertEqual(answer["usage"]["completion_tokens"], 1)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        server.process.send_signal(signal.SIGINT)  # ends it
        self.assertEqual(server.process.wait(WAIT_S), 128 + signal.SIGINT)

    def test_it_drains_after_the_delay(self):
        server = self.start("--shutdown-delay", "1ms")
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
