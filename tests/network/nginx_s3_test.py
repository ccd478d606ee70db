"""nginx with WebDAV and TLS as an S3 endpoint, by good networks and bad ones."""
import unittest

from network_fixture import NetworkTest, ask, folder
from nginx_fixture import ERRORS, Nginx, use_credentials
from relay_fixture import Relay
from server_fixture import eventually
from store_fixture import run
from tls_fixture import Certificates

# docs/operations.md: a request to S3 ends within so long, and a second for each MiB, tries and all.
REQUEST_S = 21
NEVER_S = 1e6


class NginxTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.certificates = Certificates(folder(self, "certificates"))
        self.nginx = Nginx(tls=self.certificates.issue("server", "one"))
        self.addCleanup(self.nginx.close)
        use_credentials(self)

    def url(self, authority="one", **options):
        return self.nginx.url(**{"tls-ca": self.certificates.authority(authority)}, **options)

    def test_a_run_restores_what_another_has_kept(self):
        answer, (kept,) = run(self.url(), policy="compute")
        self.assertEqual(kept["name"], "s3")
        self.assertGreater(kept["written"], 4)
        self.assertEqual(len(self.nginx.chunks()), kept["written"])
        again, (loaded,) = run(self.url())
        self.assertEqual(again, answer)
        self.assertEqual((loaded["reads"], loaded["reads_failed"]), (kept["written"], 0))
        self.assertGreaterEqual(self.nginx.requests("PUT", 201), kept["written"])
        self.assertGreaterEqual(self.nginx.requests("GET", 200), kept["written"])
        self.assertGreaterEqual(self.nginx.requests("HEAD", 200), 1)
        self.assertEqual(self.nginx.requests("GET", 404), 0)

    def test_what_is_damaged_is_removed(self):
        answer, (kept,) = run(self.url(), policy="compute")
        victim = sorted(self.nginx.chunks())[0]
        victim.write_bytes(victim.read_bytes()[:-1] + b"!")
        cut = sorted(self.nginx.chunks())[1]
        cut.write_bytes(cut.read_bytes()[:70_000])
        again, (loaded,) = run(self.url())
        self.assertEqual(again, answer)
        self.assertEqual((loaded["reads"], loaded["reads_failed"]), (kept["written"] - 2, 2))
        self.assertEqual(self.nginx.requests("DELETE", 204), 2)

    def test_another_authority_is_refused(self):
        answer, _ = run(self.url(), policy="compute")
        before = self.nginx.requests("GET")
        refused, (tier,) = run(self.url("other"))
        self.assertEqual(refused, answer)
        self.assertEqual((tier["reads"], tier["written"]), (0, 0))
        server = self.small(self.url("other"))
        self.assert_answers(server, 0)
        eventually(lambda: "certificate" in server.log(), "what is wrong")
        self.assertEqual(self.nginx.requests("GET"), before)

    def test_errors_are_counted_and_said(self):
        for status in (403, 500, 503):
            with self.subTest(status):
                server, traffic = self.under_way(self.url())
                self.nginx.answer_all(status)
                ask(server, next(self.new_seeds))
                for failed in ("reads", "writes"):
                    eventually(lambda: server.metric(f"kvcake_tier_{failed}_failed_total") > 0,
                               "errors are counted")
                self.assertRegex(server.log(), f"reading chunks from .*{status}")
                # What is looked for by HEAD is answered without a body.
                self.assertRegex(server.log(), f"writing chunks to .*{status} {ERRORS[status]}")
                traffic.wait_for(20)
                self.nginx.answer_again(status)
                self.assert_recovers(server, traffic, REQUEST_S)

    def test_what_is_not_found_is_a_miss(self):
        server, traffic = self.under_way(self.url())
        before = self.nginx.requests("GET", 404)
        self.nginx.answer_all(404)
        eventually(lambda: self.nginx.requests("GET", 404) > before, "it is not found")
        traffic.wait_for(20)
        self.assertEqual(server.metric("kvcake_tier_reads_failed_total"), 0)
        self.nginx.answer_again(404)
        self.assert_recovers(server, traffic, REQUEST_S)

    def relayed(self, nginx=None, **options):
        """Returns a relay before nginx, a server and traffic that goes by the relay."""
        if nginx is None:
            nginx, options = self.nginx, {"tls-ca": self.certificates.authority("one")}
        relay = Relay(nginx.port)
        self.addCleanup(relay.close)
        endpoint = nginx.endpoint.replace(str(nginx.port), str(relay.port))
        return relay, *self.under_way(nginx.url(endpoint, **options))

    def test_a_network_that_is_far_away(self):
        relay, server, traffic = self.relayed()
        relay.delay_s = 0.02
        before = server.metric("kvcake_tier_reads_total")
        eventually(lambda: server.metric("kvcake_tier_reads_total") > before + 40,
                   "chunks are read")
        self.assert_answers(server, next(self.new_seeds))
        self.assertGreater(relay.delayed, 40)
        # They are kept: none is made for every request.
        self.assertLess(relay.connections, self.nginx.requests("HEAD"))
        for failed in ("reads", "writes"):
            self.assertEqual(server.metric(f"kvcake_tier_{failed}_failed_total"), 0)
        self.assert_recovers(server, traffic, REQUEST_S)

    def test_connections_that_end_in_the_midst_of_a_chunk(self):
        relay, server, traffic = self.relayed()
        relay.reset_after = 100_000  # of a chunk's 266,240 bytes, and of the handshake's
        eventually(lambda: server.metric("kvcake_tier_reads_failed_total") > 8,
                   "three tries fail, and are counted")
        self.assertGreater(relay.resets, 24)
        traffic.wait_for(8)
        relay.reset_after = None
        self.assert_recovers(server, traffic, REQUEST_S)

    def assert_slow_bodies_are_given_up(self, relay, server, traffic, said=""):
        relay.drip_after = 100_000
        eventually(lambda: server.metric("kvcake_tier_reads_failed_total") > 0,
                   "what does not end is given up")
        self.assertRegex(server.log(), f"reading chunks from .*{said}")
        traffic.wait_for(8)
        relay.drip_after = None
        self.assert_recovers(server, traffic, REQUEST_S)

    def test_bodies_that_drip(self):
        nginx = Nginx()
        self.addCleanup(nginx.close)
        relay, server, traffic = self.relayed(nginx)
        self.assert_slow_bodies_are_given_up(relay, server, traffic)
        self.assertGreater(relay.drips, 100)

    def test_records_of_tls_that_drip(self):
        relay, server, traffic = self.relayed()
        self.assert_slow_bodies_are_given_up(relay, server, traffic)
        self.assertGreater(relay.drips, 100)

    def test_bodies_that_never_end(self):
        relay, server, traffic = self.relayed()
        relay.drip_s = NEVER_S
        self.assert_slow_bodies_are_given_up(relay, server, traffic, "not a byte came or went")
        self.assertGreater(relay.drips, 0)


if __name__ == "__main__":
    unittest.main()
