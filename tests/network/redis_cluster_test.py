"""A Redis Cluster as the store: its masters die and come back, its slots move, and requests go
on."""
import subprocess
import unittest

from network_fixture import FAILURES, LONG, Asked, NetworkTest, ask
from redis_fixture import RedisCluster
from server_fixture import eventually

HANGS_S = 10  # docs/operations.md: what was asked of a server that hangs fails within so long


def chunks_in(node):
    """Returns the names of those that a node keeps."""
    names = node.cli("--scan", "--pattern", "kvcake:v1:*").split()
    return {name for name in names if not name.endswith(":claim")}


class RedisClusterTest(NetworkTest):
    def setUp(self):
        super().setUp()
        self.cluster = RedisCluster()
        self.addCleanup(self.cluster.close)
        self.fill(self.cluster.url)

    def assert_used(self, node, server):
        """Chunks are read from a node, and written to it."""
        node.cli("config", "resetstat")
        eventually(lambda: node.calls("get") > 0, "chunks are read from the node")
        before = chunks_in(node)

        def is_written():
            ask(server, next(self.new_seeds))
            return chunks_in(node) - before

        eventually(is_written, "chunks are written to the node")

    def test_a_replica_takes_over_from_a_master_that_dies_in_mid_load(self):
        self.fill(self.cluster.url, ["long"], LONG)
        server = self.small(self.cluster.url, "--load-rate", "40Mbit")
        traffic = self.traffic(server)
        for victim, heir in zip(self.cluster.masters, self.cluster.replicas):
            with self.subTest(victim.port):
                traffic.wait_for(4)
                self.assertTrue(chunks_in(victim))
                before = server.metric("kvcake_tier_reads_total")
                long = Asked(server, "long")
                eventually(lambda: server.metric("kvcake_tier_reads_total") > before + 8,
                           "chunks are read")
                self.assertTrue(long.is_running())
                victim.kill()
                self.assertTrue(long.is_running())
                self.assertEqual(long.answer(), self.expected("long", LONG))
                self.assert_bounded(long.seconds, FAILURES * HANGS_S)
                eventually(lambda: self.cluster.is_master(heir), "the replica has taken over")
                self.assert_used(heir, server)
                self.assertTrue(victim.start())
                eventually(lambda: victim.info("replication", "master_link_status") == "up",
                           "the master is back, as a replica")
                self.cluster.wait_whole()
        self.assertGreater(server.metric("kvcake_tier_reads_failed_total"), 0)
        self.assert_recovers(server, traffic, HANGS_S)

    def move_one_slot(self, source, node):
        """Moves it in steps, each of which kvcake has to notice."""
        slot = source.cli("cluster", "keyslot", sorted(chunks_in(source))[0]).strip()
        self.cluster.ask(node, "setslot", slot, "importing", self.cluster.id(source))
        self.cluster.ask(source, "setslot", slot, "migrating", self.cluster.id(node))
        names = source.cli("cluster", "getkeysinslot", slot, "1000").split()
        moved = source.cli("migrate", "127.0.0.1", str(node.port), "", "0", "5000", "keys", *names)
        self.assertEqual(moved.strip(), "OK")
        eventually(lambda: source.errors("ASK") > 0, "it is told where the chunks are for now")
        eventually(lambda: node.calls("asking") > 0, "it asks there")
        for other in (node, source, *self.cluster.masters[1:]):
            self.cluster.ask(other, "setslot", slot, "node", self.cluster.id(node))
        eventually(lambda: source.errors("MOVED") > 0, "it is told where the slot is")

    def test_slots_move_to_a_new_node_and_back(self):
        server = self.small(self.cluster.url)
        traffic = self.traffic(server)
        traffic.wait_for(4)
        node = self.cluster.new_node()
        self.cluster.meet(node)
        self.cluster.wait_whole()
        source = self.cluster.masters[0]
        self.move_one_slot(source, node)
        self.assertEqual(server.metric("kvcake_tier_reads_failed_total"), 0)
        for to, slots in ((node, 2000), (source, 2001)):
            done = subprocess.run(
                ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from",
                 self.cluster.id(source if to is node else node), "--cluster-to",
                 self.cluster.id(to), "--cluster-slots", str(slots), "--cluster-yes"],
                check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
            self.cluster.wait_whole()
            self.assert_used(to, server)
        self.assertEqual(chunks_in(node), set())
        self.assert_recovers(server, traffic, HANGS_S)


if __name__ == "__main__":
    unittest.main()
