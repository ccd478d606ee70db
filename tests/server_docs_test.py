"""The examples of docs/serving.md, run as they stand but for the port."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from server_fixture import PROGRAM, ROOT, ServerTest

BLOCKS = re.findall(r"^```(\w+)( server)?\n(.*?)^```$", (ROOT / "docs" / "serving.md").read_text(),
                    re.MULTILINE | re.DOTALL)
UNIT = ROOT / "packaging" / "kvcake.service"


class DocsTest(ServerTest):
    def examples(self, language):
        found = [text for kind, server, text in BLOCKS if kind == language and not server]
        self.assertTrue(found)
        return [text.replace("http://127.0.0.1:8000", self.server.url) for text in found]

    def test_shell(self):
        for text in self.examples("sh"):
            for command in re.split(r"^(?=curl )", text, flags=re.MULTILINE)[1:]:
                out = subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True,
                                     stdout=subprocess.PIPE).stdout.decode()
                self.assertTrue(out, command)
                self.assertNotIn('"error"', out, command)

    def test_python(self):
        for text in self.examples("python"):
            out = subprocess.run([sys.executable, "-c", text], check=True,
                                 stdout=subprocess.PIPE).stdout.decode()
            self.assertIn("tokens were not computed", out)

    def test_flags(self):
        """Every flag that the page names is one."""
        usage = subprocess.run([*PROGRAM.split(), "serve", "--help"], check=True,
                               stdout=subprocess.PIPE).stdout.decode()
        page = (ROOT / "docs" / "serving.md").read_text().replace("--retry-connrefused", "")
        for flag in set(re.findall(r"`(--[a-z-]+)", page)):
            self.assertIn(flag, usage)
        for _, server, text in BLOCKS:
            if server:
                for flag in re.findall(r"--[a-z-]+", text):
                    self.assertIn(flag, usage)

    def test_the_unit_is_the_one_that_is_installed(self):
        (unit,) = self.examples("ini")
        self.assertEqual(unit, UNIT.read_text())
        usage = subprocess.run([*PROGRAM.split(), "serve", "--help"], check=True,
                               stdout=subprocess.PIPE).stdout.decode()
        commands = " ".join(re.findall("KVCAKE_FLAGS=.*|ExecStart=.*", unit))
        for flag in re.findall(r"--[a-z-]+", commands):
            self.assertIn(flag, usage)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd-analyze")
    def test_systemd(self):
        unit = UNIT.read_text()
        with tempfile.TemporaryDirectory() as where:
            path = where + "/kvcake.service"
            with open(path, "w", encoding="utf-8") as file:
                file.write(unit.replace("/usr/bin/kvcake", os.path.abspath(PROGRAM.split()[0])))
            subprocess.run(["systemd-analyze", "verify", "--man=no", path], check=True)


if __name__ == "__main__":
    unittest.main()
