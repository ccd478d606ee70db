"""That tools/check_layers notices each thing that it checks, in a tree of one fault."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parent.parent / "tools" / "check_layers"


class CheckLayersTest(unittest.TestCase):
    def checked(self, files):
        """What it says of a tree of these files, and its exit code."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for folder in ("tools", "src/base", "src/kv", "src/store", "app", "bench"):
                (root / folder).mkdir(parents=True)
            shutil.copy(CHECK, root / "tools")
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            done = subprocess.run([sys.executable, root / "tools" / "check_layers"], check=False,
                                  stdout=subprocess.PIPE)
        return done.returncode, done.stdout.decode().splitlines()

    def test_a_good_tree_passes(self):
        code, lines = self.checked({
            "src/store/a.cc": '#include "kv/b.h"\n#include "base/c.h"\n',
            "src/store/a_test.cc": '#include "base/c_testing.h"\n#include "sim/d.h"\n',
            "src/base/mutex.h": "std::mutex mutex_;\n",
            "bench/e.cc": '#include "server/f.h"\n#include "sim/g.h"\n#include "base/h.h"\n',
            "bench/e.csv": "1\n", "src/base/testdata/made": "",
            "src/base/long.cc": "\n" * 500,
            "src/base/made.cc": "// Made by a tool\n" + "\n" * 600})
        self.assertEqual((code, lines),
                         (0, ["layers: 5 rooms, all includes point down, clang sees locks"]))

    def test_each_fault_is_told(self):
        for path, text, said in (
                ("src/kv/a.cc", '\n#include "store/b.h"\n',
                 "src/kv/a.cc:2: kv may not include store"),
                ("src/base/a.h", '#include "kv/b.h"\n', "src/base/a.h:1: base may not include kv"),
                ("src/kv/a.cu", '#include "base/b.h"\n#include "ops/b.cuh"\n',
                 "src/kv/a.cu:2: kv may not include ops"),
                ("src/kv/deep/a.cuh", '#include "io/b.h"\n',
                 "src/kv/deep/a.cuh:1: kv may not include io"),
                ("bench/a_test.cc", '#include "app/b.h"\n',
                 "bench/a_test.cc:1: bench may not include app"),
                ("src/store/a.cc", '#include "sim/b.h"\n',
                 "src/store/a.cc:1: store may not include sim"),
                ("src/store/a.cc", '#include "base/b_testing.h"\n',
                 "src/store/a.cc:1: b_testing.h is for tests"),
                ("src/store/a.cc", "std::lock_guard lock(m);\n",
                 "src/store/a.cc:1: std::lock_guard: base/mutex.h has what clang checks"),
                ("app/a.cc", "std::shared_mutex m;\n",
                 "app/a.cc:1: std::shared_mutex: base/mutex.h has what clang checks"),
                ("src/base/a.cc", "\n" * 501,
                 "src/base/a.cc: 501 lines, over 500: it wants a wall"),
                ("src/room/a.cc", "", "src/room: not in ROOMS of tools/check_layers"),
                ("bench/a.deb", "", "bench/a.deb: no source, and no text beside it")):
            self.assertEqual(self.checked({path: text}), (1, [said]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])  # the program that tests are given has no part in it
