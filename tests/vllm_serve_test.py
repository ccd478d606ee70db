"""vLLM's server with the plugin: what users and Prometheus see of a prompt that was restored, and a
server that is killed and started again. Runs in a virtual environment with vLLM and kvcake."""
import contextlib
import pathlib
import signal
import tempfile
import unittest

from vllm_fixture import Server, words

LONG, CHUNKS = 2100, 16
NAMES = ("tokens_loaded_total", "tokens_computed_total", "restorations_total",
         "meeting_point_count", "meeting_point_sum", "chunks_kept_total", "chunks_dropped_total",
         "reads_failed_total")


class ServeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.store = self.folder / "store"

    @contextlib.contextmanager
    def server(self, **options):
        server = Server(self.folder, self.store, **options)
        try:
            yield server
        finally:
            server.stop()

    def stored(self):
        return len([path for path in self.store.rglob("*")
                    if len(path.name) == 64 and path.is_file()])

    def counts(self, server):
        read = server.metrics()
        return {name: read[f"vllm:kvcake_{name}"] for name in NAMES}

    def test_a_killed_server_starts_again_and_counts_what_it_restores(self):
        document, other = words(LONG), words(LONG, 1)
        server = Server(self.folder, self.store)
        try:
            self.assertEqual(set(self.counts(server).values()), {0.0})
            first = server.complete(document)
            counts = self.counts(server)
            self.assertLessEqual(counts.pop("chunks_kept_total"), CHUNKS)
            self.assertEqual(set(counts.values()), {0.0})
        finally:
            server.stop(signal.SIGKILL)  # maybe while it writes
        stored = self.stored()
        self.assertGreater(stored, 0)
        # With the planner's policy, what is loaded would depend on who is faster.
        with self.server(policy="load") as server:
            again = server.complete(document)
            self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
            cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
            counts = self.counts(server)
            self.assertEqual(cached, counts["tokens_loaded_total"])
            self.assertEqual(counts["restorations_total"], 1)
            self.assertEqual(counts["meeting_point_count"], 1)
            self.assertEqual(counts["reads_failed_total"], 0)
            if stored == CHUNKS:
                self.assertEqual((cached, counts["tokens_computed_total"]), (128 * CHUNKS, 0))
                self.assertEqual(counts["meeting_point_sum"], 0)
            self.assertLessEqual(cached, 128 * stored)
            self.assertGreater(cached, 0)
            self.assertEqual(server.metrics("vllm:external_prefix_cache_hits")
                             .get("vllm:external_prefix_cache_hits_total"), cached)
            # What nobody has stored counts as nothing that was restored.
            fresh = server.complete(other)
            self.assertEqual(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            kept = CHUNKS - stored + CHUNKS
            while (after := self.counts(server))["chunks_kept_total"] < kept:
                server.complete("Hi")  # what was written after the last step counts with another
            counts.pop("chunks_kept_total")
            self.assertEqual(after.pop("chunks_kept_total"), kept)
            self.assertEqual(after, counts)
            # vLLM's own prefix cache is no load of ours.
            hit = server.complete(document)
            self.assertGreaterEqual(hit["usage"]["prompt_tokens_details"]["cached_tokens"], 2048)
            self.assertEqual(self.counts(server)["tokens_loaded_total"], cached)


if __name__ == "__main__":
    unittest.main()
