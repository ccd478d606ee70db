"""A cable that is cut, one way or both, between a server and its store, and connections that only
one end still believes in."""
import unittest

from network_fixture import FarMachine, NetworkTest, enter_namespace, folder
from nginx_fixture import Nginx, use_credentials
from redis_fixture import Redis
from server_fixture import eventually
from tls_fixture import Certificates

# docs/operations.md: what was asked of a Redis server that is silent fails within so long,
REDIS_S = 10
# and a request to S3, tries and all.
S3_S = 21


class CutCableTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.far = FarMachine()
        self.addCleanup(self.far.close)

    def cut(self, how, server, traffic, bound_s, meanwhile=lambda: None):
        """What is asked while nothing passes is answered, and what comes later used again."""
        written = server.metric("kvcake_tier_writes_failed_total")
        self.far.cut(how)
        try:  # what is wrong is to leave the next way of cutting a whole cable
            for _ in range(3):
                self.assert_answers(server, next(self.new_seeds))
            eventually(lambda: server.metric("kvcake_tier_writes_failed_total") > written,
                       "writes are given up")
            read = server.metric("kvcake_tier_reads_total")
            traffic.wait_for(40)
            self.assertEqual(server.metric("kvcake_tier_reads_total"), read, "nothing passes")
            meanwhile()
        finally:
            self.far.mend()
        self.assert_comes_back(server)
        self.assert_traffic_bounded(traffic, bound_s)

    def test_redis(self):
        redis = Redis("--protected-mode", "no", host=self.far.ADDRESS, within=self.far.within)
        self.addCleanup(redis.close)
        server, traffic = self.under_way(redis.url)

        def restart():
            redis.kill()
            self.assertTrue(redis.start())

        for how in self.far.cuts:
            with self.subTest(how):
                self.cut(how, server, traffic, REDIS_S)
        with self.subTest("it dies, and nobody hears of it"):
            self.cut(self.far.cuts[0], server, traffic, REDIS_S, meanwhile=restart)
        self.assert_recovers(server, traffic, REDIS_S)

    def test_s3(self):
        certificates = Certificates(folder(self, "certificates"), f"IP:{self.far.ADDRESS}")
        nginx = Nginx(self.far.ADDRESS, self.far.within, certificates.issue("server", "one"))
        self.addCleanup(nginx.close)
        use_credentials(self)
        server, traffic = self.under_way(
            nginx.url(**{"tls-ca": certificates.authority("one")}))

        def restart():
            nginx.kill()
            self.far.mend()  # to see that it has started
            self.assertTrue(nginx.start())
            self.far.cut(self.far.cuts[0])

        for how in self.far.cuts:
            with self.subTest(how):
                self.cut(how, server, traffic, S3_S)
        with self.subTest("it dies, and nobody hears of it"):
            self.cut(self.far.cuts[0], server, traffic, S3_S, meanwhile=restart)
        self.assert_recovers(server, traffic, S3_S)


if __name__ == "__main__":
    enter_namespace()
    unittest.main()
