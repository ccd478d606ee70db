"""`kvcake serve` in TLS, with certificates made for the test."""
import json
import os
import pathlib
import socket
import ssl
import subprocess
import tempfile
import unittest

from server_fixture import WAIT_S, OwnServersTest, eventually
from server_http_test import HOST, JSON_TYPE, LONG, PROMPT, Raw
from tls_fixture import Certificates


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stderr=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)


class Tls(Raw):
    """A client's end in TLS, that says what it likes."""

    def __init__(self, server, context, port=None):
        plain = socket.create_connection((server.host, port or server.port), WAIT_S)
        # An end of the connection without TLS' own is an error.
        self.socket = context.wrap_socket(plain, server_hostname="localhost",
                                          suppress_ragged_eofs=False)


class TlsTest(OwnServersTest):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="kvcake-tls-")
        cls.addClassCleanup(cls.dir.cleanup)
        cls.certificate, cls.key = cls.make("server")
        cls.context = ssl.create_default_context(cafile=cls.certificate)

    @classmethod
    def make(cls, name):
        paths = [f"{cls.dir.name}/{name}.{kind}" for kind in ("pem", "key")]
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-days", "2", "-subj", "/CN=localhost", "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1])
        os.chmod(paths[1], 0o600)
        return paths

    def serve(self, *flags):
        return self.start("--ssl-certfile", self.certificate, "--ssl-keyfile", self.key, *flags,
                          tls=self.context)

    def test_requests_and_streams(self):
        server = self.serve("--admin-port", "0")
        self.assertIn("https://127.0.0.1:", server.log())
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        whole = server.post("/v1/completions", body)
        with Tls(server, self.context) as client:  # several on a connection, then its end
            for _ in range(3):
                client.send(f"GET /health HTTP/1.1\r\n{HOST}\r\n")
                self.assertIn(b"200 OK", client.read_until(b"{}"))
            client.post("/v1/completions", {**body, "stream": True}, "Connection: close\r\n")
            lines = [json.loads(line[6:]) for line in client.read_all().split(b"\n")
                     if line.startswith(b"data: {")]
        self.assertEqual("".join(line["choices"][0]["text"] for line in lines),
                         whole["choices"][0]["text"])
        self.assertEqual(server.request("GET", "/ready", port=server.admin_port)[0], 200)
        large = server.post("/tokenize", {"prompt": "x " * 400000})
        self.assertGreater(large["count"], 100000)
        self.assertNotIn("chmod", server.log())
        self.assertEqual(server.stop(), 0)

    def test_clients_that_know_the_first_authority_are_shown_those_between(self):
        made = Certificates(self.dir.name)
        between = made.between("between", "first")
        certificate, key = made.issue("leaf", "between")
        chain = pathlib.Path(self.dir.name, "chain.pem")
        chain.write_bytes(pathlib.Path(certificate).read_bytes() +
                          pathlib.Path(between).read_bytes())
        context = ssl.create_default_context(cafile=made.authority("first"))
        server = self.start("--ssl-certfile", str(chain), "--ssl-keyfile", key, tls=context)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_both_versions_and_no_older_one(self):
        server = self.serve()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=self.certificate)
            context.minimum_version = context.maximum_version = version
            with Tls(server, context) as client:
                client.send(f"GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
                self.assertIn(b"200 OK", client.read_all())
        old = ssl.create_default_context(cafile=self.certificate)
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with self.assertRaisesRegex((ssl.SSLError, ConnectionError), "VERSION|reset"):
            Tls(server, old)
        eventually(lambda: server.metric("kvcake_tls_handshakes_failed_total") == 1, "its count")
        self.assertEqual(server.stop(), 0)

    def test_plain_http_gets_no_answer(self):
        server = self.serve()
        with Raw(server) as raw:
            raw.send(f"GET /v1/models HTTP/1.1\r\n{HOST}\r\n")
            self.assertNotIn(b"HTTP/1.1", raw.read_all())
        eventually(lambda: server.metric("kvcake_tls_handshakes_failed_total") == 1, "its count")
        self.assertEqual(server.stop(), 0)

    def test_handshakes_have_a_deadline(self):
        server = self.serve("--header-timeout", "3s", "--idle-timeout", "600s")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = self.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with self.assertRaises(ssl.SSLWantReadError):
            hello.do_handshake()
        for sent in (b"", outgoing.read()[:40]):
            with Raw(server) as raw:
                self.assertEqual(raw.send(sent).read_all(), b"")
        eventually(lambda: server.metric("kvcake_tls_handshakes_failed_total") >= 2, "their count")
        self.assertEqual(server.stop(), 0)

    def test_a_refusal_arrives_though_not_all_was_read(self):
        server = self.serve("--body-max", "1KiB")
        with Tls(server, self.context) as client:
            client.send(f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}"
                        "Content-Length: 300000\r\n\r\n")
            client.send(b"x" * 100000)
            self.assertIn(b" 413 ", client.read_until(b"\r\n"))
        self.assertEqual(server.stop(), 0)

    def test_nobody_is_waited_for_who_does_not_end_tls(self):
        """Neither after an answer nor after one to what was not read to its end."""
        server = self.serve("--admin-port", "0")
        with Tls(server, self.context) as client, Tls(server, self.context) as refused:
            client.send(f"GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n")
            self.assertIn(b"200 OK", client.read_all())
            refused.send(f"POST /nowhere HTTP/1.1\r\n{HOST}Content-Length: 9\r\n\r\n{{")
            self.assertIn(b" 404 ", refused.read_all())
            eventually(lambda: server.metric("kvcake_http_connections", listener="clients") == 0,
                       "the end of both")
        self.assertEqual(server.stop(), 0)

    def test_clients_that_go_away_end_their_requests(self):
        server = self.serve()
        def aborted():
            return server.metric("vllm:request_success_total", finished_reason="abort")
        for count, leave in enumerate((Raw.reset, lambda client: client.socket.close(),
                                       lambda client: client.socket.unwrap()), 1):
            client = Tls(server, self.context)
            client.post("/v1/completions", LONG).read_until(b"data: ")
            try:
                leave(client)
            except (OSError, ssl.SSLError):
                pass  # what was under way when it said goodbye
            client.socket.close()
            eventually(lambda expected=count: aborted() == expected, "the cancel")
        eventually(server.idle, "pages given back")
        self.assertEqual(server.stop(), 0)

    def test_idle_handshakes_starve_nobody(self):
        server = self.serve("--connections-max", "4", "--header-timeout", "600s")
        crowd = [Raw(server) for _ in range(12)]
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertGreater(server.metric("kvcake_http_connections_evicted_total"), 8)
        for raw in crowd:
            raw.socket.close()
        self.assertEqual(server.stop(), 0)

    def test_a_refusal_is_heard_in_tls(self):
        server = self.serve("--connections-max", "1", "--body-timeout", "600s", "--admin-port", "0")
        busy = Tls(server, self.context)
        busy.send(f"POST /tokenize HTTP/1.1\r\n{HOST}{JSON_TYPE}Content-Length: 99\r\n\r\n")
        eventually(lambda: server.metric("kvcake_http_connections_waiting",
                                         listener="clients") == 0, "its header")
        status, _, body = server.request("GET", "/health")
        self.assertEqual(status, 503)
        self.assertIn(b"--connections-max", body)
        with Tls(server, self.context) as more:  # which ends as TLS has it
            self.assertIn(b"--connections-max", more.read_all())
        busy.socket.close()
        self.assertEqual(server.stop(), 0)

    def test_files_that_will_not_do_are_named_at_start(self):
        junk = pathlib.Path(self.dir.name, "junk.pem")
        junk.write_text("no certificate")
        _, other_key = self.make("other")
        locked = f"{self.dir.name}/locked.key"
        openssl("ec", "-in", self.key, "-aes256", "-passout", "pass:secret", "-out", locked)
        for certificate, key, named in ((str(junk), self.key, f"--ssl-certfile {junk}"),
                                        (self.certificate, str(junk), f"--ssl-keyfile {junk}"),
                                        (self.certificate, other_key, f"--ssl-keyfile {other_key}"),
                                        (self.certificate, locked, "passphrase"),
                                        (self.certificate, "/nowhere.key", "/nowhere.key")):
            with self.assertRaisesRegex(AssertionError, named):
                self.start("--ssl-certfile", certificate, "--ssl-keyfile", key)
        for flags in (("--ssl-certfile", self.certificate), ("--ssl-keyfile", self.key)):
            with self.assertRaisesRegex(AssertionError, "requires --ssl-"):
                self.start(*flags)

    def test_a_key_that_others_may_read_is_a_warning(self):
        os.chmod(self.key, 0o644)
        self.addCleanup(os.chmod, self.key, 0o600)
        server = self.serve()
        self.assertIn(f"warning: --ssl-keyfile {self.key} has mode", server.log())
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
