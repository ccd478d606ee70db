"""A Redis server that pauses, hangs, is full, changes its password, or speaks another TLS."""
import signal
import unittest

from network_fixture import NetworkTest, folder
from redis_fixture import Redis
from relay_fixture import Relay
from server_fixture import eventually
from tls_fixture import Certificates

# docs/operations.md: what was asked of a server fails within so long without a byte,
HANGS_S = 10
# or where bytes drip; and a second for each MiB under way.
DRIPS_S = 30 + 10


class RedisFaultsTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.redis = Redis()
        self.addCleanup(self.redis.close)

    def test_it_pauses_for_ten_seconds(self):
        server, traffic = self.under_way(self.redis.url)
        self.redis.cli("client", "pause", "10000", "all")
        # It answers when the pause is over, and not before.
        self.assertEqual(self.redis.cli("ping").strip(), "PONG")
        eventually(lambda: "has been silent for 5 s" in server.log(), "it is noticed")
        traffic.wait_for(4)
        self.assert_recovers(server, traffic, HANGS_S)

    def test_it_hangs(self):
        server, traffic = self.under_way(self.redis.url)
        self.redis.process.send_signal(signal.SIGSTOP)
        eventually(lambda: "has been silent for 5 s" in server.log(), "it is given up")
        traffic.wait_for(20)
        self.redis.process.send_signal(signal.SIGCONT)
        self.assert_recovers(server, traffic, HANGS_S)

    def test_its_answers_drip(self):
        relay = Relay(self.redis.port)
        self.addCleanup(relay.close)
        server, traffic = self.under_way(f"redis://127.0.0.1:{relay.port}")
        relay.drip_after = 0
        eventually(lambda: "answers a byte at a time" in server.log(), "it is given up")
        relay.drip_after = None
        self.assert_recovers(server, traffic, DRIPS_S)

    def test_its_memory_is_full(self):
        server, traffic = self.under_way(self.redis.url)
        self.redis.cli("config", "set", "maxmemory-policy", "noeviction")
        self.redis.cli("config", "set", "maxmemory", "1mb")
        for seed in range(3):
            self.assert_answers(server, f"new {seed}")
        eventually(lambda: server.metric("kvcake_tier_writes_failed_total") > 0,
                   "what cannot be kept is counted")
        eventually(lambda: "Redis says: OOM" in server.log(), "what is wrong")
        before = server.metric("kvcake_tier_reads_total")
        eventually(lambda: server.metric("kvcake_tier_reads_total") > before + 20,
                   "chunks are read all the same")
        self.assertEqual(server.metric("kvcake_tier_reads_failed_total"), 0)
        self.redis.cli("config", "set", "maxmemory", "0")
        self.assert_recovers(server, traffic, HANGS_S)

    def test_its_password_changes(self):
        secret = self.redis.url.replace("://", "://:first-secret@")
        for url, word, said in ((self.redis.url, "", "KVCAKE_REDIS_PASSWORD"),
                                (secret, "first-secret", "WRONGPASS")):
            with self.subTest(said):
                self.redis.password(word)
                server, traffic = self.under_way(url)
                self.redis.password("second-secret")
                self.redis.cli("client", "kill", "type", "normal")
                eventually(lambda: said in server.log(), "what is wrong")
                traffic.wait_for(20)
                self.redis.password(word)
                self.assert_comes_back(server)
                self.assertNotIn("-secret", server.log())
                self.assert_recovers(server, traffic, HANGS_S)

    def test_its_tls_is_refused(self):
        certificates = Certificates(folder(self, "certificates"))

        def tls_of(authority):
            certificate, key = certificates.issue("server", authority)
            return ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients",
                    "no"]

        url = f"rediss://127.0.0.1:{self.redis.port}?tls-ca={certificates.authority('one')}"
        for wrong, said in ((lambda: (), "does it speak TLS?"),
                            (lambda: tls_of("other"), "certificate verify failed")):
            with self.subTest(said):
                self.redis.kill()
                self.redis.tls = wrong()
                self.assertTrue(self.redis.start())
                server = self.small(url)
                traffic = self.traffic(server)
                eventually(lambda: said in server.log(), "what is wrong")
                traffic.wait_for(20)
                self.assertEqual(server.metric("kvcake_tier_writes_total"), 0)
                self.redis.kill()
                self.redis.tls = tls_of("one")
                self.assertTrue(self.redis.start())
                self.assert_recovers(server, traffic, HANGS_S)


if __name__ == "__main__":
    unittest.main()
