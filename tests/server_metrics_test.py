"""/metrics, as Prometheus' own parser reads it, over requests whose effects are known."""
import http.client
import json
import threading
import unittest

from prometheus_client.parser import text_string_to_metric_families

from damage import flip
from server_fixture import WAIT_S, OwnServersTest, eventually

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(40))
CHUNK = 128

# Name, without what the format adds to it, and type.
EXPECTED = {
    # As vLLM has them.
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:request_success": "counter",
    "vllm:iteration_tokens_total": "histogram",
    # kvcake's own.
    "kvcake_restore_seconds": "histogram",
    "kvcake_suffix_seconds": "histogram",
    "kvcake_restore_efficiency": "histogram",
    "kvcake_hit_tokens": "counter",
    "kvcake_computed_tokens": "counter",
    "kvcake_chain_ranks": "gauge",
    "kvcake_chain_prompts": "counter",
    "kvcake_chain_lost": "counter",
    "kvcake_chunks_computed": "counter",
    "kvcake_chunks_loaded": "counter",
    "kvcake_chunks_failed": "counter",
    "kvcake_chunks_mixed_path": "counter",
    "kvcake_pages": "gauge",
    "kvcake_pages_evicted": "counter",
    "kvcake_reads_in_flight": "gauge",
    "kvcake_writes_in_flight": "gauge",
    "kvcake_writes_dropped": "counter",
    "kvcake_pages_held": "gauge",
    "kvcake_planning_seconds": "counter",
    "kvcake_planning_wait_seconds": "counter",
    "kvcake_steps": "counter",
    "kvcake_step_seconds": "counter",
    "kvcake_step_tokens": "counter",
    "kvcake_http_responses": "counter",
    "kvcake_tier_chunks": "gauge",
    "kvcake_tier_bytes": "gauge",
    "kvcake_tier_reads": "counter",
    "kvcake_tier_read_bytes": "counter",
    "kvcake_tier_reads_failed": "counter",
    "kvcake_tier_quarantined": "counter",
    "kvcake_tier_writes": "counter",
    "kvcake_tier_write_bytes": "counter",
    "kvcake_tier_writes_failed": "counter",
    "kvcake_tier_computed_twice": "counter",
    "kvcake_tier_evicted": "counter",
    "kvcake_tier_free_bytes": "gauge",
    "kvcake_tier_opens": "counter",
    "kvcake_tier_open_seconds": "counter",
    "kvcake_tier_looks": "counter",
    "kvcake_tier_look_seconds": "counter",
    "kvcake_tier_scans": "counter",
    "kvcake_tier_scan_seconds": "counter",
    "kvcake_tier_encodes": "counter",
    "kvcake_tier_encode_core_seconds": "counter",
    "kvcake_tier_decodes": "counter",
    "kvcake_tier_decode_core_seconds": "counter",
    "kvcake_store_codec_info": "gauge",
    "kvcake_build_info": "gauge",
    # As Prometheus' own clients have them.
    "process_resident_memory_bytes": "gauge",
    "process_virtual_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_cpu_seconds": "counter",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
}


