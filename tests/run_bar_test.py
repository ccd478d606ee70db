"""What `kvcake run` draws in a terminal while it restores a prompt."""
import contextlib
import os
import re
import subprocess
import tempfile
import unittest

from server_fixture import MODEL, PROGRAM

PROMPT = " ".join(f"Sentence {i} says that {i * i} is the square of {i}." for i in range(160))
WIDTH = 50


class BarTest(unittest.TestCase):
    def run_in_terminal(self, *flags):
        """All that it says on stderr, which is one."""
        terminal, stderr = os.openpty()
        self.addCleanup(os.close, terminal)
        with subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *PROGRAM.split(), "run", "--model", MODEL,
                 "--threads", "1", "--ram-capacity", "64MiB", "--max-tokens", "1", *flags, "--prompt",
                 PROMPT], stdout=subprocess.DEVNULL, stderr=stderr) as process:
            os.close(stderr)
            said = b""
            with contextlib.suppress(OSError):  # a terminal's end
                while read := os.read(terminal, 1 << 16):
                    said += read
        self.assertEqual(process.returncode, 0, said)
        return said.decode()

    def bars(self, said):
        """[(computed, loaded)] of each, which is drawn to scale."""
        total = int(re.search(r"(\d+) prompt tokens: ", said)[1])
        drawn = []
        for computed, open_, loaded, *figures in re.findall(
                r"\r\[(#*)(\.*)(=*)\] computed (\d+) loaded (\d+) of (\d+) tokens", said):
            numbers = [int(figure) for figure in figures]
            self.assertEqual(numbers[2], total)
            self.assertEqual(len(computed) + len(open_) + len(loaded), WIDTH)
            self.assertLessEqual(abs(len(computed) - WIDTH * numbers[0] / total), 1)
            self.assertLessEqual(abs(len(loaded) - WIDTH * numbers[1] / total), 1)
            drawn.append(tuple(numbers[:2]))
        self.assertTrue(drawn, said)
        self.assertIn("\r\x1b[K", said)  # and then wiped
        return drawn

    def test_computed_from_the_left_and_loaded_from_the_right(self):
        with tempfile.TemporaryDirectory() as store:
            flags = ("--store", store, "--policy")
            bars = self.bars(self.run_in_terminal(*flags, "compute"))
            self.assertEqual({loaded for _, loaded in bars}, {0})
            self.assertGreater(bars[-1][0], 0)
            bars = self.bars(self.run_in_terminal(*flags, "load", "--load-rate", "8MB"))
            self.assertEqual({computed for computed, _ in bars}, {0})
            self.assertGreater(bars[-1][1], 0)


if __name__ == "__main__":
    unittest.main()
