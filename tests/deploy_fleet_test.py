"""Several servers behind a balancer: what deploy/'s files and docs/scale.md name, against the
sources and pages that have it, and what deploy/haproxy.cfg does with requests. Its servers are
played here."""
import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import yaml

sys.argv.pop(1)  # the program, which is not needed

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPLOY, DOCS = ROOT / "deploy", ROOT / "docs"
COMPOSE = (DEPLOY / "compose.yaml").read_text()
HAPROXY = (DEPLOY / "haproxy.cfg").read_text()
SCALE = (DOCS / "scale.md").read_text()
GRAFANA = DEPLOY / "grafana"
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "src" / "server").glob("*.cc"))
                  if not path.stem.endswith("_test"))
METRIC = r"(?:vllm:|kvcake_)[a-z0-9_]+"
WAIT_S = 60


def known_metrics():
    """The names of all series that the server's sources make."""
    histograms = set(re.findall(rf'(?:seconds|AddHistogram)\(\s*"({METRIC})"', SOURCES))
    names = set(re.findall(rf'"({METRIC})"', SOURCES)) - histograms
    return names | {name + end for name in histograms for end in ("_bucket", "_sum", "_count")}


def served_flags():
    """Those of docs/cli.md that `kvcake serve` has."""
    rows = re.findall(r"^\| (`--.*?) \|[^|]*\| ([a-z ]+) \|", (DOCS / "cli.md").read_text(), re.M)
    return {flag for names, commands in rows if {"all", "serve"} & set(commands.split())
            for flag in re.findall(r"`(--[a-z-]+)", names)}


def flags_of(text):
    return dict(re.findall(r"^ +- (--[a-z-]+)=(.*)$", text, re.M))


KVCAKE = re.search(r"^x-kvcake: .*?(?=^\S)", COMPOSE, re.M | re.S)[0]
SERVERS = re.findall(r"^  (\S+): \*kvcake$", COMPOSE, re.M)


def eventually(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.02)


