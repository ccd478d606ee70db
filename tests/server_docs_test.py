"""What pages say of the program: the examples of docs/serving.md, run as they stand but for the port,
and the commands, flags and benches of docs/cli.md."""
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
UNIT = ROOT / "deploy" / "kvcake.service"
CLI_PAGE = (ROOT / "docs" / "cli.md").read_text()


def usage(*command):
    return subprocess.run([*PROGRAM.split(), *command, "--help"], check=True,
                          stdout=subprocess.PIPE).stdout.decode()


def flags_of(*command):
    """{flag: its default, as `command --help` shows it, or None}."""
    flags = {}
    for names, rest in re.findall(r"^ {2,4}(-\S+)(.*)$", usage(*command), re.MULTILINE):
        default = re.search(r"(?<!\()=(\S+)", rest)
        for flag in re.findall(r"--[a-z-]+", names):
            flags[flag] = default and default[1]
    flags.pop("--help")
    return flags


def names_under(text, heading):
    """The subcommands or options that a help text lists under a heading."""
    (block,) = re.findall(rf"^{heading}:\n((?:  .*\n)+)", text, re.MULTILINE)
    return set(re.findall(r"^  ([a-z-]+)", block, re.MULTILINE))


def rows(heading):
    """Cells of the tables under a heading of docs/cli.md, up to the next of its kind."""
    level = heading.split()[0]
    _, _, text = CLI_PAGE.partition(f"\n{heading}\n")
    text = re.split(rf"^{level} ", text, flags=re.MULTILINE)[0]
    lines = re.findall(r"^\| *(.*?) *\|$", text, re.MULTILINE)
    return [re.split(r" *(?<!\\)\| *", line) for line in lines if not line.startswith("---")]


class CliPageTest(unittest.TestCase):
    COMMANDS = ("run", "serve", "chat", "worker")

    def page(self, command):
        """{flag: default} of the rows that name the command, or all."""
        flags = {}
        for cells in rows("## Flags of run, serve, chat and worker"):
            if cells[0] == "flag":
                continue
            names, default, commands, _ = cells
            self.assertLessEqual(set(commands.split()), {"all", *self.COMMANDS}, names)
            if {"all", command} & set(commands.split()):
                for flag in re.findall(r"--[a-z-]+", names):
                    self.assertNotIn(flag, flags, "is there twice")
                    flags[flag] = default
        return flags

    def test_flags(self):
        """The page and the program know the same flags of these commands, with the same defaults."""
        for command in self.COMMANDS:
            program, page = flags_of(command), self.page(command)
            self.assertEqual(set(program), set(page), command)
            for flag, default in program.items():
                if default is not None and " " not in page[flag]:
                    self.assertEqual(default, page[flag].strip("`"), f"{command} {flag}")

    def test_commands(self):
        table = rows("## Commands")[1:]
        self.assertEqual(names_under(usage(), "Subcommands"),
                         {re.fullmatch("`kvcake (.*)`", cells[0])[1] for cells in table})

    def test_benches(self):
        table = rows("## Benches")[1:]
        self.assertEqual(names_under(usage("bench"), "Subcommands"),
                         {cells[0].strip("`") for cells in table})

    def test_flags_of_the_other_commands(self):
        for names, text in rows("## Flags of the other commands")[1:]:
            first, *others = re.findall("`(.*?)`", names)
            command = first.split()[1:]
            for last in [command[-1], *others]:
                known = {**flags_of(*command[:-1], last), "--json": None}
                for flag in re.findall("--[a-z-]+", text):
                    self.assertIn(flag, known, f"{command[:-1]} {last}")


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
        known = usage("serve")
        page = (ROOT / "docs" / "serving.md").read_text().replace("--retry-connrefused", "")
        for flag in set(re.findall(r"`(--[a-z-]+)", page)):
            self.assertIn(flag, known)
        for _, server, text in BLOCKS:
            if server:
                for flag in re.findall(r"--[a-z-]+", text):
                    self.assertIn(flag, known)

    def test_the_unit_is_the_one_that_is_installed(self):
        (unit,) = self.examples("ini")
        self.assertEqual(unit, UNIT.read_text())
        known = usage("serve")
        commands = " ".join(re.findall("KVCAKE_FLAGS=.*|ExecStart=.*", unit))
        for flag in re.findall(r"--[a-z-]+", commands):
            self.assertIn(flag, known)

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
