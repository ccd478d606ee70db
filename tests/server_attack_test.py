"""What strangers send to `kvcake serve`, over real sockets, and what they get."""
import gzip
import http.client
import json
import re
import socket
import unittest

from server_fixture import WAIT_S, OwnServersTest, ServerTest, eventually
from server_http_test import HOST, JSON_TYPE, Raw

JSON = '{"prompt": "x"}'
CHUNKS = f"{len(JSON):x}\r\n{JSON}\r\n0\r\n\r\n"
SMUGGLED = f"GET /version HTTP/1.1\r\n{HOST}\r\n"


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+)", answer)]


class FramingTest(ServerTest):
    """Two readers who do not agree on where a request ends let a second one through unseen."""

    def ask(self, data):
        """The statuses of all answers, up to the end that the server puts to the connection."""
        with Raw(self.server) as raw:
            answer = raw.send(data.encode("latin-1")).read_all()
        self.assertNotIn(b'"version"', answer, "the second request has been answered")
        return statuses(answer)

    def refused(self, fields, body, start="POST /tokenize HTTP/1.1"):
        head = f"{start}\r\nContent-Type: application/json\r\n{fields}\r\n"
        self.assertEqual(self.ask(head + body + SMUGGLED), [400], fields)

    def taken(self, fields, body, start="POST /tokenize HTTP/1.1"):
        head = f"{start}\r\nContent-Type: application/json\r\n{fields}Connection: close\r\n\r\n"
        self.assertEqual(self.ask(head + body), [200], fields)

    def test_transfer_encodings_that_are_not_chunked_alone(self):
        for coding, body in (("identity", ""), ("gzip", ""), ("chunked, identity", ""),
                             ("gzip, chunked", CHUNKS), ("chunked, chunked", CHUNKS),
                             ("chunked,", CHUNKS), ("chunked;q=1", CHUNKS), ('"chunked"', ""),
                             ("xchunked", ""), ("", ""), ("\x0bchunked", CHUNKS)):
            self.refused(f"{HOST}Transfer-Encoding: {coding}\r\n", body)
        self.refused(f"{HOST}Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", CHUNKS)
        self.refused(f"{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", CHUNKS)
        self.refused(f"{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKS)
        self.refused(f"{HOST}Transfer-Encoding:\r\n gzip,\r\n chunked\r\n", CHUNKS)
        self.taken(f"{HOST}Transfer-Encoding: Chunked\r\n", CHUNKS)

    def test_a_request_without_a_body_is_no_exception(self):
        self.refused(f"{HOST}Transfer-Encoding: identity\r\n", "", "GET /health HTTP/1.1")
        self.refused(f"{HOST}Content-Length: 0\r\nContent-Length: 5\r\n", "",
                     "GET /health HTTP/1.1")

    def test_two_ways_to_say_where_it_ends(self):
        length = f"Content-Length: {len(JSON)}\r\n"
        for coding in ("chunked", "identity"):
            self.refused(f"{HOST}Transfer-Encoding: {coding}\r\n{length}", CHUNKS)
            self.refused(f"{HOST}{length}Transfer-Encoding: {coding}\r\n", CHUNKS)
        self.refused(f"{HOST}{length}Content-Length: 0\r\n", JSON)
        self.refused(f"{HOST}Content-Length: {len(JSON)}, 0\r\n", JSON)
        self.refused(f"{HOST}{length}{length}", JSON)
        for number in ("", "+15", "-1", "0x0f", "15 ", "1 5", "99999999999999999999"):
            if number == "15 ":
                self.taken(f"{HOST}Content-Length: {number}\r\n", JSON)  # space around it
            else:
                self.refused(f"{HOST}Content-Length: {number}\r\n", JSON)

    def test_http_1_0_has_no_transfer_encoding(self):
        self.refused("Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n", CHUNKS,
                     "POST /tokenize HTTP/1.0")
        self.taken(f"Content-Length: {len(JSON)}\r\n", JSON, "POST /tokenize HTTP/1.0")

    def test_who_is_refused_hears_that_it_is_the_end(self):
        with Raw(self.server) as raw:
            answer = raw.send(f"GET /health HTTP/1.1\r\n{HOST}{HOST}\r\n").read_all()
        self.assertIn(b"\r\nConnection: close\r\n", answer)

    def test_one_host(self):
        length = f"Content-Length: {len(JSON)}\r\n"
        self.refused(length, JSON)
        self.refused(HOST + HOST + length, JSON)
        self.refused(HOST + HOST, "", "GET /health HTTP/1.0")
        self.taken(HOST + length, JSON)

    def test_one_key(self):
        """Where there are two, a proxy in front may have looked at the other."""
        length = f"Content-Length: {len(JSON)}\r\n"
        one, other = "Authorization: Bearer a\r\n", "authorization: Bearer b\r\n"
        for fields in (one + other, other + "X: y\r\n" + one, one + one):
            self.refused(HOST + length + fields, JSON)
        self.taken(HOST + length + one, JSON)

    def test_lines_that_others_might_read_otherwise(self):
        length = f"Content-Length: {len(JSON)}\r\n"
        for fields in (f"Content-Length : {len(JSON)}\r\n", f"X: y\n{length}",
                       f"X: y\rZ: z\r\n{length}", f"X: y\0z\r\n{length}", f"X\0: y\r\n{length}", f": y\r\n{length}"):
            self.refused(HOST + fields, JSON)
        self.refused(f" X: y\r\n{HOST}{length}", JSON, "POST /tokenize HTTP/1.1\r\n Y: z")
        # A folded line is one line, as RFC 9112, 5.2 has it.
        self.taken(f"{HOST}X: y\r\n Content-Length: 1\r\n{length}", JSON)
        for start in ("GET  /health HTTP/1.1", "GET /health HTTP/1.2", "GET /health HTTP/2.0",
                      "GET /health  HTTP/1.1", "GET /he alth HTTP/1.1", "GET /health",
                      " GET / HTTP/1.1"):
            self.refused(HOST, "", start)

    def test_chunks_that_others_might_read_otherwise(self):
        size = f"{len(JSON):x}"
        for body in (f"0x{size}\r\n{JSON}\r\n", f"+{size}\r\n{JSON}\r\n", f" {size}\r\n{JSON}\r\n",
                     f"{size} \r\n{JSON}\r\n", f"{size}\n{JSON}\n", f"{size};\nxx\r\n{JSON}\r\n",
                     f"{size}\r\n{JSON}XX\r\n", f"1{'0' * 16}{size}\r\n{JSON}\r\n",
                     f"\r\n{JSON}\r\n"):
            self.refused(f"{HOST}Transfer-Encoding: chunked\r\n", body + "0\r\n\r\n")
        for trailer in ("Content-Length: 5", "Transfer-Encoding: identity, chunked"):
            self.refused(f"{HOST}Transfer-Encoding: chunked\r\n",
                         f"{size}\r\n{JSON}\r\n0\r\n{trailer}\r\n\r\n")
        self.taken(f"{HOST}Transfer-Encoding: chunked\r\n",
                   f"{size};a=b\r\n{JSON}\r\n0\r\nX: y\r\n\r\n")

    def test_refusals_are_counted(self):
        def count():
            return self.server.metric("kvcake_http_responses_total", status=400)
        before = count()
        self.refused(f"{HOST}Transfer-Encoding: identity\r\n", "")
        self.assertEqual(count(), before + 1)


class BrowserTest(OwnServersTest):
    """What a page in a browser of this machine can have sent to the server."""

    EVIL = "http://evil.example"

    def status(self, server, method="GET", path="/v1/models", body=None, **headers):
        return server.request(method, path, body,
                              {name.replace("_", "-"): value for name, value in headers.items()})

    def test_a_rebound_name_gets_nothing(self):
        server = self.start("--allowed-hosts", "kv.example,other.example")
        for host in ("evil.example", "evil.example:8000", "",
                     f"localhost.evil.example:{server.port}"):
            for method, path, body in (("GET", "/v1/models", None), ("GET", "/metrics", None),
                                       ("POST", "/v1/completions", "{}"),
                                       ("OPTIONS", "/tokenize", None)):
                status, _, content = self.status(server, method, path, body, Host=host)
                self.assertEqual(status, 403, (host, path))
                self.assertIn(b"--allowed-hosts", content)
        for host in ("localhost", "127.0.0.1", "[::1]:80", "KV.example:443", "other.example"):
            self.assertEqual(self.status(server, Host=host)[0], 200, host)
        with Raw(server) as raw:  # and what it sends next is not read
            raw.send("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n" + SMUGGLED)
            answer = raw.read_all()
        self.assertEqual(statuses(answer), [403])
        self.assertEqual(server.stop(), 0)

    def test_any_name_where_that_is_wanted(self):
        server = self.start("--allowed-hosts", "*")
        self.assertEqual(self.status(server, Host="evil.example")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_scripts_of_other_pages_read_nothing(self):
        server = self.start()
        body = {"prompt": "x", "max_tokens": 1}
        for stream in (False, True):
            for origin, answered in ((self.EVIL, None), ("null", None),
                                     ("http://localhost:3000", "http://localhost:3000")):
                _, headers, _ = server.request("POST", "/v1/completions",
                                               {**body, "stream": stream}, {"Origin": origin})
                self.assertEqual(headers["Access-Control-Allow-Origin"], answered)
                self.assertIn("Origin", headers["Vary"])
        status, headers, _ = self.status(server, "OPTIONS", "/v1/completions", Origin=self.EVIL,
                                         Access_Control_Request_Method="POST")
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, None))
        self.assertEqual(server.stop(), 0)

    def test_scripts_of_pages_that_may_ask_may_send_json_and_a_key(self):
        server = self.start()
        status, headers, _ = self.status(server, "OPTIONS", "/v1/completions",
                                         Origin="http://localhost:3000",
                                         Access_Control_Request_Method="POST",
                                         Access_Control_Request_Headers="authorization")
        self.assertEqual((status, headers["Allow"]), (204, "POST, OPTIONS"))
        self.assertIn("POST", headers["Access-Control-Allow-Methods"].split(", "))
        # The Fetch standard's "*" is every header but this one.
        fields = headers["Access-Control-Allow-Headers"].split(", ")
        self.assertEqual(fields, ["*", "Authorization"])
        self.assertEqual(server.stop(), 0)

    def test_origins_by_a_list(self):
        for flags, allowed in ((("--allowed-origins", "https://a.example,http://b.example"), True),
                               (("--allowed-origins", '["http://b.example"]'), True),
                               (("--allowed-origin", "http://b.example"), True),
                               (("--allowed-origins", '["*"]'), "*"),
                               (("--allowed-origins", ""), False)):
            server = self.start(*flags)
            for origin, expected in (("http://b.example", allowed),
                                     (self.EVIL, allowed if allowed == "*" else False)):
                answered = self.status(server, Origin=origin)[1]["Access-Control-Allow-Origin"]
                self.assertEqual(answered, {True: origin, False: None}.get(expected, expected))
            self.assertEqual(server.stop(), 0)

    def test_forms_are_refused(self):
        server = self.start()
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                     "/cache/warm", "/cache/reset"):
            for kind in ("application/x-www-form-urlencoded", "text/plain",
                         "text/plain; a=application/json"):
                status, _, content = self.status(server, "POST", path, JSON, Content_Type=kind)
                self.assertEqual(status, 415, path)
                self.assertIn(b"application/json", content)
        with Raw(server) as raw:  # what fetch(url, {method: "POST"}) sends
            raw.send(f"POST /cache/reset HTTP/1.1\r\n{HOST}Connection: close\r\n"
                     "Content-Length: 0\r\n\r\n")
            answer = raw.read_all()
        self.assertEqual(statuses(answer), [415])
        self.assertIn(b"header Content-Type: application/json, with or without a body", answer)
        self.assertEqual(self.status(server, "POST", "/tokenize", JSON,
                                     Content_Type="application/json; charset=utf-8")[0], 200)
        status, _, content = self.status(server, "POST", "/tokenize", gzip.compress(JSON.encode()),
                                         Content_Type="application/json", Content_Encoding="gzip")
        self.assertEqual(status, 415)
        self.assertIn(b"header Content-Encoding", content)
        self.assertEqual(server.stop(), 0)

    def test_forms_are_taken_where_that_is_wanted(self):
        server = self.start("--any-content-type")
        for coding, status in (("identity", 200), ("gzip", 415)):
            fields = {"Content-Type": "text/plain", "Content-Encoding": coding}
            self.assertEqual(server.request("POST", "/tokenize", JSON, fields)[0], status)
        self.assertEqual(server.stop(), 0)


