"""What kvcake.vllm tells weights and layouts apart by, and what its options may be:
vllm_identity_test.py PATH/libkvcake.so"""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
from kvcake.cache import Store  # noqa: E402
from kvcake.vllm import config, identity  # noqa: E402


class IdentityTest(unittest.TestCase):
    def setUp(self):
        self._dir = tempfile.TemporaryDirectory()
        self.addCleanup(self._dir.cleanup)
        self.folder = pathlib.Path(self._dir.name)

    def write(self, name, tensors, **kind):
        header, data = {}, b""
        for tensor, value in tensors.items():
            header[tensor] = {"dtype": "U8", "shape": [len(value)],
                              "data_offsets": [len(data), len(data) + len(value)], **kind}
            data += value
        text = json.dumps(header).encode()
        (self.folder / name).write_bytes(len(text).to_bytes(8, "little") + text + data)

    def test_weights_are_told_by_their_bytes_however_they_are_spread(self):
        self.write("a.safetensors", {"x": b"123", "y": b"45"})
        one = identity.folder_digest(self.folder)
        self.write("a.safetensors", {"y": b"45"})
        self.write("b.safetensors", {"x": b"123"})
        self.assertEqual(identity.folder_digest(self.folder), one)
        self.write("b.safetensors", {"x": b"124"})
        self.assertNotEqual(identity.folder_digest(self.folder), one)

    def test_what_a_file_says_of_itself_is_no_tensor(self):
        self.write("a.safetensors", {"x": b"123"})
        one, file = identity.folder_digest(self.folder), self.folder / "a.safetensors"
        plain = file.read_bytes()
        header = b'{"__metadata__": {"format": "pt"}, ' + plain[9:-3]
        file.write_bytes(len(header).to_bytes(8, "little") + header + plain[-3:])
        self.assertEqual(identity.folder_digest(self.folder), one)

    def test_the_same_bytes_in_another_shape_or_type_are_other_weights(self):
        made = set()
        for kind in ({}, {"dtype": "I8"}, {"shape": [2, 3]}, {"shape": [3, 2]}):
            self.write("a.safetensors", {"x": b"123456"}, **kind)
            made.add(identity.folder_digest(self.folder))
        self.assertEqual(len(made), 4)

    def test_a_digest_is_remembered_until_a_file_changes(self):
        remembered = self.folder / "known.json"
        self.write("a.safetensors", {"x": b"123"})
        one = identity.folder_digest(self.folder, remembered)
        known = remembered.read_text()
        self.assertEqual(remembered.stat().st_mode & 0o077, 0, "as what the library keeps there")
        self.assertEqual(identity.folder_digest(self.folder, remembered), one)
        self.assertEqual(remembered.read_text(), known)
        for spoilt in ("[]", "{", "1"):
            remembered.write_text(spoilt)
            self.assertEqual(identity.folder_digest(self.folder, remembered), one)
            self.assertEqual(remembered.read_text(), known)
        stat = (self.folder / "a.safetensors").stat()
        self.write("a.safetensors", {"x": b"321"})
        os.utime(self.folder / "a.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.assertNotEqual(identity.folder_digest(self.folder, remembered), one)

    def test_what_cannot_be_remembered_is_hashed_all_the_same(self):
        self.write("a.safetensors", {"x": b"123"})
        one = identity.folder_digest(self.folder)
        self.assertEqual(identity.folder_digest(self.folder, self.folder / "no" / "known"), one)

    def test_digests_of_other_weights_stay_remembered(self):
        remembered, stamps = self.folder / "known.json", set()
        for name in ("one", "other"):
            (self.folder / name).mkdir()
            self.write(f"{name}/a.safetensors", {"x": name.encode()})
            identity.folder_digest(self.folder / name, remembered)
            stamps.add(json.dumps(identity._stamp(self.folder / name / "a.safetensors")))
        self.assertEqual(set(json.loads(remembered.read_text())), stamps)

    def test_ranks_that_start_together_hash_once(self):
        self.write("a.safetensors", {"x": b"123"})
        self.write("b.safetensors", {"y": b"45"})
        remembered, began = self.folder / "known.json", []
        ranks, hashed = 4, identity._safetensors

        def hash_late(path):
            began.append(path)
            while locks() < ranks and len(began) == len(set(began)):  # until all others wait
                time.sleep(0.001)
            return hashed(path)

        def locks():
            """Those who have the folder open, which they lock: all are of this process."""
            return sum(os.path.realpath(entry.path) == os.path.realpath(self.folder)
                       for entry in os.scandir("/proc/self/fd"))

        with unittest.mock.patch.object(identity, "_safetensors", hash_late), \
                concurrent.futures.ThreadPoolExecutor(ranks) as pool:
            digests = set(pool.map(
                lambda _: identity.folder_digest(self.folder, remembered), range(ranks)))
        self.assertEqual(len(began), len(set(began)))
        self.assertEqual(digests, {identity.folder_digest(self.folder)})

    def test_all_bytes_of_a_file_count(self):
        data, made = bytes(range(11)), set()
        for at in (None, 0, 3, 4, 7, 8, 10):
            changed = bytes(byte ^ (i == at) for i, byte in enumerate(data))
            self.write("a.safetensors", {"x": changed[:6], "y": changed[6:]})
            (self.folder / "code.py").write_bytes(changed)
            with unittest.mock.patch.object(identity, "_READ_BYTES", 4):
                made.add(identity.folder_digest(self.folder))
                made.add(identity.files_digest([self.folder / "code.py"]))
        self.assertEqual(len(made), 14)

    def test_few_files_that_are_not_there_any_more_are_remembered(self):
        remembered = self.folder / "known.json"
        for i in range(9):
            self.write("a.safetensors", {"x": bytes([i])})
            (self.folder / "b.safetensors").unlink(missing_ok=True)
            self.write("b.safetensors", {"y": bytes([i, i])})
            with unittest.mock.patch.object(identity, "_REMEMBERED_MAX", 4):
                one = identity.folder_digest(self.folder, remembered)
            known = json.loads(remembered.read_text())
            self.assertLessEqual(len(known), 4)
            self.assertEqual(identity.folder_digest(self.folder, remembered), one)
            self.assertEqual(json.loads(remembered.read_text()), known, "these are")

    def test_the_files_of_the_format_that_is_loaded_count(self):
        self.write("a.safetensors", {"x": b"123"})
        (self.folder / "a.pt").write_bytes(b"1")
        (self.folder / "a.bin").write_bytes(b"1")
        formats = {"auto": "a.safetensors", "safetensors": "a.safetensors",
                   "instanttensor": "a.safetensors", "pt": "a.pt", "npcache": "a.bin"}

        def digests():
            return {name: identity.folder_digest(self.folder, load_format=name) for name in formats}

        before = digests()
        self.assertEqual(identity.folder_digest(self.folder), before["auto"])
        for file in ("a.pt", "a.bin"):
            (self.folder / file).write_bytes(b"2")
            after = digests()
            changed = {name for name in formats if after[name] != before[name]}
            self.assertEqual(changed, {name for name in formats if formats[name] == file})
            before = after
        for unknown in ("tensorizer", "somebodys_own"):
            with self.assertRaisesRegex(identity.Unkeyed, unknown):
                identity.folder_digest(self.folder, load_format=unknown)

    def test_weights_are_files_of_any_format_that_vllm_loads(self):
        for suffix in ("safetensors", "bin", "pt", "pth", "gguf"):
            (self.folder / suffix).mkdir()
            file = self.folder / suffix / f"model.{suffix}"
            file.write_bytes(b"1")
            self.assertEqual(identity.weight_files(self.folder / suffix), [file])

    def test_code_is_its_name_and_its_bytes(self):
        for name in ("a.py", "b.py"):
            (self.folder / name).write_text("1")
        one, other = (identity.files_digest([self.folder / name]) for name in ("a.py", "b.py"))
        self.assertNotEqual(one, other)

    def test_no_weights_have_no_digest(self):
        with self.assertRaisesRegex(identity.Unkeyed, "no files"):
            identity.folder_digest(self.folder)

    def test_code_beside_the_weights_counts(self):
        self.write("a.safetensors", {"x": b"123"})
        one = identity.folder_digest(self.folder)
        (self.folder / "modeling.py").write_text("1")
        self.assertNotEqual(identity.folder_digest(self.folder), one)

    def test_code_of_other_repositories_counts(self):
        for name in ("own/code", "other/code"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "modeling.py").write_text(name)
        asked = []

        def digest(of, revision=None):
            def folder_of(repository):
                asked.append(repository)
                return self.folder / repository

            return identity.code_digest({"auto_map": {"AutoModel": of}}, "own/code", revision,
                                        folder_of)

        self.assertEqual(digest("modeling.Model"), "")
        self.assertEqual(digest("own/code--modeling.Model"), "", "it is beside the weights")
        self.assertEqual(asked, [])
        one = digest("other/code--modeling.Model")
        self.assertEqual(asked, ["other/code"])
        self.assertEqual(digest(["other/code--modeling.Model", None]), one)
        self.assertNotIn(digest("own/code--modeling.Model", "main"), (one, ""))
        (self.folder / "other/code/modeling.py").write_text("changed")
        self.assertNotIn(digest("other/code--modeling.Model"), (one, ""))
        inner = {"text_config": {"auto_map": {"AutoModel": "other/code--modeling.Model"}}}
        self.assertNotEqual(identity.code_digest(inner, "own/code", None,
                                                 lambda name: self.folder / name), "")
        (self.folder / "other/code/modeling.py").unlink()
        with self.assertRaisesRegex(identity.Unkeyed, "other/code"):
            digest("other/code--modeling.Model")

    def test_what_makes_pictures_of_files_counts(self):
        self.write("a.safetensors", {"x": b"123"})
        digests = [identity.folder_digest(self.folder)]
        for name in ("preprocessor_config.json", "processor_config.json",
                     "video_preprocessor_config.json"):
            (self.folder / name).write_text('{"image_mean": [0.5, 0.5, 0.5]}')
            digests.append(identity.folder_digest(self.folder))
        self.assertEqual(len(set(digests)), 4)

    def test_an_adapter_is_its_bytes_not_its_name(self):
        adapters = [identity.Adapters() for _ in range(3)]
        with self.assertRaises(identity.Unkeyed):
            adapters[0].digest(1, str(self.folder))
        self.write("adapter_model.safetensors", {"x": b"1"})
        with self.assertRaises(identity.Unkeyed):
            adapters[0].digest(1, str(self.folder))
        (self.folder / "adapter_config.json").write_text('{"r": 8}')
        one = adapters[0].digest(1, str(self.folder))
        self.assertEqual(adapters[0].digest(2, str(self.folder)), one)
        self.write("adapter_model.safetensors", {"x": b"22"})
        two = adapters[1].digest(1, str(self.folder))
        with self.assertRaisesRegex(identity.Unkeyed, "changed"):
            adapters[0].digest(1, str(self.folder))
        (self.folder / "adapter_config.json").write_text('{"r": 16}')
        self.assertEqual(len({one, two, adapters[2].digest(1, str(self.folder))}), 3)

    def test_an_adapter_is_what_it_was_when_it_was_loaded(self):
        adapters = identity.Adapters()
        adapters.loads(1, str(self.folder))  # nothing is there
        self.write("adapter_model.safetensors", {"x": b"1"})
        (self.folder / "adapter_config.json").write_text("{}")
        adapters.loads(2, str(self.folder))
        one = identity.Adapters().digest(2, str(self.folder))
        self.assertEqual(adapters.digest(2, str(self.folder)), one)
        adapters.loads(3, str(self.folder))
        self.write("adapter_model.safetensors", {"x": b"22"})
        adapters.loads(2, str(self.folder))  # vLLM has it already
        for number in (1, 2, 3):
            with self.assertRaisesRegex(identity.Unkeyed, "changed"):
                adapters.digest(number, str(self.folder))
        adapters.loads(4, str(self.folder))
        self.assertNotEqual(adapters.digest(4, str(self.folder)), one)

    def test_adapters_that_were_used_last_are_known(self):
        self.write("adapter_model.safetensors", {"x": b"1"})
        (self.folder / "adapter_config.json").write_text("{}")
        adapters = identity.Adapters(known_max=3)
        for number in (1, 2, 3, 1, 4, 5):
            adapters.digest(number, str(self.folder))
        self.write("adapter_model.safetensors", {"x": b"22"})
        for number in (1, 4, 5):
            with self.assertRaisesRegex(identity.Unkeyed, "changed"):
                adapters.digest(number, str(self.folder))
        adapters.digest(2, str(self.folder))

    def test_an_adapter_that_cannot_be_read_has_no_key(self):
        (self.folder / "adapter_config.json").write_text("{}")
        self.write("whole", {"x": b"123"})
        whole = (self.folder / "whole").read_bytes()
        file = self.folder / "adapter_model.safetensors"  # as it is while somebody writes it
        for size in range(len(whole)):
            file.write_bytes(whole[:size])
            with self.subTest(size), self.assertRaises(identity.Unkeyed):
                identity.Adapters().digest(1, str(self.folder))
        for header in ("[]", '{"x": 1}', '{"x": {}}'):
            file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
            with self.subTest(header), self.assertRaises(identity.Unkeyed):
                identity.Adapters().digest(1, str(self.folder))
        file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")  # for which is no memory
        with self.assertRaises(identity.Unkeyed):
            identity.Adapters().digest(1, str(self.folder))
        file.unlink()
        file.mkdir()
        with self.assertRaises(identity.Unkeyed):
            identity.Adapters().digest(1, str(self.folder))

    def test_some_ropes_depend_on_the_longest_prompt(self):
        for rope, depends in ((None, False), ({"rope_type": "llama3"}, False),
                              ({"type": "longrope"}, True), ({"rope_type": "dynamic"}, True)):
            self.assertEqual(identity.depends_on_length({"rope_scaling": rope}), depends)
        self.assertTrue(identity.depends_on_length(
            {"text_config": {"rope_parameters": {"rope_type": "longrope"}}}))

    def test_no_two_extras_are_encoded_the_same(self):
        values = [None, "", b"", 0, "0", [], [""], ["a", "b"], ["ab"], [["a"], "b"], ("a", 1),
                  [["a", "b"]],
                  ("a", "1"), b"a", "a", 11, [1, 1], [b"ab", b"c"], [b"a", b"bc"]]
        self.assertEqual(len({identity.encode(value) for value in values}), len(values))
        with self.assertRaises(identity.Unkeyed):
            identity.encode([1.5])

    def test_a_name_space_has_every_fact(self):
        facts = {"weights": "w", "dtype": "bf16", "rank": [0, 2], "layout": {"shape": [1]}}
        plain = identity.name_space(facts)
        self.assertEqual(plain, 'vllm plugin 1\ndtype="bf16"\nlayout={"shape": [1]}\n'
                         'rank=[0, 2]\nweights="w"\n', "stores that are filled stay so")
        self.assertEqual(identity.name_space({"a": {"x": 1, "y": 2}}),
                         identity.name_space({"a": {"y": 2, "x": 1}}))
        for name in facts:
            self.assertNotEqual(identity.name_space({**facts, name: "other"}), plain)

    def test_a_config_is_not_its_name(self):
        self.assertEqual(identity.config_digest({"a": 1, "b": {"c": 2, "d": 3}}),
                         identity.config_digest({"b": {"d": 3, "c": 2}, "a": 1}))
        one = identity.config_digest({"_name_or_path": "a", "rope_theta": 1})
        self.assertEqual(one, identity.config_digest({"_name_or_path": "b", "rope_theta": 1}))
        self.assertNotEqual(one, identity.config_digest({"_name_or_path": "a", "rope_theta": 2}))
        for name in ("name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"):
            self.assertEqual(one, identity.config_digest({"rope_theta": 1, name: "any"}), name)

    def test_options_are_the_same_in_every_process(self):
        program = textwrap.dedent("""
            import dataclasses, enum, json, sys
            from kvcake.vllm import identity
            Kind = enum.Enum("Kind", ["A", "B"])
            Spec = dataclasses.make_dataclass("Spec", ["kind", "layers"])
            print(identity.options_digest(
                {"b": Spec(Kind[sys.argv[1]], set("abcdefghijkl")), "a": [None, 0.5]}))
            """)

        def digest(kind):
            return subprocess.run([sys.executable, "-c", program, kind], check=True, text=True,
                                  stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": str(ROOT / "python")}).stdout

        self.assertEqual(digest("A"), digest("A"))
        self.assertNotEqual(digest("A"), digest("B"))
        for unknown in (object(), [lambda: 0]):
            with self.assertRaisesRegex(ValueError, "option"):
                identity.options_digest({"x": unknown})


class ConfigTest(unittest.TestCase):
    def test_reads_stores_and_options(self):
        read = config.read_config({"stores": ["/a", {"where": "/b", "load_latency_s": 0.1,
                                                      "capacity_bytes": 1e9}],
                                   "policy": "load", "load_rate": 5, "memory_bytes": 1e9})
        self.assertEqual([s.where for s in read.listed()], ["/a", "/b"])
        self.assertEqual([s.load_rate_bytes_per_s for s in read.listed()], [5.0, 5.0])
        self.assertEqual([s.load_latency_s for s in read.listed()], [0.0, 0.1])
        self.assertEqual(read.memory_bytes, 10**9)
        self.assertEqual(config.read_config({"stores": ["/a"], "look_s": 60}).look_s, 60.0)
        self.assertEqual([repr(s.capacity_bytes) for s in read.listed()], ["0", "1000000000"])
        read = config.read_config({"stores": ["/a", {"where": "/b", "load_rate_bytes_per_s": 7,
                                                      "capacity_bytes": 8}],
                                   "store_capacity_bytes": 9, "load_rate": 5})
        self.assertEqual([(s.capacity_bytes, s.load_rate_bytes_per_s) for s in read.listed()],
                         [(9, 5.0), (8, 7.0)], "a store's own go before those of all")

    def test_each_choice_is_one(self):
        for name, choices in (("policy", ("cake", "load", "compute")),
                              ("keep", ("all", "prompts", "none"))):
            for choice in choices:
                read = config.read_config({"stores": ["/a"], name: choice})
                self.assertEqual(getattr(read, name), choice)

    def test_defaults_are_those_that_users_read(self):
        page, read = (ROOT / "docs/vllm.md").read_text(), config.Config()
        told = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", page, flags=re.M))
        self.assertEqual({one.name: told[one.name] for one in dataclasses.fields(read)}, {
            "stores": "", "policy": f"`{read.policy}`", "keep": f"`{read.keep}`",
            "memory_bytes": f"{read.memory_bytes / (1 << 30):g} GiB",
            "store_capacity_bytes": f"{read.store_capacity_bytes or 20} GiB",
            "store_ttl_s": f"{read.store_ttl_s:g}", "stall_timeout_s": f"{read.stall_timeout_s:g}",
            "look_s": f"{read.look_s:g}", "load_rate": f"{read.load_rate:g}",
            "weights_id": read.weights_id,
            "experimental_cuda": "true" if read.experimental_cuda else "false"})

    def test_what_it_does_not_know_is_named(self):
        for given, name in (({"stores": ["/a"], "polciy": "cake"}, "polciy"),
                            ({"stores": ["/a"], "policy": "fast"}, "policy"),
                            ({"stores": "/a"}, "stores"), ({}, "directory"),
                            ({"stores": [{"were": "/a"}]}, "were"),
                            ({"stores": ["/a"], "memory_bytes": "1G"}, "memory_bytes"),
                            ({"stores": ["/a"], "experimental_cuda": 1}, "experimental_cuda"),
                            ({"stores": ["/a"], "load_rate": -1}, "load_rate"),
                            ({"stores": ["/a"], "memory_bytes": True}, "memory_bytes"),
                            ({"stores": ["/a"], "load_rate": float("inf")}, "load_rate"),
                            ({"stores": ["/a"], "memory_bytes": float("nan")}, "memory_bytes"),
                            ({"stores": ["/a"], "memory_bytes": 1 << 64}, "memory_bytes"),
                            ({"stores": ["/a"], "memory_bytes": 0.5}, "memory_bytes"),
                            ({"stores": ["/a"], "look_s": -1}, "look_s.*a number from 0 to 60"),
                            ({"stores": ["/a"], "look_s": 60.1}, "look_s is 60.1.* 0 to 60"),
                            ({"stores": ["/a"], "look_s": 1e11}, "look_s"),
                            ({"stores": [{"capacity_bytes": 1}]}, "where"),
                            ({"stores": [{"where": 1}]}, "where"),
                            ({"stores": [1]}, "directory"),
                            ({"stores": [{"where": "/a", "capacity_bytes": -1}]},
                             "capacity_bytes"),
                            ({"stores": [{"where": "/a", "capacity_bytes": "1G"}]},
                             "capacity_bytes"),
                            ({"stores": [{"where": "/a", "load_latency_s": None}]},
                             "load_latency_s")):
            with self.assertRaisesRegex(ValueError, name):
                config.read_config(given)

    def test_where_a_store_is_is_said_without_its_secrets(self):
        for where, shown in (("/a@b?codec=lossless", "/a@b?codec=lossless"),
                             ("redis://u:p@host:1/0", "redis://***@host:1/0"),
                             ("redis://u:p@q@host", "redis://***@host"),
                             ("rediss+cluster://:p%40@host", "rediss+cluster://***@host")):
            self.assertEqual(config.shown(Store(where)), shown)

    def test_a_directory_is_told_from_a_server(self):
        for where, folder in (("/a?codec=lossless", "/a"), ("a%3Fb%3fc", "a?b?c"),
                              ("redis+cluster://host/0", None), ("s3://bucket/a", None)):
            self.assertEqual(config.folder_of(Store(where)), folder and pathlib.Path(folder))

    def test_an_unknown_vllm_is_refused_by_name(self):
        for version in ("0.31.0", "0.32.0", "0.32.1+cpu"):
            config.check_version(version, {})
        for version in ("0.30.2", "0.33.0", "1.32.0"):
            with self.assertRaisesRegex(RuntimeError, version.replace(".", "\\.")):
                config.check_version(version, {})
            with self.assertRaises(RuntimeError):
                config.check_version(version, {"KVCAKE_VLLM_ANY": "0"})
            config.check_version(version, {"KVCAKE_VLLM_ANY": "1"})


if __name__ == "__main__":
    unittest.main()
