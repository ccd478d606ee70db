"""The Python package `kvcake` over libkvcake: python_library_test.py PATH/libkvcake.so"""
import ctypes
import logging
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
from damage import flip  # noqa: E402
import kvcake  # noqa: E402
from kvcake import _library  # noqa: E402

HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "src/lib/kvcake.h").read_text(), flags=re.S)
LAYERS, CHUNK_TOKENS, SLAB = 3, 4, 1000


class BindingTest(unittest.TestCase):
    def test_every_call_is_bound_with_its_arguments(self):
        declared = {}
        for returns, name, arguments in re.findall(
                r"KVCAKE_API ([\w ]+\*?) ?(kvcake_\w+)\(([^;]*)\);", HEADER):
            declared[name] = (returns, [a.strip() for a in arguments.split(",")]
                              if arguments != "void" else [])
        self.assertGreater(len(declared), 20)
        self.assertEqual(set(declared), set(_library.CALLS))
        kinds = {"int": ctypes.c_int, "const char*": ctypes.c_char_p}
        numbers = {"int": ctypes.c_int, "size_t": ctypes.c_size_t, "double": ctypes.c_double,
                   "int32_t": _library.Int32, "kvcake_cache": ctypes.c_uint64,
                   "kvcake_restoration": ctypes.c_uint64, "kvcake_chunk": ctypes.c_uint64}
        for name, (returns, arguments) in declared.items():
            bound_returns, *bound = _library.CALLS[name]
            self.assertIs(bound_returns, kinds[returns.strip()], name)
            self.assertEqual(len(bound), len(arguments), name)
            for argument, kind in zip(arguments, bound):
                declared_type = argument.rsplit(" ", 1)[0]
                if declared_type in numbers:
                    self.assertIs(kind, numbers[declared_type], f"{name}: {argument}")
                else:  # a pointer, or a function
                    self.assertEqual(ctypes.sizeof(kind), ctypes.sizeof(ctypes.c_void_p),
                                     f"{name}: {argument}")
                    self.assertNotIn(kind, numbers.values(), f"{name}: {argument}")

    def test_structures_are_as_large_as_the_library_has_them(self):
        sizes = dict(line.split() for line in (ROOT / "tests/library_abi.txt").read_text()
                     .splitlines() if "@" not in line)
        self.assertEqual({name: str(ctypes.sizeof(kind))
                          for name, kind in _library.STRUCTURES.items()}, sizes)

    def test_fields_are_in_the_headers_order(self):
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", HEADER, flags=re.S):
            declared = [re.search(r"(\w+)(\[\d+\])?\s*$", field)[1]
                        for field in body.split(";") if field.strip()]
            self.assertEqual([field[0] for field in _library.STRUCTURES[name]._fields_], declared)

    def test_it_imports_nothing_that_is_not_pythons_own(self):
        script = ("import sys; before = set(sys.modules); import kvcake; "
                  "print(*{m.split('.')[0] for m in set(sys.modules) - before})")
        made = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")}).stdout
        others = set(made.decode().split()) - set(sys.stdlib_module_names)
        self.assertEqual(others, {"kvcake"})