class NamesTest(unittest.TestCase):
    def test_the_dashboard_asks_for_metrics_that_there_are(self):
        known = known_metrics()
        self.assertIn("vllm:time_to_first_token_seconds_bucket", known)
        self.assertIn("kvcake_tier_reads_total", known)
        labels = set(re.findall(r'\{"([a-z_]+)", ', SOURCES)) | {"le", "instance"}
        source = (GRAFANA / "provisioning/datasources/prometheus.yml").read_text()
        panels = json.loads((GRAFANA / "dashboards/kvcake.json").read_text())["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        for panel in panels:
            self.assertIn(f"uid: {panel['datasource']['uid']}\n", source)
            for target in panel["targets"]:
                names = re.findall(METRIC, target["expr"])
                self.assertTrue(names, target)
                self.assertLessEqual(set(names), known, panel["title"])
                by = re.findall(r"by \((.*?)\)", target["expr"]) + re.findall(
                    r"\{\{(.*?)\}\}", target["legendFormat"])
                self.assertLessEqual({name for one in by for name in one.split(", ")}, labels,
                                     panel["title"])

    def test_pages_name_metrics_that_there_are(self):
        bare = {re.sub("_(bucket|sum|count)$", "", name) for name in known_metrics()}
        named = set(re.findall(METRIC, SCALE + (DEPLOY / "prometheus.yml").read_text()))
        self.assertLessEqual(named, bare | known_metrics())

    def test_flags_are_the_servers(self):
        known = served_flags()
        self.assertIn("--store", known)
        self.assertNotIn("--prompt", known)
        for text in (KVCAKE, (DEPLOY / "kubernetes.yaml").read_text()):
            self.assertLessEqual(set(flags_of(text)), known)
        self.assertLessEqual(set(re.findall(r"--[a-z]+-[a-z-]+", HAPROXY)), known)
        text = "".join((DOCS / name).read_text() for name in ("cli.md", "operations.md"))
        self.assertLessEqual(set(re.findall(r"`(--[a-z-]+)", SCALE)),
                             set(re.findall(r"--[a-z-]+", text)))
        for name in re.findall(r"^    (KVCAKE_\w+):", KVCAKE, re.M):
            self.assertIn(name, text)

    def test_all_talk_to_each_other(self):
        flags = flags_of(KVCAKE)
        self.assertGreaterEqual(len(SERVERS), 2)
        admin = flags["--admin-port"]
        self.assertEqual(re.findall(r"^  server \w+ (\S+)", HAPROXY, re.M),
                         2 * [f"{name}:{flags['--port']}" for name in SERVERS])
        self.assertIn(f" check port {admin} ", HAPROXY)
        targets = re.search(r"targets: (\[.*\])", (DEPLOY / "prometheus.yml").read_text())[1]
        self.assertEqual(json.loads(targets), [f"{name}:{admin}" for name in SERVERS])
        services = re.findall(r"^  ([\w-]+):", COMPOSE[COMPOSE.index("\nservices:"):], re.M)
        self.assertIn(re.fullmatch(r"redis://(\w+):6379", flags["--store"])[1], services)
        url = re.search(r"url: http://(\w+):9090",
                        (GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
        self.assertIn(url[1], services)
        in_use = [int(s) for s in re.search(r"inter (\d+)s fall (\d+)", HAPROXY).groups()]
        self.assertLess(in_use[0] * (in_use[1] + 1), int(flags["--shutdown-delay"][:-1]))

    def test_images_have_versions_and_files_are_there(self):
        for image in re.findall(r"^ +image: (.*)$", COMPOSE, re.M):
            self.assertRegex(image, r"^[\w./-]+:[\w.-]+$")
            self.assertNotRegex(image, ":latest$")
        mounted = re.findall(r"^ +- \./(.*?):", COMPOSE, re.M)
        self.assertIn("haproxy.cfg", mounted)
        for name in mounted:
            self.assertTrue((DEPLOY / name).exists(), name)
        provider = (GRAFANA / "provisioning/dashboards/kvcake.yml").read_text()
        path = re.search(r"path: (\S+)", provider)[1]
        self.assertIn(f"./grafana/dashboards:{path}:ro", COMPOSE)

    def test_the_page(self):
        rows = re.findall(r"^\| \S+ \| (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+) MiB \| "
                          r"([\d,]+) \| (\d+) MiB \|$", SCALE, re.M)
        self.assertEqual(len(rows), 6)
        for row in rows:
            layers, heads, size, token, mib, tokens, redis = (float(cell.replace(",", ""))
                                                              for cell in row)
            self.assertEqual(token, 2 * layers * heads * size * 2)
            self.assertAlmostEqual(mib, (128 * token + 4096) / 2**20, delta=0.05)
            self.assertEqual(tokens, 2**30 // token)
            self.assertGreaterEqual(redis, mib)
        for name, anchor in re.findall(r"\]\(([\w.]+)#?([\w-]*)\)", SCALE):
            headings = re.findall("^#+ (.*)$", (DOCS / name).read_text(), re.M)
            slugs = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
            self.assertIn(anchor, slugs | {""}, name)
        for line in SCALE.splitlines():
            self.assertTrue(line.startswith("|") or len(line) <= 100, line)


class ToolsTest(unittest.TestCase):
    def test_the_yaml_is_yaml(self):
        files = [path for end in ("yaml", "yml") for path in DEPLOY.rglob("*." + end)]
        self.assertGreaterEqual(len(files), 5)
        for path in files:
            self.assertTrue(all(yaml.safe_load_all(path.read_text())), path)
        compose = yaml.safe_load(COMPOSE)
        for name in SERVERS:
            self.assertEqual(compose["services"][name]["command"][0], "serve")

    @unittest.skipUnless(shutil.which("docker-compose"), "no docker-compose")
    def test_the_schema_of_compose(self):
        names = set(re.findall(r"\$\{(\w+):\?", COMPOSE))
        known = {"PATH": os.environ["PATH"], **{name: "x" for name in names}}
        for left_out in [None, *sorted(names)]:
            environment = {name: value for name, value in known.items() if name != left_out}
            done = subprocess.run(["docker-compose", "-f", DEPLOY / "compose.yaml", "config", "-q"],
                                  env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode == 0, left_out is None, done.stderr)
            self.assertIn(left_out or "", done.stderr)

    @unittest.skipUnless(shutil.which("redis-server"), "no redis-server")
    def test_redis_asks_for_the_password_and_evicts(self):
        shell, c, script = yaml.safe_load(COMPOSE)["services"]["redis"]["command"]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            script = script.replace("$$", "$").replace(
                "redis-server - ", f"redis-server - --port 0 --unixsocket {path} --dir {folder} ")
            environment = {"PATH": os.environ["PATH"], "KVCAKE_REDIS_PASSWORD": "sesame"}
            # pylint: disable-next=consider-using-with
            redis = subprocess.Popen([shell, c, script], env=environment, stdout=subprocess.DEVNULL)
            self.addCleanup(redis.wait)
            self.addCleanup(redis.kill)

            def cli(*command, **more):
                return subprocess.run(["redis-cli", "-s", path, *command],
                                      env={**environment, **more}, capture_output=True, text=True,
                                      check=False).stdout

            eventually(lambda: "NOAUTH" in cli("ping"), "a server that asks for a password")
            secret = {"REDISCLI_AUTH": "sesame"}
            self.assertEqual(cli("ping", **secret), "PONG\n")
            for name, value in (("maxmemory-policy", "allkeys-lru"), ("save", ""),
                                ("appendonly", "no")):
                self.assertEqual(cli("config", "get", name, **secret), f"{name}\n{value}\n")
            command_line = pathlib.Path(f"/proc/{redis.pid}/cmdline").read_text()
            self.assertNotIn("sesame", command_line)


class Played(http.server.ThreadingHTTPServer):
    """What a server would do, as `does` says; /ready is 200 while `ready`."""

    daemon_threads = True

    def __init__(self, name):
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.does, self.ready = name, "answer", True
        self.seen, self.checks, self.gone = collections.deque(), 0, threading.Event()
        self.go_on = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        # The one name that every server answers to, at a loopback address, too.
        good = self.path == "/ready" and self.headers.get_all("Host") == ["localhost"]
        self.server.checks += good
        self.answer(200 if good and self.server.ready else 503, b"")

    def do_POST(self):
        server = self.server
        self.rfile.read(int(self.headers["Content-Length"]))
        server.seen.append(self.headers.get_all("X-Request-Id"))
        if server.does == "answer":
            self.answer(200, server.name.encode())
        elif server.does == "refuse":
            self.answer(503, b"full")
        elif server.does == "hang up":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif server.does == "stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nfirst\r\n")
            server.go_on.wait(WAIT_S)
            self.close_connection = True  # in the middle of an answer
            self.connection.shutdown(socket.SHUT_RDWR)
        elif server.does == "wait":
            self.connection.settimeout(WAIT_S)
            try:
                if self.connection.recv(1) == b"":
                    server.gone.set()
            except ConnectionError:
                server.gone.set()
            self.close_connection = True


@unittest.skipUnless(shutil.which("haproxy"), "no haproxy")
class BalancerTest(unittest.TestCase):
    def test_the_file_as_it_is(self):
        for balance, code in (("roundrobin", 0), ("prefix", 0), ("else", 1)):
            done = subprocess.run(["haproxy", "-c", "-f", DEPLOY / "haproxy.cfg"], check=False,
                                  env={**os.environ, "KVCAKE_BALANCE": balance},
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)

    def balance(self, how):
        """HAProxy with two servers that are in use."""
        self.servers = [Played(name) for name in "ab"]
        config = HAPROXY
        for server, name in zip(self.servers, SERVERS):
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)
            config = config.replace(f"{name}:8000", f"127.0.0.1:{server.server_port}")
        config = config.replace("check port 9000 ", "check ")
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.port = listener.getsockname()[1]
        config = config.replace("bind :8000", f"bind fd@{listener.fileno()}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name, "haproxy.cfg")
        path.write_text(config)
        # pylint: disable-next=consider-using-with
        process = subprocess.Popen(["haproxy", "-db", "-f", path], pass_fds=[listener.fileno()],
                                   env={**os.environ, "KVCAKE_BALANCE": how},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        eventually(self.answers, "HAProxy's start")
        eventually(lambda: all(server.checks for server in self.servers), "checks")
        for server in self.servers:
            server.seen.clear()

    def answers(self):
        try:
            return self.ask()[0] == 200
        except OSError:
            return False

    def ask(self, body=b"{}", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        answer = response.status, response.read().decode()
        connection.close()
        return answer

    def counts(self):
        return [len(server.seen) for server in self.servers]

    def test_round_robin_takes_turns(self):
        self.balance("roundrobin")
        for _ in range(4):
            self.assertEqual(self.ask()[0], 200)
        self.assertEqual(self.counts(), [2, 2])
        self.ask(**{"X-Request-Id": "mine"})
        ids = [one for server in self.servers for one in server.seen]
        self.assertIn(["mine"], ids)
        self.assertEqual(len({one for (one,) in ids}), 5)

    def test_prompts_that_begin_alike_go_to_one_server(self):
        self.balance("prefix")
        went = {}
        # Over one connection, on which a request begins when the one before has ended for HAProxy,
        # too: with another under way it may go elsewhere (hash-balance-factor).
        with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)) as connection:
            for document, question in itertools.product(range(24), range(3)):
                begin = f"{document:04d}" * 256
                connection.request("POST", "/v1/completions",
                                   (begin + f"{question}" * 40_000).encode())
                response = connection.getresponse()
                name = response.read().decode()
                self.assertEqual((response.status, name), (200, went.setdefault(document, name)))
        self.assertEqual(set(went.values()), {"a", "b"})

    def test_a_request_without_a_byte_of_an_answer_is_tried_once_more(self):
        for how, does in itertools.product(("roundrobin", "prefix"), ("refuse", "hang up")):
            with self.subTest(f"{how}, {does}"):
                self.balance(how)
                self.servers[0].does = does
                for _ in range(4):
                    self.assertEqual(self.ask(), (200, "b"))
                self.servers[1].does = does
                for server in self.servers:
                    server.seen.clear()
                self.assertEqual(self.ask()[0], 503 if does == "refuse" else 502)
                self.assertEqual(self.counts(), [1, 1])

    def test_a_stream_comes_as_it_is_sent_and_is_not_begun_again(self):
        self.balance("roundrobin")
        for server in self.servers:
            server.does = "stream"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("POST", "/v1/completions", b"{}")
        response = connection.getresponse()
        self.assertEqual(response.read(5), b"first")  # the server waits with the rest
        for server in self.servers:
            server.go_on.set()
        with self.assertRaises((http.client.HTTPException, OSError)):
            if not response.read():
                raise http.client.IncompleteRead(b"")
        connection.close()
        self.assertEqual(sum(self.counts()), 1)

    def test_a_client_that_goes_away_ends_its_request(self):
        self.balance("roundrobin")
        for server in self.servers:
            server.does = "wait"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("POST", "/v1/completions", b"{}")
        eventually(lambda: sum(self.counts()) == 1, "the request")
        connection.close()
        eventually(lambda: any(server.gone.is_set() for server in self.servers), "its end")

    def test_a_server_that_is_not_ready_gets_nothing(self):
        self.balance("roundrobin")
        self.servers[0].ready = False
        eventually(lambda: {self.ask() for _ in range(4)} == {(200, "b")}, "one is out")
        self.servers[0].ready = True
        eventually(lambda: {self.ask() for _ in range(4)} == {(200, "a"), (200, "b")}, "it is back")


if __name__ == "__main__":
    unittest.main()