class MetricsTest(OwnServersTest):
    def scrape(self, server):
        """{name: {labels but the model's: value}}."""
        status, headers, text = server.request("GET", "/metrics")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4"))
        self.families = list(text_string_to_metric_families(text.decode()))
        values = {}
        for family in self.families:
            for sample in family.samples:
                labels = dict(sample.labels)
                own = not sample.name.startswith("process_")
                self.assertEqual(labels.pop("model_name", None), "demo" if own else None)
                key = tuple(sorted(labels.items()))
                self.assertNotIn(key, values.setdefault(sample.name, {}))
                values[sample.name][key] = sample.value
        return values

    def moved(self, server, act):
        """How every value has changed when `act` is done and it is quiet again."""
        before = self.scrape(server)
        act()
        eventually(server.idle, "pages given back")
        after = self.scrape(server)
        return lambda name, **labels: (
            after.get(name, {}).get(tuple(sorted(labels.items())), 0) -
            before.get(name, {}).get(tuple(sorted(labels.items())), 0))

    def ask(self, server, prompt=PROMPT, **fields):
        return server.post("/v1/completions", {"prompt": prompt, "max_tokens": 5, "temperature": 0,
                                               "ignore_eos": True, **fields})

    def test_every_metric_is_there(self):
        server = self.start()
        self.ask(server)
        self.ask(server)
        self.scrape(server)
        types = {family.name: family.type for family in self.families}
        self.assertLessEqual(EXPECTED.items(), types.items())
        self.assertFalse([name for name in types
                          if not name.startswith(("vllm:", "kvcake_", "process_"))])
        for family in self.families:
            self.assertTrue(family.documentation, family.name)
        self.assertEqual(server.stop(), 0)

    def test_counters_are_there_before_their_first_event(self):
        server = self.start()
        values = self.scrape(server)
        self.assertEqual(values["vllm:request_success_total"],
                         {(("finished_reason", reason),): 0
                          for reason in ("stop", "length", "abort", "error")})
        self.assertEqual(values["kvcake_hit_tokens_total"],
                         {(("tier", tier),): 0 for tier in ("ram", "disk")})
        self.assertEqual(values["kvcake_store_codec_info"],
                         {(("codec", "raw"), ("lossy", "false"), ("tier", "disk")): 1})
        version = json.loads(server.request("GET", "/version")[2])["version"]
        self.assertEqual(values["kvcake_build_info"], {(("version", version),): 1})
        self.assertEqual(server.stop(), 0)
        server = self.start("--kv-codec", "int8")
        self.assertEqual(self.scrape(server)["kvcake_store_codec_info"],
                         {(("codec", "int8"), ("lossy", "true"), ("tier", "disk")): 1})
        self.assertEqual(server.stop(), 0)

    def test_a_stop_that_the_last_token_completes_counts_as_one(self):
        server = self.start()
        part = server.post("/tokenize", {"prompt": "\u2603"})["tokens"][0]  # of a character
        answers = []
        moved = self.moved(server, lambda: answers.append(self.ask(
            server, max_tokens=1, logit_bias={str(part): 100}, stop="\ufffd")))
        self.assertEqual(answers[0]["choices"][0]["finish_reason"], "stop")
        for reason, by in (("stop", 1), ("length", 0)):
            self.assertEqual(moved("vllm:request_success_total", finished_reason=reason), by)
        self.assertEqual(server.stop(), 0)

    def test_a_prompt_is_counted_with_its_first_token(self):
        server = self.start("--max-num-seqs", "1", step_s=0.02)
        tokens = server.post("/tokenize", {"prompt": PROMPT})["count"]
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        client.request("POST", "/v1/completions", json.dumps({
            "prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json"})
        response = client.getresponse()
        self.assertTrue(response.readline().startswith(b"data:"))
        counted = {"vllm:time_to_first_token_seconds_count": 1, "vllm:prompt_tokens_total": tokens,
                   "vllm:prefix_cache_queries_total": tokens,
                   "vllm:request_prompt_tokens_sum": tokens,
                   "kvcake_computed_tokens_total": tokens}
        values = self.scrape(server)
        self.assertEqual(values["vllm:num_requests_running"][()], 1)
        self.assertEqual({name: values[name][()] for name in counted}, counted)
        client.close()
        response.close()
        eventually(server.idle, "the answer is given up")
        values = self.scrape(server)
        self.assertEqual({name: values[name][()] for name in counted}, counted)
        self.assertEqual(values["vllm:e2e_request_latency_seconds_count"][()], 1)
        self.assertEqual(server.stop(), 0)

    def test_computed_then_in_memory_then_from_the_store(self):
        server = self.start()
        tokens = server.post("/tokenize", {"prompt": PROMPT})["count"]
        chunks = tokens // CHUNK
        self.assertGreaterEqual(chunks, 5)

        moved = self.moved(server, lambda: self.ask(server))
        for name, by in (("vllm:prompt_tokens_total", tokens), ("vllm:generation_tokens_total", 5),
                         ("vllm:prefix_cache_queries_total", tokens),
                         ("vllm:prefix_cache_hits_total", 0),
                         ("kvcake_computed_tokens_total", tokens),
                         ("kvcake_chunks_computed_total", chunks),
                         ("kvcake_chunks_loaded_total", 0),
                         ("vllm:time_to_first_token_seconds_count", 1),
                         ("vllm:request_queue_time_seconds_count", 1),
                         ("kvcake_restore_seconds_count", 1), ("kvcake_suffix_seconds_count", 1),
                         ("vllm:inter_token_latency_seconds_count", 4),
                         ("vllm:request_time_per_output_token_seconds_count", 1),
                         ("vllm:e2e_request_latency_seconds_count", 1),
                         ("vllm:request_prompt_tokens_sum", tokens),
                         ("vllm:request_generation_tokens_sum", 5)):
            self.assertEqual(moved(name), by, name)
        for reason in ("queue_full", "page_wanted"):
            self.assertEqual(moved("kvcake_writes_dropped_total", tier="disk", reason=reason), 0)
        self.assertGreater(moved("kvcake_planning_seconds_total"), 0)
        self.assertEqual(moved("vllm:request_success_total", finished_reason="length"), 1)
        self.assertEqual(moved("kvcake_http_responses_total", status="200") % 1, 0)
        parts = [moved(name + "_sum") for name in ("vllm:request_queue_time_seconds",
                                                   "kvcake_restore_seconds",
                                                   "kvcake_suffix_seconds")]
        self.assertAlmostEqual(sum(parts), moved("vllm:time_to_first_token_seconds_sum"), 6)
        self.assertLess(0, moved("vllm:request_decode_time_seconds_sum"))
        self.assertLess(0, moved("kvcake_steps_total"))
        self.assertLess(0, moved("kvcake_step_seconds_total"))
        self.assertEqual(moved("kvcake_tier_writes_total", tier="disk"), chunks)
        self.assertEqual(moved("kvcake_tier_chunks", tier="disk"), chunks)
        self.assertGreater(moved("kvcake_tier_bytes", tier="disk"), chunks * 4096)
        self.assertEqual(moved("kvcake_pages", state="cached"),
                         -moved("kvcake_pages", state="free"))

        moved = self.moved(server, lambda: self.ask(server))  # in memory
        hit = chunks * CHUNK
        self.assertEqual(moved("kvcake_hit_tokens_total", tier="ram"), hit)
        self.assertEqual(moved("vllm:prefix_cache_hits_total"), hit)
        self.assertEqual(moved("kvcake_computed_tokens_total"), tokens - hit)
        self.assertEqual(moved("kvcake_chunks_computed_total"), 0)
        self.assertEqual(moved("kvcake_tier_writes_total", tier="disk"), 0)

        server.post("/cache/reset", {})  # in the store
        load = {"kvcake": {"policy": "load"}}
        moved = self.moved(server, lambda: self.ask(server, **load))
        self.assertEqual(moved("kvcake_hit_tokens_total", tier="disk"), hit)
        self.assertEqual(moved("kvcake_hit_tokens_total", tier="ram"), 0)
        self.assertEqual(moved("kvcake_chunks_loaded_total"), chunks)
        self.assertEqual(moved("kvcake_tier_reads_total", tier="disk"), chunks)
        self.assertGreater(moved("kvcake_restore_seconds_sum"), 0)
        self.assertEqual(moved("kvcake_restore_efficiency_count"), 1)
        self.assertEqual(server.stop(), 0)

    def test_fifty_on_one_document_restore_it_once(self):
        server = self.start("--load-rate", "4MB")
        self.ask(server)
        eventually(server.idle, "written")
        tokens = server.post("/tokenize", {"prompt": PROMPT})["count"]
        chunks = tokens // CHUNK
        bytes_each = server.metric("kvcake_tier_bytes", tier="disk") / chunks
        server.post("/cache/reset", {})
        # Questions that fill no chunk of their own.
        prompts = [f"{PROMPT} {i}?" for i in range(50)]
        counts = [server.post("/tokenize", {"prompt": prompt})["count"] for prompt in prompts]
        self.assertEqual({count // CHUNK for count in counts}, {chunks})
        answers = {}

        def act():
            threads = [threading.Thread(target=lambda i=i: answers.update(
                {i: self.ask(server, prompts[i], max_tokens=2)})) for i in range(50)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        moved = self.moved(server, act)
        self.assertEqual(len(answers), 50)
        read = moved("kvcake_tier_reads_total", tier="disk")
        computed = moved("kvcake_chunks_computed_total")
        self.assertGreaterEqual(read + computed, chunks)
        self.assertLessEqual(read, chunks)
        self.assertLessEqual(computed, chunks)
        # Compute may overtake a read that is under way.
        self.assertLessEqual(read + computed, chunks + 4)
        self.assertLessEqual(moved("kvcake_tier_read_bytes_total", tier="disk"),
                             chunks * bytes_each)
        tails = sum(count - chunks * CHUNK for count in counts)
        self.assertEqual(moved("kvcake_computed_tokens_total"), computed * CHUNK + tails)
        # Some steps wait for loads.
        self.assertLessEqual(moved("vllm:iteration_tokens_total_count"),
                             moved("kvcake_steps_total"))
        steps = sum(moved("kvcake_step_tokens_total", kind=kind)
                    for kind in ("decode", "fresh", "restore"))
        self.assertEqual(steps, moved("vllm:iteration_tokens_total_sum"))
        self.assertEqual(moved("kvcake_step_tokens_total", kind="decode"), 50)
        self.assertEqual(server.stop(), 0)

    def test_reads_that_are_under_way_are_told(self):
        server = self.start("--load-rate", "500KB")  # of which a chunk has half
        self.ask(server)
        eventually(server.idle, "written")
        server.post("/cache/reset", {})
        asked = threading.Thread(target=self.ask, args=(server,),
                                 kwargs={"kvcake": {"policy": "load"}})
        asked.start()
        eventually(lambda: server.metric("kvcake_reads_in_flight") > 0, "a read")
        asked.join()
        eventually(server.idle, "none any more")
        self.assertEqual(server.stop(), 0)

    def test_pages_that_others_needed_are_counted(self):
        server = self.start(ram="8MiB")
        for i in range(8):
            self.ask(server, f"{i}. {PROMPT}", max_tokens=1)
        eventually(server.idle, "pages given back")
        evicted = server.metric("kvcake_pages_evicted_total")
        self.assertGreater(evicted, 0)
        self.assertEqual(evicted, server.metric("kvcake_chunks_computed_total") -
                         server.metric("kvcake_pages", state="cached"))
        self.assertEqual(server.stop(), 0)

    def test_bad_chunks_are_counted(self):
        server = self.start()
        self.ask(server)
        eventually(server.idle, "written")
        server.post("/cache/reset", {})
        paths = [path for path in server.store_path.glob("v1/*/*/*") if path.is_file()]
        for path in paths[:2]:
            flip(path, 5000, -4096)  # a value of the first slab and one of the last
        moved = self.moved(server, lambda: self.ask(server, kvcake={"policy": "load"}))
        self.assertEqual(moved("kvcake_chunks_failed_total"), 2)
        self.assertEqual(moved("kvcake_tier_reads_failed_total", tier="disk"), 2)
        self.assertEqual(moved("kvcake_tier_quarantined_total", tier="disk"), 2)
        self.assertEqual(moved("kvcake_chunks_loaded_total"), len(paths) - 2)
        self.assertEqual(server.stop(), 0)

    def test_what_is_refused_counts_as_a_response_only(self):
        server = self.start()
        moved = self.moved(server, lambda: server.post("/v1/completions", {"prompt": 5}, status=400))
        self.assertEqual(moved("kvcake_http_responses_total", status="400"), 1)
        self.assertEqual(moved("vllm:prompt_tokens_total"), 0)
        self.assertEqual(moved("vllm:time_to_first_token_seconds_count"), 0)
        self.assertEqual(server.stop(), 0)

    def test_what_runs_and_what_waits(self):
        server = self.start("--max-num-seqs", "1", step_s=0.02)
        self.ask(server, f"Before. {PROMPT}")  # whose pages stay, and are in nobody's use
        slow = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        connections = [http.client.HTTPConnection(server.host, server.port, timeout=WAIT_S)
                       for _ in range(3)]
        for connection in connections:
            connection.request("POST", "/v1/completions", json.dumps(slow),
                               {"Content-Type": "application/json"})
        eventually(lambda: (server.metric("vllm:num_requests_running") == 1 and
                            server.metric("vllm:num_requests_waiting") == 2), "one runs, two wait")
        values = self.scrape(server)
        pages = values["kvcake_pages"]
        referenced = pages[(("state", "referenced"),)]
        self.assertGreater(referenced, 0)
        self.assertEqual(values["vllm:kv_cache_usage_perc"][()], referenced / sum(pages.values()))
        for connection in connections:
            connection.close()
        eventually(server.idle, "their end")
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
        self.assertEqual(server.metric("vllm:request_success_total", finished_reason="abort"), 3)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
