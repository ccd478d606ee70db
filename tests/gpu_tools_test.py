"""Profiles from measured slices, and what tools/gpu_check hands back."""
import contextlib
import io
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
        # Loading alone took 1.87 times as long as Cake, and computing 2.18 times.
        first = cells[0]
        self.assertEqual((first["table"], first["gbps"]), (3, "7"))
        self.assertAlmostEqual(first["ratio"], 1.87 / 2.18)
        self.assertAlmostEqual(first["overlap"], 1 / 1.87 + 1 / 2.18)
        self.assertAlmostEqual(first["against_better"], 1 / 1.87)
        for ratio in (0.1, 0.5, 3, 20):
            near = gpu_results.nearest(cells, ratio)["ratio"]
            apart = max(near / ratio, ratio / near)
            for cell in cells:
                self.assertLessEqual(apart, max(cell["ratio"] / ratio, ratio / cell["ratio"]))

    def test_the_tables_have_each_figure_in_its_place(self):
        def printed(of, what):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                of(what)
            return out.getvalue().splitlines()

        speeds = printed(gpu_results.print_speeds, {
            "prefill": [{"model": "m", "tokens": 512, "tok_per_s": 1000.4, "share_of_peak": 0.725}],
            "transformers": {"rows": [
                {"model": "m", "tokens": 512, "kvcake_over_this": 1.25},
                {"model": "m", "tokens": 1024, "kvcake_over_this": None}]},
            "decode": [{"measure": "decode", "model": "m", "sequences": 4, "tok_per_s": 90,
                        "share_of_roofline": 0.875, "limit": "memory"},
                       {"measure": "mixed", "model": "m"}],
            "load": [{"op": "read", "chunk_bytes": 4 << 20, "bytes_per_s": 3e9,
                      "fio_bytes_per_s": 4e9},
                     {"op": "to device", "chunk_bytes": 1 << 20, "bytes_per_s": 2e9,
                      "plain_bytes_per_s": 1e9},
                     {"op": "beside", "bytes_per_s": 1e9, "source": "the disk",
                      "slowdown": 1.04}]})
        self.assertEqual(speeds, [
            "prefill m 512: 1000 tokens/s, 72.5% of the matmul rate (goal 70%)",
            "prefill m 512: 1.25 x transformers (goal 1.2)",
            "decode m batch 4: 90 tokens/s, 87.5% of the bound by memory (goal 85%)",
            "read 4 MiB: 3.00 GB/s, 75.0% of fio", "to device 1 MiB: 2.00 GB/s, 200.0% of plain",
            "a slice beside loads from the disk: 1.040 times as long (goal below 1.05)"])
        row = {"model": "m", "context": 8192, "compute_share": 1, "link_gbit": 7, "policy": "cake",
               "ratio": 1.87 / 2.18, "ttft_s": 2, "efficiency": 0.75, "against_better": 0.5,
               "overlap": 1.125}
        lines = printed(gpu_results.print_cake, [
            row, {**row, "policy": "load", "efficiency": 0.1},
            {**row, "efficiency": 0.5, "against_better": 0.875}])
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[1].split(), ["m", "8192", "1", "7", "0.858", "2.000", "0.750",
                                            "0.50", "1.12", "|", "0.858", "0.53", "0.99"])
        self.assertEqual(lines[3], "bound/cake: mean 0.625 (goal 0.95), least 0.500 (0.90); most of "
                                   "the better lane 0.875 (1.02)")


if __name__ == "__main__":
    unittest.main()
