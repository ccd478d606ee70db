"""Name servers that know no such name, or say nothing."""
import pathlib
import re
import socket
import struct
import subprocess
import threading
import time
import unittest

from network_fixture import NetworkTest, enter_namespace, folder
from nginx_fixture import Nginx, use_credentials
from redis_fixture import Redis
from server_fixture import eventually

ADDRESS_OF_A_HOST, NO_SUCH_NAME = 1, 3
# docs/operations.md: so long a connection may take to come, and a request to S3, tries and all.
REDIS_S, S3_S = 10, 21
GOODBYE_S = 1  # that a store has for telling its server that it ends
NAME = "store.kvcake.invalid"


class NameServer:
    """Knows one name, as long as it answers: this machine's."""

    def __init__(self):
        self.mode = "answers"  # or "knows nothing", or "is silent"
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            question, sender = self._socket.recvfrom(4096)
            if len(question) < 12:
                return
            self.asked += 1
            if self.mode != "is silent":
                self._socket.sendto(self._answer(question), sender)

    def _answer(self, question):
        name_end = question.index(0, 12) + 1
        wanted, = struct.unpack_from(">H", question, name_end)
        asked = question[12:name_end + 4]
        code = NO_SUCH_NAME if self.mode == "knows nothing" else 0
        answer = b""
        if code == 0 and wanted == ADDRESS_OF_A_HOST:
            answer = struct.pack(">HHHIH", 0xC00C, wanted, 1, 0, 4) + socket.inet_aton("127.0.0.1")
        header = struct.pack(">HHHHHH", *struct.unpack_from(">H", question), 0x8180 | code, 1,
                             bool(answer), 0, 0)
        return header + asked + answer

    def close(self):
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


class NameServerTest(NetworkTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # In the mount namespace of this test. Without either file the C library does just the same.
        for path, text in (("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
                           ("/etc/nsswitch.conf", "hosts: files dns\n")):
            if not pathlib.Path(path).exists():
                continue
            own = pathlib.Path(cls.reference.dir.name, pathlib.Path(path).name)
            own.write_text(text, encoding="ascii")
            subprocess.run(["mount", "--bind", str(own), path], check=True)

    def setUp(self):
        super().setUp()
        self.names = NameServer()
        self.addCleanup(self.names.close)
        self.redis = Redis()
        self.addCleanup(self.redis.close)
        self.nginx = Nginx()
        self.addCleanup(self.nginx.close)
        use_credentials(self)
        self.stores = ((f"redis://{NAME}:{self.redis.port}", self.redis.url, REDIS_S),
                       (self.nginx.url(f"http://{NAME}:{self.nginx.port}"), self.nginx.url(), S3_S))

    def assert_gets_over(self, mode, said):
        """Requests go on while the name server fails so, and stores are used when it answers."""
        for url, by_address, bound_s in self.stores:
            with self.subTest(url):
                self.fill(by_address)
                self.names.mode, self.names.asked = mode, 0
                server = self.small(url)
                traffic = self.traffic(server)
                eventually(lambda: re.search(said, server.log()), "what is wrong")
                traffic.wait_for(20)
                self.assertGreater(self.names.asked, 0)
                self.assertEqual(server.metric("kvcake_tier_reads_total"), 0)
                self.names.mode = "answers"
                self.assert_recovers(server, traffic, bound_s)

    def test_a_name_that_is_not_found_until_it_is(self):
        self.assert_gets_over("knows nothing", f"cannot find {NAME}|resolve host: {NAME}")

    def test_a_name_server_that_says_nothing_until_it_does(self):
        self.assert_gets_over("is silent", "reading chunks from")

    def test_a_server_ends_while_the_name_server_says_nothing(self):
        for url, _, _ in self.stores:
            with self.subTest(url):
                self.names.mode = "is silent"
                server = self.small(url)
                self.assert_answers(server, 0)
                eventually(lambda: "writing chunks to" in server.log(), "what is wrong")
                eventually(server.idle, "everything has been given back")
                began = time.monotonic()
                self.assertEqual(server.stop(), 0)
                self.assert_bounded(time.monotonic() - began, GOODBYE_S)


if __name__ == "__main__":
    enter_namespace()
    unittest.main()