class CacheTest(unittest.TestCase):
    def setUp(self):
        self._dir = tempfile.TemporaryDirectory()
        self.addCleanup(self._dir.cleanup)

    def open(self, **options):
        cache = kvcake.Cache("test", layers=LAYERS, chunk_tokens=CHUNK_TOKENS, slab_bytes=SLAB,
                             stores=[kvcake.Store(self._dir.name)], memory_bytes=1 << 20,
                             write_queue_share=1.0, **options)
        return cache

    def keep(self, chunks):
        with self.open() as cache:
            keys = self.keys(cache, chunks)
            for i in range(chunks):
                data = ctypes.create_string_buffer(self.content(i), LAYERS * SLAB)
                self.assertTrue(cache.put(keys[i + 1], keys[i], i, ctypes.addressof(data)))
            cache.flush()
            self.assertEqual(cache.stats().writes_written, chunks)

    @staticmethod
    def keys(cache, chunks):
        root = cache.root(b"salt")
        return [root, *cache.keys(root, [7] * CHUNK_TOKENS * chunks)]

    @staticmethod
    def content(chunk):
        return bytes((chunk + i) % 251 for i in range(LAYERS * SLAB))

    def restore(self, cache, keys, policy="cake"):
        """How many chunks were loaded, and computed."""
        with cache.begin(keys[0], keys[1:], policy=policy) as restoration:
            while (turn := restoration.claim_front(4)).kind != "done":
                if turn.kind == "wait":
                    cache.wait(turn.wait_s)
                else:
                    restoration.computed(turn.count, 1e-3 * turn.count)
            loaded = 0
            for i in range(len(keys) - 1):
                if chunk := restoration.acquire(i):
                    slabs = b"".join(ctypes.string_at(chunk.address + layer * chunk.stride, SLAB)
                                     for layer in range(LAYERS))
                    self.assertEqual(slabs, self.content(i))
                    chunk.release()
                    loaded += 1
            return loaded, restoration.progress().computed

    def test_what_was_put_is_restored(self):
        self.keep(12)
        with self.open() as cache:
            keys = self.keys(cache, 12)
            self.assertEqual(cache.lookup(keys[1:], 5.0), b"\2" * 12)
            self.assertEqual(sum(self.restore(cache, keys)), 12)

    def test_errors_say_what_is_wrong(self):
        with self.assertRaisesRegex(kvcake.Error, "slab_bytes") as raised:
            kvcake.Cache("test", layers=1, chunk_tokens=4, slab_bytes=0)
        self.assertEqual(raised.exception.status, 1)
        with self.open() as cache:
            for wrong in (b"short", bytes(33)):
                with self.assertRaisesRegex(ValueError, "32 bytes"):
                    cache.keys(wrong, [1] * 4)
            with self.assertRaisesRegex(kvcake.Error, "no slice is claimed"):
                keys = self.keys(cache, 2)
                with cache.begin(keys[0], keys[1:]) as restoration:
                    restoration.computed(1)
        with self.assertRaisesRegex(kvcake.Error, "no such cache"):
            cache.stats()

    def test_errors_go_from_one_process_to_another(self):
        """As a pool of processes has them, whose parent waits for ever for what it cannot read."""
        sent = pickle.loads(pickle.dumps(kvcake.Error(6, "full: out of memory")))
        self.assertEqual((type(sent), sent.status, str(sent)),
                         (kvcake.Error, 6, "full: out of memory"))

    def test_numbers_that_their_fields_cannot_hold_are_errors(self):
        for options in ({"layers": 2**32 + 4}, {"memory_bytes": -1}, {"slab_bytes": 2**64 + 1000},
                        {"stores": [kvcake.Store(self._dir.name, capacity_bytes=-5)]}):
            with self.assertRaisesRegex(ValueError, list(options)[0].replace("stores", "capacity")):
                kvcake.Cache("test", **{"layers": 1, "slab_bytes": 1000, **options})

    def test_arguments_that_do_not_fit_are_errors(self):
        self.keep(1)
        with self.open() as cache:
            keys = self.keys(cache, 1)
            with self.assertRaisesRegex(ValueError, "'fast', and may be one of .*'cake'"):
                cache.begin(keys[0], keys[1:], policy="fast")
            with cache.begin(keys[0], keys[1:], policy="load") as restoration:
                for call in (restoration.acquire, restoration.claim_front):
                    with self.assertRaisesRegex(ctypes.ArgumentError, "has more than 32 bits"):
                        call(1 << 32 | 1)
            slabs = [ctypes.addressof(ctypes.create_string_buffer(SLAB))] * LAYERS
            with self.assertRaisesRegex(ValueError, "position"):
                cache.put_async(keys[1:], keys[0], 1 << 32, [slabs])

    def test_chunks_of_a_restoration_that_has_ended_are_an_error(self):
        self.keep(1)
        with self.open() as cache:
            keys = self.keys(cache, 1)
            with cache.begin(keys[0], keys[1:], policy="load") as restoration:
                pass
            with self.assertRaisesRegex(kvcake.Error, "no such restoration"):
                restoration.acquire(0)

    def test_chunks_have_the_librarys_tokens_where_nothing_is_said(self):
        default = int(re.search(r"chunk_tokens; +/\* default: (\d+)",
                                (ROOT / "src/lib/kvcake.h").read_text())[1])
        for options in ({}, {"chunk_tokens": 0}):
            with kvcake.Cache("test", layers=1, slab_bytes=1000, **options) as cache:
                self.assertEqual(cache.chunk_tokens, default)
                self.assertEqual(len(cache.keys(cache.root(), range(3 * default))), 3)
                page = 2 * 4096  # a header, and a slab
                self.assertEqual(cache.stats().memory_chunks, (1 << 30) // page)

    def test_an_error_inside_is_not_hidden_by_chunks_that_are_held(self):
        self.keep(1)
        cache, held = self.open(), []
        with self.assertRaises(ZeroDivisionError), cache:
            keys = self.keys(cache, 1)
            with cache.begin(keys[0], keys[1:], policy="load") as restoration:
                while restoration.claim_front(1).kind != "done":
                    cache.wait(1.0)
                held.append(restoration.acquire(0))
                1 / 0
        with self.assertRaisesRegex(kvcake.Error, "busy"), cache:
            pass
        with held[0] as chunk:
            self.assertEqual(ctypes.string_at(chunk.address, 4), self.content(0)[:4])
        cache.close()

    def test_what_is_too_short_is_not_read_behind_its_end(self):
        with self.open() as cache:
            root, *keys = self.keys(cache, 2)
            for wrong in ([keys[0], b"short"], [keys[0][:31], keys[1] + b"x"]):
                with self.assertRaisesRegex(ValueError, "32 bytes"):
                    cache.lookup(wrong)
                with self.assertRaisesRegex(ValueError, "32 bytes"):
                    cache.begin(root, wrong)
            data = ctypes.create_string_buffer(SLAB)
            slabs = [ctypes.addressof(data)] * LAYERS
            for parts in ([slabs], [slabs, slabs[1:]], [slabs, slabs, slabs]):
                with self.assertRaisesRegex(ValueError, "parts"):
                    cache.put_async(keys, root, 0, parts)
            self.assertEqual(cache.put_wait(), (0, 0))
            cache.put_async(keys, root, 0, [slabs, slabs])
            self.assertEqual(cache.put_wait(), (2, 0))

    def test_a_name_ends_where_it_ends(self):
        for name, options in (("a\0b", {}), ("a", {"stores": [kvcake.Store("a\0b")]}),
                              ("a", {"device": "a\0b"})):
            with self.assertRaisesRegex(ValueError, "null"):
                kvcake.Cache(name, layers=1, chunk_tokens=4, slab_bytes=4, **options)

    def test_a_part_of_a_chunk_has_no_key(self):
        with self.open() as cache:
            root = cache.root()
            whole = cache.keys(root, [1] * CHUNK_TOKENS)
            self.assertEqual(cache.keys(root, [1] * (2 * CHUNK_TOKENS - 1)), whole)
            self.assertEqual(cache.keys(root, [1] * (CHUNK_TOKENS - 1)), [])

    def test_extras_and_salts_part_keys(self):
        with self.open() as cache:
            root = cache.root()
            plain = cache.keys(root, [1] * CHUNK_TOKENS)
            self.assertNotEqual(plain, cache.keys(cache.root(b"x"), [1] * CHUNK_TOKENS))
            self.assertNotEqual(plain, cache.keys(cache.extend_key(root, b"image"),
                                                  [1] * CHUNK_TOKENS))
            for part in (cache.root, lambda extra: cache.extend_key(root, extra)):
                self.assertEqual(len(set(map(part, (b"a", b"ab", b"ac", b"a\0b", b"a\0c")))), 5)

    def test_warnings_go_to_a_logger(self):
        self.keep(1)
        (chunk,) = [p for p in pathlib.Path(self._dir.name).rglob("*")
                    if len(p.name) == 64 and p.is_file()]
        flip(chunk, 5000)
        logger = logging.getLogger("kvcake.test")
        kvcake.set_log(logger)
        self.addCleanup(kvcake.set_log, None)
        with self.assertLogs(logger, logging.WARNING) as logged, self.open() as cache:
            # Computing alone would be done before the chunk has been read.
            self.assertEqual(self.restore(cache, self.keys(cache, 1), policy="load"), (0, 1))
        self.assertEqual({record.levelno for record in logged.records}, {logging.WARNING})

    def test_threads_do_not_log_into_an_interpreter_that_ends(self):
        script = ("import logging, unittest.mock, kvcake; "
                  "kvcake.set_log(logging.getLogger()); "
                  "lib = unittest.mock.patch('kvcake.cache._lib').start(); "
                  "lib.kvcake_set_log.side_effect = lambda write, _: print(bool(write)) or 0")
        made = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")}).stdout
        self.assertEqual(made.decode().split(), ["False"])


class ToldTest(unittest.TestCase):
    """What a library that is played is told."""

    def setUp(self):
        patch = unittest.mock.patch("kvcake.cache._lib")
        self.library = patch.start()
        self.addCleanup(patch.stop)
        self.told = None
        for name in _library.CALLS:
            getattr(self.library, name).side_effect = self.tell

    def tell(self, *arguments):
        self.told = [getattr(argument, "_obj", argument) for argument in arguments]
        return _library.OK

    def cache(self, **options):
        return kvcake.Cache("name", layers=3, slab_bytes=5, **options)

    @staticmethod
    def bytes_of(*keys):
        return [bytes(key.bytes) for key in keys]

    def test_every_option(self):
        stores = [kvcake.Store("/a"), kvcake.Store("/b", 7, 11.0, 0.5)]
        self.cache(chunk_tokens=13, stores=stores, memory_bytes=17, write_queue_share=0.25,
                   store_ttl_s=19.0, stall_timeout_s=23.0, device="card")
        options = self.told[0]
        told = {name: getattr(options, name) for name, _ in _library.Options._fields_
                if name not in ("struct_size", "stores")}
        self.assertEqual(told, {
            "name_space": b"name", "layers": 3, "chunk_tokens": 13, "slab_bytes": 5,
            "store_count": 2, "memory_bytes": 17, "write_queue_share": 0.25, "store_ttl_s": 19.0,
            "stall_timeout_s": 23.0, "device": b"card"})
        self.assertEqual([(one.where, one.capacity_bytes, one.load_rate_bytes_per_s,
                           one.load_latency_s) for one in options.stores[:2]],
                         [(b"/a", 0, 0.0, 0.0), (b"/b", 7, 11.0, 0.5)])

    def test_every_argument(self):
        cache, (parent, one, two) = self.cache(), (bytes([i]) * 32 for i in range(3))
        cache.lookup([one, two], 0.5)
        self.assertEqual(self.told[2:4], [2, 0.5])
        cache.learn(256, 128, 0.5)
        self.assertEqual(self.told[1:], [256, 128, 0.5])
        cache.wait(0.5)
        self.assertEqual(self.told[1:], [0.5])
        restoration = cache.begin(parent, [one, two], policy="load", slice_chunks_max=3)
        request = self.told[1]
        self.assertEqual((request.key_count, request.policy, request.slice_chunks_max),
                         (2, _library.POLICIES["load"], 3))
        self.assertEqual(self.bytes_of(*request.keys[:2], request.parent[0]), [one, two, parent])
        restoration.claim_front(4, 0.25)
        self.assertEqual(self.told[1:3], [4, 0.25])
        restoration.computed(2, 0.5)
        self.assertEqual(self.told[1:], [2, 0.5])
        self.assertTrue(cache.put(one, parent, 6, 4096, 128))
        write = self.told[1]
        self.assertEqual(self.bytes_of(write.key, write.parent), [one, parent])
        self.assertEqual((write.position, write.data, write.stride), (6, 4096, 128))
        cache.put_async([one, two], parent, 6, [[1, 2, 3], [4, 5, 6]])
        writes = self.told[1]
        self.assertEqual([(*self.bytes_of(w.key, w.parent), w.position) for w in writes],
                         [(one, parent, 6), (two, one, 7)])

    def test_every_answer(self):
        def put_wait(_, kept, dropped):
            kept._obj.value, dropped._obj.value = 2, 1
            return _library.OK

        def claim(*arguments):
            turn = arguments[-1]._obj
            turn.kind, turn.first, turn.count, turn.wait_s = _library.TURN_WAIT, 3, 4, 0.5
            return _library.OK

        cache = self.cache()
        self.library.kvcake_put_wait.side_effect = put_wait
        self.assertEqual(cache.put_wait(), (2, 1))
        restoration = cache.begin(bytes(32), [])
        self.library.kvcake_claim.side_effect = self.library.kvcake_claim_front.side_effect = claim
        self.assertEqual(restoration.claim(1), ("wait", 3, 4, 0.5))
        self.assertEqual(restoration.claim_front(1), ("wait", 3, 4, 0.5))

    def test_every_call_that_fails(self):
        cache, key = self.cache(), bytes(32)
        restoration = cache.begin(key, [key])
        chunk = restoration.acquire(0)
        for name, (returns, *_) in _library.CALLS.items():
            if returns is ctypes.c_int:
                getattr(self.library, name).side_effect = lambda *arguments: _library.TIMEOUT
        self.library.kvcake_status_name.side_effect = lambda status: b"timeout"
        self.library.kvcake_last_error.side_effect = lambda: b""
        for call in (cache.flush, cache.close, cache.put_wait, cache.stats, cache.root,
                     lambda: cache.wait(1.0), lambda: cache.learn(0, 1, 1.0),
                     lambda: cache.keys(key, [1]), lambda: cache.lookup([key]),
                     lambda: cache.extend_key(key, b""), lambda: cache.begin(key, [key]),
                     lambda: cache.put(key, key, 0, 4096), lambda: kvcake.set_log(None),
                     lambda: cache.put_async([key], key, 0, [[1, 2, 3]]), self.cache,
                     restoration.end, restoration.progress, lambda: restoration.claim(1),
                     lambda: restoration.claim_front(1), lambda: restoration.computed(1),
                     lambda: restoration.acquire(0), chunk.release):
            with self.assertRaisesRegex(kvcake.Error, "^timeout$") as raised:
                call()
            self.assertEqual(raised.exception.status, _library.TIMEOUT)

    def test_messages_have_the_levels_of_the_logger(self):
        self.addCleanup(setattr, kvcake.cache, "_log_function", kvcake.cache._log_function)
        kvcake.set_log(logging.getLogger("kvcake.test"))
        write = self.told[0]
        with self.assertLogs("kvcake.test", 1) as logged:
            for level in (1, 2, 3, 4, 5, 99):
                write(None, level, b"\xff")
        self.assertEqual([record.levelname for record in logged.records],
                         ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "ERROR"])
        kvcake.set_log(None)
        self.assertFalse(self.told[0])

    def test_a_chunk_that_there_is_no_memory_for_is_told_of(self):
        cache = self.cache()
        self.library.kvcake_put.side_effect = lambda *arguments: _library.FULL
        self.assertFalse(cache.put(bytes(32), bytes(32), 0, 4096))


if __name__ == "__main__":
    unittest.main()
