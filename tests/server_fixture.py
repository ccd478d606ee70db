"""Starts `kvcake serve` as a user does, for the tests beside this file."""
import atexit
import http.client
import json
import mmap
import os
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
SANITIZER_REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: \w+Sanitizer|: runtime error: ")
# Whether one watches the program; clang puts its sanitizers inside, g++ beside it.
with open(PROGRAM.split()[-1], "rb") as executable:
    with mmap.mmap(executable.fileno(), 0, access=mmap.ACCESS_READ) as program_bytes:
        SANITIZED = re.search(rb"__[at]san_init", program_bytes) is not None
WAIT_S = 180  # for what must come, on a machine that others use too; nothing is measured


def eventually(condition, what):
    """Waits until condition() holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.02)


class Server:
    """A running `kvcake serve` of models/demo with a store of its own. It ends with the test's
    process at the latest, however that ends; so it is to be started on its main thread. With step_s
    each step of the engine takes so long, on an emulated machine."""

    def __init__(self, *flags, store=None, ram="64MiB", wrapper=(), tls=None, model=MODEL,
                 template=CHATML, step_s=None, port=0):
        self.tls = tls  # what clients know of the server's certificate, where it has one
        self.dir = tempfile.TemporaryDirectory(prefix="kvcake-serve-")
        self.store = store or self.dir.name + "/store"
        self.store_path = pathlib.Path(self.store)
        own = []
        if template is not None:  # else the model's own
            own = ["--chat-template", self.dir.name + "/template.jinja"]
            pathlib.Path(own[1]).write_text(template, encoding="utf-8")
        if step_s is not None:
            own += ["--emulate", self.dir.name + "/steps.json"]
            pathlib.Path(own[-1]).write_text(json.dumps(
                {"name": "steps", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 32768,
                 "attention": "dense", "c0": step_s, "b": 0.0, "a": 0.0}), encoding="utf-8")
        self.log_path = pathlib.Path(self.dir.name, "log")
        command = ["setpriv", "--pdeathsig", "KILL", *wrapper, *PROGRAM.split(), "serve",
                   "--model", model, "--port", str(port), "--threads", "1", "--ram-capacity", ram,
                   "--store", self.store, *own, *flags]
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        atexit.register(self.kill)
        eventually(lambda: self.process.poll() is not None or self._address(), "the server's start")
        if not self._address():
            raise AssertionError(self.log())
        self.host, self.port = self._address()
        admin = re.search(r"https?://[0-9.]+:(\d+)/metrics", self.log())
        self.admin_port = admin and int(admin[1])  # of --admin-port

    def _address(self):
        match = re.search(r"https?://([0-9.]+):(\d+)/v1", self.log())
        return match and (match[1], int(match[2]))

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def _proc(self, name):
        return pathlib.Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="utf-8")

    def rss_bytes(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", self._proc("status"))[1]) << 10

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def url(self):
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}"

    def request(self, method, path, body=None, headers=None, port=None):
        """(status, headers, body) of one request on a connection of its own."""
        where = (self.host, port or self.port)
        if self.tls:
            connection = http.client.HTTPSConnection(*where, timeout=WAIT_S, context=self.tls)
        else:
            connection = http.client.HTTPConnection(*where, timeout=WAIT_S)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        json_type = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, {**json_type, **(headers or {})})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    def post(self, path, body, status=200, headers=None):
        got, _, content = self.request("POST", path, body, headers)
        assert got == status, (got, content[:2000])
        return json.loads(content)

    def metric(self, name, **labels):
        """The sum of a metric's values with these labels."""
        _, _, text = self.request("GET", "/metrics", port=self.admin_port)
        total = 0.0
        for line in text.decode().splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]+)\{(.*)\} (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in match[2]
                                                  for k, v in labels.items()):
                total += float(match[3])
        return total

    def answers_nothing(self):
        return (self.metric("vllm:num_requests_running") == 0 and
                self.metric("vllm:num_requests_waiting") == 0)

    def idle(self):
        """Nothing runs, and every page has been given back."""
        return (self.answers_nothing() and
                self.metric("kvcake_reads_in_flight") == 0 and
                self.metric("kvcake_pages", state="referenced") == 0)

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self.kill()
        return code

    def kill(self):
        """Without a word, if it still runs; what it had on disk goes too. No sanitizer had anything
        to say."""
        atexit.unregister(self.kill)
        self.process.kill()
        self.process.wait()
        log = self.log() if self.log_path.exists() else ""
        self.dir.cleanup()
        assert not SANITIZER_REPORT.search(log), log


class OwnServersTest(unittest.TestCase):
    """Tests that start servers of their own."""

    def start(self, *flags, **options):
        server = Server(*flags, **options)
        self.addCleanup(server.kill)
        return server


class ServerTest(unittest.TestCase):
    """Tests that share a server."""

    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        try:
            eventually(cls.server.idle, "pages given back")
            assert cls.server.stop() == 0
        finally:
            cls.server.kill()
