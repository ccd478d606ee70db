"""Where `kvcake serve` listens: at names, in IPv6, and again where it did before."""
import http.client
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

from server_fixture import MODEL, PROGRAM, WAIT_S, OwnServersTest, eventually
from server_http_test import HOST, Raw


class ListenTest(OwnServersTest):
    def listen_at(self, host):
        """What a server says that listens there, for clients and for admins."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        log = pathlib.Path(folder.name, "log")
        with open(log, "wb") as output:
            server = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), "serve", "--model", MODEL,
                 "--host", host, "--port", "0", "--admin-host", host, "--admin-port", "0"],
                stderr=output)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        eventually(lambda: server.poll() is not None or b"/v1\n" in log.read_bytes(),
                   "where it serves")
        return log.read_text()

    def test_it_says_where_it_listens_also_in_ipv6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this machine has no IPv6")
        said = self.listen_at("::1")
        self.assertRegex(said, r"http://\[::1\]:\d+/v1\n")
        self.assertRegex(said, r"http://\[::1\]:\d+/metrics\n")

    def test_a_host_may_be_localhost(self):
        said = self.listen_at("localhost")
        port = re.search(r"http://localhost:(\d+)/v1\n", said)
        self.assertTrue(port, said)
        socket.create_connection(("127.0.0.1", int(port[1])), WAIT_S).close()

    def test_admins_have_a_host_of_their_own(self):
        server = self.start("--admin-port", "0", "--admin-host", "127.0.0.2")
        self.assertIn(f"http://127.0.0.2:{server.admin_port}/metrics\n", server.log())
        self.assertIn(f"http://127.0.0.1:{server.port}/v1\n", server.log())
        for host, port, path in (("127.0.0.2", server.admin_port, "/metrics"),
                                 ("127.0.0.1", server.port, "/v1/models")):
            connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
            connection.request("GET", path)
            self.assertEqual(connection.getresponse().status, 200, path)
            connection.close()
        self.assertEqual(server.stop(), 0)

    def test_it_may_be_started_again_at_once_at_the_same_port(self):
        server = self.start()
        with Raw(server) as raw:  # the server is the first to say that it ends: the port remembers
            raw.send(f"GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n").read_all()
        port = server.port
        self.assertEqual(server.stop(), 0)
        again = self.start(port=port)
        self.assertEqual(again.request("GET", "/health")[0], 200)
        self.assertEqual(again.stop(), 0)


if __name__ == "__main__":
    unittest.main()