class CrowdTest(OwnServersTest):
    """Connections that want nothing but the places of others."""

    BODY = f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}Content-Length: 100\r\n\r\n{{"

    def setUp(self):
        self.crowd = []

    def stop(self, server):
        """Once the crowd has gone: the server would wait for those who have a request."""
        for raw in self.crowd:
            raw.socket.close()
        self.assertEqual(server.stop(), 0)

    def busy(self, server):
        """A connection with a request: its body is awaited."""
        return self.idle(server, self.BODY)

    def idle(self, server, sent=""):
        raw = Raw(server).send(sent)
        self.addCleanup(raw.socket.close)
        self.crowd.append(raw)
        return raw

    def count(self, server, name, **labels):
        return server.metric(f"kvcake_http_connections{name}", listener="clients", **labels)

    def test_idle_connections_starve_no_probe(self):
        server = self.start("--connections-max", "8", "--idle-timeout", "600s",
                            "--header-timeout", "600s")
        oldest = [self.idle(server) for _ in range(20)]
        for _ in range(20):
            self.idle(server, "GET /health HTTP/1.1\r\nX: ")  # slowly
        for _ in range(10):
            self.assertEqual(server.request("GET", "/health")[0], 200)
        for raw in oldest:
            self.assertEqual(raw.read_all(), b"")
        self.assertGreater(self.count(server, "_evicted_total"), 30)
        self.assertLessEqual(self.count(server, ""), 8)
        self.assertEqual(self.count(server, "_refused_total"), 0)
        self.stop(server)

    def test_who_has_a_request_keeps_its_place(self):
        server = self.start("--connections-max", "3", "--body-timeout", "600s", "--admin-port", "0")
        busy = [self.busy(server) for _ in range(3)]
        eventually(lambda: self.count(server, "") == 3 and self.count(server, "_waiting") == 0,
                   "their headers")
        with Raw(server) as more:
            self.assertIn(b"--connections-max", more.read_all())
        with Raw(server) as more:  # what it has said is read, so that it hears the answer
            more.post("/tokenize", {"prompt": "x" * 100000})
            self.assertIn(b"--connections-max", more.read_until(b"}}"))
            self.assertEqual(more.socket.recv(1), b"")
        self.assertEqual(self.count(server, "_refused_total", reason="connections_max"), 2)
        self.assertEqual(server.metric("kvcake_http_responses_total", status=503), 2)
        busy[0].send(" " * 98 + "}")
        self.assertIn(b"400", busy[0].read_until(b"\r\n"))
        eventually(lambda: self.count(server, "_waiting") == 1, "the one that is answered to wait")
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.stop(server)

    def test_each_of_many_is_told_that_there_is_no_place(self):
        server = self.start("--connections-max", "1", "--body-timeout", "600s", "--admin-port", "0")
        self.busy(server)
        eventually(lambda: self.count(server, "") == 1 and self.count(server, "_waiting") == 0,
                   "its header")
        for _ in range(100):  # one after the other: more than are talked with at once
            with Raw(server) as more:
                self.assertIn(b"--connections-max", more.read_all())
        self.stop(server)

    def test_admins_have_a_limit_of_their_own(self):
        server = self.start("--admin-port", "0", "--admin-connections-max", "2", "--body-timeout",
                            "600s")
        body = self.BODY.replace("POST /tokenize", "POST /cache/warm").replace(
            "Content-Length", "Expect: 100-continue\r\nContent-Length").removesuffix("{")
        for _ in range(2):
            raw = Raw(server, port=server.admin_port).send(body)
            self.addCleanup(raw.socket.close)
            self.crowd.append(raw)
            # Whose header has come is asked for the rest; before, it would give its place away.
            raw.read_until(b"100 Continue")
        with Raw(server, port=server.admin_port) as more:
            self.assertIn(b"(--admin-connections-max)", more.read_all())
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.stop(server)

    def test_an_address_has_a_share(self):
        server = self.start("--max-connections-per-client", "2", "--body-timeout", "600s",
                            "--admin-port", "0", "--allowed-hosts", "*")
        for _ in range(2):
            self.busy(server)
        eventually(lambda: self.count(server, "") == 2 and self.count(server, "_waiting") == 0,
                   "their headers")
        with Raw(server) as more:
            answer = more.read_all()
        self.assertEqual(statuses(answer), [503])
        self.assertIn(b"\r\nRetry-After: 1\r\n", answer)
        self.assertRegex(answer, rb"address has 2 connections .*--max-connections-per-client")
        self.assertEqual(self.count(server, "_refused_total", reason="per_client"), 1)
        other = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S,
                                           source_address=("127.0.0.2", 0))
        other.request("GET", "/health")
        self.assertEqual(other.getresponse().status, 200)
        other.close()
        self.stop(server)

    def test_admins_have_a_listener_of_their_own(self):
        server = self.start("--admin-port", "0", "--connections-max", "2", "--api-key", "k",
                            "--body-timeout", "600s")
        for _ in range(2):
            self.busy(server)
        def ask(method, path, body=None, key="k", port=None):
            headers = {"Authorization": f"Bearer {key}"}
            return server.request(method, path, body, headers, port=port)[0]
        admin = server.admin_port
        for path in ("/health", "/ready", "/metrics", "/version"):
            self.assertEqual(ask("GET", path, port=admin), 200, path)
        # The one that asks.
        eventually(lambda: server.metric("kvcake_http_connections", listener="admin") == 1,
                   "the end of the others")
        self.assertEqual(ask("POST", "/cache/reset", "{}", port=admin), 200)
        self.assertEqual(ask("POST", "/cache/reset", "{}", key="x", port=admin), 401)
        for method, path in (("POST", "/v1/completions"), ("POST", "/tokenize"),
                             ("GET", "/v1/models")):
            self.assertEqual(ask(method, path, None if method == "GET" else "{}", port=admin), 404)
        self.stop(server)

    def test_clients_find_nothing_that_is_for_admins(self):
        server = self.start("--admin-port", "0")
        for method, path in (("GET", "/ready"), ("GET", "/metrics"), ("POST", "/cache/warm"),
                             ("POST", "/cache/reset")):
            status, _, content = server.request(method, path, None if method == "GET" else "{}")
            self.assertEqual(status, 404, path)
            self.assertIn(b"--admin-port", content)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.request("POST", "/tokenize", JSON)[0], 200)
        # A page that has a name mean this machine finds nothing there, either.
        self.assertEqual(server.request("GET", "/metrics", headers={"Host": "evil.example"},
                                        port=server.admin_port)[0], 403)
        self.assertEqual(server.stop(), 0)

    def test_an_admin_port_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with self.assertRaisesRegex(AssertionError, f"--admin-port {port}: Address"):
                self.start("--admin-port", str(port))


