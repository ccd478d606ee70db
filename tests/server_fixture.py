"""Starts `kvcake serve` as a user does, for the tests beside this file."""
import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = sys.argv.pop(1)  # kvcake, perhaps behind an emulator
MODEL = str(ROOT / "models" / "demo")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
          "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
WAIT_S = 180  # for what must come, on a machine that others use too; nothing is measured


def eventually(condition, what):
    """Waits until condition() holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.02)


class Server:
    """A running `kvcake serve --model models/demo` with a store of its own."""

    def __init__(self, *flags, store=None, ram="64MiB"):
        self.dir = tempfile.TemporaryDirectory(prefix="kvcake-serve-")
        self.store = store or self.dir.name + "/store"
        template = pathlib.Path(self.dir.name, "chatml.jinja")
        template.write_text(CHATML)
        self.log_path = pathlib.Path(self.dir.name, "log")
        command = [*PROGRAM.split(), "serve", "--model", MODEL, "--port", "0", "--threads", "1",
                   "--ram-capacity", ram, "--store", self.store, "--chat-template", str(template),
                   *flags]
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        eventually(lambda: self.process.poll() is not None or self._address(), "the server's start")
        if not self._address():
            raise AssertionError(self.log())
        self.host, self.port = self._address()

    def _address(self):
        match = re.search(r"http://([0-9.]+):(\d+)/v1", self.log())
        return match and (match[1], int(match[2]))

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    def post(self, path, body, status=200, headers=None):
        got, _, content = self.request("POST", path, body, headers)
        assert got == status, (got, content)
        return json.loads(content)

    def metric(self, name, **labels):
        """The sum of a metric's values with these labels."""
        _, _, text = self.request("GET", "/metrics")
        total = 0.0
        for line in text.decode().splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]+)\{(.*)\} (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in match[2]
                                                  for k, v in labels.items()):
                total += float(match[3])
        return total

    def idle(self):
        """Nothing runs, and every page has been given back."""
        return (self.metric("vllm:num_requests_running") == 0 and
                self.metric("vllm:num_requests_waiting") == 0 and
                self.metric("kvcake_pages", state="referenced") == 0)

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self.dir.cleanup()
        return code


class ServerTest(unittest.TestCase):
    """Tests that share a server."""

    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        eventually(cls.server.idle, "pages given back")
        assert cls.server.stop() == 0
