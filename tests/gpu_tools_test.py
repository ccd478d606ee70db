"""Profiles from measured slices, and what tools/gpu_check hands back."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
KVCAKE = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "tools"))
import fit_slices  # noqa: E402
import gpu_results  # noqa: E402


class FitTest(unittest.TestCase):
    def test_finds_the_machine_that_made_the_times(self):
        c0, g, b, a = 1e-3, 2e-8, 3e-5, 4e-10
        slices = [{"prefix": L, "tokens": x, "seconds": [9, s, 0]} for L in (0, 1000, 30000)
                  for x in (128, 512, 2048)
                  for s in [c0 + g * L + b * x + a * (2 * L * x + x * x)]]
        made = fit_slices.profile({"model": "dir/m", "device": "card", "layers": 2, "slices": slices,
                                   "kv_bytes_per_token": 256, "max_positions": 32768})
        for name, value in (("c0", c0), ("g", g), ("b", b), ("a", a)):
            self.assertAlmostEqual(made[name] / value, 1, 3)
        self.assertLess(made["fit"]["worst_error"], 1e-3)

    def test_a_measured_machine_is_one_that_can_be_emulated(self):
        with tempfile.TemporaryDirectory() as name:
            out = pathlib.Path(name)
            run = lambda *command: subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            kvcake = KVCAKE.split()
            run(*kvcake, "model", "synth", "--arch", "tiny", "--out", out / "tiny")
            run(*kvcake, "bench", "slices", "--model", out / "tiny", "--prefix", "0", "1024",
                "--tokens", "128", "512", "--repeats", "1", "--json", out / "slices.json")
            run(sys.executable, ROOT / "tools" / "fit_slices.py", out / "slices.json", "--out",
                out / "profiles")
            (profile,) = (out / "profiles").iterdir()
            self.assertTrue(profile.name.endswith("-tiny.json"))
            answer = json.loads(run(*kvcake, "run", "--emulate", profile, "--prompt", "a" * 300,
                                    "--max-tokens", "1", "--json"))
            self.assertEqual(len(answer["tokens"]), 1)


class ResultsTest(unittest.TestCase):
    def test_merges_what_the_steps_left(self):
        with tempfile.TemporaryDirectory() as name:
            out = pathlib.Path(name)
            (out / "device.csv").write_text("name, driver_version, memory.total [MiB]\n"
                                            "NVIDIA X, 1.2, 81559 MiB\n")
            (out / "steps.tsv").write_text("ops\tok\t3\nprefill\tfailed\t7\n")
            (out / "decode.json").write_text('[{"model": "m"}]')
            (out / "prefill.json").write_text('[{"cut sho')
            results = gpu_results.merge(out)
            self.assertEqual(results["card"], "NVIDIA X")
            self.assertEqual(results["driver"], "1.2")
            self.assertEqual(results["steps"]["prefill"], {"outcome": "failed", "seconds": 7})
            self.assertEqual(results["decode"], [{"model": "m"}])
            self.assertNotIn("prefill", results)

    def test_papers_cells_stand_beside_ours_at_the_nearest_ratio(self):
        cells = gpu_results.paper_cells()
        self.assertGreater(len(cells), 100)
        near = gpu_results.nearest(cells, 1.0)
        self.assertLess(abs(near["ratio"] - 1), 0.1)
        # Two lanes of a paper's table: 1/x_io + 1/x_compute is about 1.
        self.assertLess(abs(near["overlap"] - 1), 0.3)


if __name__ == "__main__":
    unittest.main()