class AccessLogTest(OwnServersTest):
    def ask(self, server, fields, path="/tokenize"):
        with Raw(server) as raw:
            head = f"POST {path} HTTP/1.1\r\n{HOST}{JSON_TYPE}Connection: close\r\n"
            raw.send(head.encode() + fields +
                     f"Content-Length: {len(JSON)}\r\n\r\n{JSON}".encode())
            return raw.read_all()

    def request_id(self, answer):
        (found,) = re.findall(rb"\r\nX-Request-Id: (.*?)\r\n", answer)
        return found

    def line(self, server, request_id):
        pattern = re.compile(f"^.* {re.escape(request_id)} .*$", re.MULTILINE)
        eventually(lambda: pattern.search(server.log()), request_id)
        return pattern.search(server.log())[0]

    def test_every_request_has_a_line_with_its_client_and_id(self):
        server = self.start()
        answer = self.ask(server, b"X-Request-Id: mine-7\r\n")
        self.assertEqual(self.request_id(answer), b"mine-7")
        line = self.line(server, "mine-7")
        length = len(answer.partition(b"\r\n\r\n")[2])
        self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z kvcake: info: 127\.0\.0\.1 "
                               rf"mine-7 POST /tokenize 200: {len(JSON)} B in, {length} B out, "
                               r"\d+\.\d+ s$")
        answer = self.ask(server, b"X-Request-Id: mine-8\r\n", "/nowhere")
        self.assertIn("POST /nowhere 404: there is no /nowhere; ", self.line(server, "mine-8"))
        self.ask(server, b"X-Request-Id: mine-9\r\nTransfer-Encoding: identity\r\n")
        self.assertIn(" 127.0.0.1 mine-9 POST /tokenize 400: ", self.line(server, "mine-9"))
        status, headers, _ = server.request("POST", "/v1/completions", {
            "prompt": "x", "max_tokens": 1, "stream": True}, {"X-Request-Id": "mine-10"})
        self.assertEqual((status, headers["X-Request-Id"]), (200, "mine-10"))
        self.assertIn(" POST /v1/completions 200: cmpl-", self.line(server, "mine-10"))
        self.assertEqual(server.stop(), 0)

    def test_each_request_of_a_connection_has_its_own_bytes(self):
        server = self.start()
        body = json.dumps({"prompt": "x", "max_tokens": 1, "stream": True})
        sent = {}
        connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
        self.addCleanup(connection.close)
        for name in ("one", "two", "three"):
            connection.request("POST", "/v1/completions", body,
                               {"Content-Type": "application/json", "X-Request-Id": name})
            sent[name] = len(connection.getresponse().read())
        for name, length in sent.items():
            self.assertIn(f"; {len(body)} B in, {length} B out, ", self.line(server, name))
        connection.close()
        self.assertEqual(server.stop(), 0)

    def test_a_client_that_leaves_its_request_half_said_is_logged_as_gone(self):
        server = self.start()
        with Raw(server) as raw:
            raw.send(f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}X-Request-Id: half\r\n"
                     "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
            raw.read_until(b"100 Continue")  # its header has come
            raw.send("{")
        self.assertRegex(self.line(server, "half"), r" 499: the client has gone; 0 B in, 0 B out, ")
        self.assertEqual(server.stop(), 0)

    def test_ids_that_are_not_sane_are_replaced(self):
        server = self.start()
        seen = set()
        for bad in (b"", b"a b", b"x" * 129, b"\x9b2J", b"\xc2\x9b", b"a\r\nX-Request-Id: b", None):
            fields = b"" if bad is None else b"X-Request-Id: " + bad + b"\r\n"
            found = self.request_id(self.ask(server, fields))
            self.assertRegex(found, rb"^req-[0-9a-f]{16}$")
            seen.add(found)
            self.line(server, found.decode())
        self.assertEqual(len(seen), 7)
        longest = b"x" * 128
        self.assertEqual(self.request_id(self.ask(server, b"X-Request-Id: " + longest + b"\r\n")),
                         longest)
        self.assertEqual(server.stop(), 0)

    def test_nothing_in_a_request_commands_a_terminal(self):
        server = self.start()
        for path in (b"/\x9b31m", b"/\xc2\x9b31m", b"/\x85"):
            with Raw(server) as raw:
                raw.send(b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\n" +
                         f"{HOST}\r\n".encode())
                self.line(server, self.request_id(raw.read_all()).decode())
        model = json.dumps({"model": "\x1b[31m\n\u009b", "prompt": "x"}, ensure_ascii=False)
        server.request("POST", "/v1/completions", model.encode(), {"X-Request-Id": "controls"})
        self.assertIn(r'"\x1b[31m\x0a\x9b"', self.line(server, "controls"))
        log = server.log_path.read_bytes()
        self.assertEqual(set(re.findall(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", log)), set())
        log.decode()  # and it is text
        self.assertEqual(server.stop(), 0)

    def test_levels(self):
        server = self.start()
        server.request("GET", "/health", headers={"X-Request-Id": "probe"})
        server.request("GET", "/v1/models", headers={"X-Request-Id": "models"})
        self.line(server, "models")
        self.assertNotIn("probe", server.log())
        self.assertEqual(server.stop(), 0)
        server = self.start("--log-level", "debug")
        server.request("GET", "/health", headers={"X-Request-Id": "probe"})
        self.assertIn("GET /health 200: ", self.line(server, "probe"))
        self.assertEqual(server.stop(), 0)

    def test_json(self):
        server = self.start("--log-format", "json")
        self.ask(server, b"X-Request-Id: mine\r\n")
        eventually(lambda: '"mine"' in server.log(), "its line")
        (line,) = [json.loads(line) for line in server.log().splitlines() if '"mine"' in line]
        self.assertEqual((line["client"], line["method"], line["path"], line["status"]),
                         ("127.0.0.1", "POST", "/tokenize", 200))
        self.assertEqual(line["received_bytes"], len(JSON))
        self.assertGreater(line["sent_bytes"], 0)
        self.assertNotIn("finish_reason", line)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
