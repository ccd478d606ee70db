"""Who may be a rank: a server's workers with and without the cluster's key, and strangers."""
import contextlib
import json
import os
import subprocess
import tempfile
import unittest

from rogue_leader import Refused, RogueLeader
from server_fixture import MODEL, PROGRAM, WAIT_S
from server_ranks_test import PATIENT, RanksTestCase
from tls_fixture import Certificates

KEY = "this cluster's secret, which nobody else knows"


class ClusterTest(RanksTestCase):
    def key_file(self, text=KEY + "\n", mode=0o600):
        with tempfile.NamedTemporaryFile("w", prefix="kvcake-key-", delete=False) as file:
            file.write(text)
        self.addCleanup(os.remove, file.name)
        os.chmod(file.name, mode)
        return file.name

    def rogue(self, worker, **options):
        rogue = RogueLeader(worker.address.replace("0.0.0.0", "127.0.0.1"), **options)
        self.addCleanup(rogue.close)
        return rogue

    def refused(self, *flags, command="worker", **environment):
        """What a program that does not start says."""
        done = subprocess.run([*PROGRAM.split(), command, "--model", MODEL, "--threads", "1",
                               "--ram-capacity", "64MiB", *flags], capture_output=True,
                              timeout=WAIT_S, env={**os.environ, **environment}, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, b"")
        return done.stderr.decode()

    def test_without_a_key_a_worker_listens_at_loopback_only(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            said = self.refused("--listen", address)
            self.assertIn(f"--listen {address}: without a cluster key", said)
            self.assertIn("--cluster-key-file FILE", said)
        self.worker(listen="127.0.0.1:0")
        self.worker("--cluster-key-file", self.key_file(), listen="0.0.0.0:0")

    def test_a_key_that_others_may_read_is_refused(self):
        shared = self.key_file(mode=0o640)
        for flags in (("--listen", "127.0.0.1:0"),):
            self.assertIn(f"chmod 600 {shared}",
                          self.refused(*flags, "--cluster-key-file", shared))
        self.assertIn(f"chmod 600 {shared}",
                      self.refused("--workers", "127.0.0.1:9", "--cluster-key-file", shared,
                                   "--port", "0", command="serve"))
        self.assertIn("KVCAKE_CLUSTER_KEY: a cluster's key has 16",
                      self.refused("--listen", "127.0.0.1:0", KVCAKE_CLUSTER_KEY="short"))

    def test_a_server_without_a_key_tells_other_machines_nothing(self):
        said = self.refused("--workers", "192.0.2.1:7100", "--port", "0", command="serve")
        self.assertIn("192.0.2.1:7100 is on another machine", said)

    def test_ranks_with_the_key_are_believed(self):
        key = self.key_file()
        worker = self.worker("--cluster-key-file", key, listen="0.0.0.0:0")
        address = worker.address.replace("0.0.0.0", "127.0.0.1")
        server = self.start("--workers", address, "--cluster-key-file", key, "--partition", "even",
                            *PATIENT)
        self.check(server, 1, ranks=2)
        self.check(server, 1, ranks=1)  # it is in memory
        self.assertEqual(server.stop(), 0)
        for other in ((), ("--cluster-key-file", self.key_file(KEY + "?\n"))):
            said = self.refused("--workers", address, "--port", "0", *other, command="serve")
            self.assertIn("the leader's cluster key is not this worker's", said)
        self.assertEqual(worker.stop(), 0)

    def certificate(self, name, authority):
        """The flags of a rank whose certificate this authority has signed."""
        certificate, key = self.certificates.issue(name, authority)
        return ("--tls-cert", certificate, "--tls-key", key, "--tls-ca",
                self.certificates.authority(authority))

    def test_ranks_in_tls(self):
        directory = tempfile.TemporaryDirectory(prefix="kvcake-certificates-")
        self.addCleanup(directory.cleanup)
        self.certificates = Certificates(directory.name)
        with_key = ("--cluster-key-file", self.key_file())
        leader = self.certificate("leader", "ours")
        # One that an authority in between has signed, which its file shows, too.
        between = self.certificates.between("between", "ours")
        two = self.certificate("two", "between")
        with open(two[1], "ab") as certificate, open(between, "rb") as authority:
            certificate.write(authority.read())
        two = (*two[:-1], leader[-1])
        workers = [self.worker(*certificate, *key, listen="0.0.0.0:0") for certificate, key in (
            (self.certificate("one", "ours"), ()), (two, ()),
            (self.certificate("three", "ours"), with_key))]
        addresses = [worker.address.replace("0.0.0.0", "127.0.0.1") for worker in workers]
        server = self.start("--workers", ",".join(addresses[:2]), *leader, "--partition", "even",
                            *PATIENT)
        self.check(server, 1, ranks=3)
        self.check(server, 1, ranks=1)  # it is in memory: who computed it is believed
        self.assertEqual(server.stop(), 0)
        for address, flags, why in (
                (addresses[0], self.certificate("stranger", "theirs"), "no authority of --tls-ca"),
                (addresses[0], with_key, "this worker speaks TLS"),
                (addresses[2], leader, "the leader's cluster key is not this worker's")):
            said = self.refused("--workers", address, "--port", "0", *flags, command="serve")
            self.assertIn(why, said)
        self.assertIn("--tls-ca is missing", self.refused("--listen", "127.0.0.1:0", *leader[:4]))
        server = self.start("--workers", addresses[2], *leader, *with_key, "--partition", "even",
                            *PATIENT)
        self.check(server, 1, ranks=2)
        self.assertEqual(server.stop(), 0)
        for worker in workers:
            self.assertEqual(worker.stop(), 0)

    def test_what_ranks_without_a_key_say_is_used_once(self):
        worker = self.worker()
        server = self.start("--workers", worker.address, "--partition", "even", *PATIENT)
        for _ in range(2):
            self.check(server, 1, ranks=2)
        self.assertIn("--workers without a cluster key", server.log())
        self.assertEqual(server.stop(), 0)
        self.assertEqual(worker.stop(), 0)

    def test_a_stranger_who_echoes_facts_is_nobody(self):
        worker = self.worker("--cluster-key-file", self.key_file(), listen="0.0.0.0:0")
        for key in (b"", b"some other secret of theirs"):
            with self.assertRaisesRegex(Refused, "cluster key is not this worker's"):
                self.rogue(worker, key=key).join()
        self.assertEqual(worker.stop(), 0)

    def test_a_stranger_does_not_choose_whom_a_worker_connects_with(self):
        worker = self.worker()
        with self.assertRaisesRegex(Refused, "192.0.2.1:80 is none"):
            self.rogue(worker, roster=["192.0.2.1:80", worker.address]).join()
        self.assertEqual(worker.stop(), 0)

    def test_a_bad_job_is_refused_and_the_worker_lives(self):
        worker = self.worker("--cluster-key-file", self.key_file())
        tokens = list(range(256))
        for why, job in (("token 255 of the job is 2147483647",
                          {"tokens": [*tokens[:-1], 2**31 - 1]}),
                         ("token 3 of the job is -7", {"tokens": [1, 1, 1, -7, *tokens]}),
                         ("whole chunks", {"tokens": tokens, "origin": 77}),
                         ("goes from 0 to 256", {"tokens": tokens, "bounds": [0, 128, 1 << 30]}),
                         ("has 2000000000 tokens", {"tokens": tokens, "count": 2 * 10**9}),
                         ("has 1000 parts", {"tokens": tokens, "parts": 1000})):
            with self.subTest(why):
                rogue = self.rogue(worker, key=KEY.encode())
                rogue.join()
                rogue.echo_facts()
                self.assertIn(why, rogue.ask(**job))
                rogue.close()
                self.assertIn(why, self.logged(worker, why))
        server = self.start("--workers", worker.address, "--cluster-key-file", self.key_file(),
                            "--partition", "even", *PATIENT)
        self.check(server, 1, ranks=2)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(worker.stop(), 0)

    def test_a_worker_that_restores_for_a_leader_that_is_gone_hears_the_next(self):
        slow = tempfile.NamedTemporaryFile("w", prefix="kvcake-profile-", suffix=".json")
        self.addCleanup(slow.close)
        json.dump({"name": "slow", "source": "this test", "fit": {"cells": 1, "mean_error": 0,
                                                                  "worst_error": 0},
                   "layers": 2, "kv_bytes_per_token": 4096, "max_positions": 1 << 20,
                   "attention": "causal", "c0": 0, "b": 1e-3, "a": 0}, slow)
        slow.flush()
        worker = self.worker("--emulate", slow.name, *PATIENT)
        tokens = [i % 100 for i in range(2 * 1000 * WAIT_S // 128 * 128 + 256)]
        with contextlib.closing(self.rogue(worker)) as gone:
            gone.join()
            gone.echo_facts()
            gone.say(tokens, origin=len(tokens) - 256)  # takes twice as long as this test waits
        self.assertIn("is gone", self.logged(worker, "no more led from"))
        self.rogue(worker).join()
        self.assertEqual(worker.stop(), 0)


if __name__ == "__main__":
    unittest.main()
