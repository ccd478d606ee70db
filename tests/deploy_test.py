"""What deploy/ and the Dockerfile say, against the program and the schemas of those who read it."""
import io
import os
import pathlib
import re
import ssl
import subprocess
import tarfile
import tempfile
import unittest

import kubernetes_validate
import yaml

from server_fixture import PROGRAM, ROOT, SANITIZED, Server, ServerTest

DEPLOY = ROOT / "deploy"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICE = (DEPLOY / "kvcake.service").read_text()


def known_flags():
    return subprocess.run([*PROGRAM.split(), "serve", "--help"], check=True,
                          stdout=subprocess.PIPE).stdout.decode()


def seconds(text):
    return float(re.fullmatch(r"(\d+)s", text)[1])


class KubernetesTest(ServerTest):
    FLAGS = ("--admin-port", "0")

    def setUp(self):
        (deployment,) = [one for one in MANIFESTS if one["kind"] == "Deployment"]
        self.pod = deployment["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self.flags = dict(arg.split("=") for arg in self.container["args"][1:])

    def test_the_schema(self):
        for manifest in MANIFESTS:
            for version in ("1.29", "1.33"):
                kubernetes_validate.validate(manifest, version, strict=True)

    def test_the_flags_are_the_programs(self):
        self.assertEqual(self.container["args"][0], "serve")
        known = known_flags()
        for flag in self.flags:
            self.assertRegex(known, rf"\n +(--[a-z-]+,)*{flag}[ ,]")
        for variable in self.container["env"]:
            self.assertIn(variable["name"], known)

    def test_the_probes_ask_what_the_server_answers(self):
        ports = {port["name"]: str(port["containerPort"]) for port in self.container["ports"]}
        self.assertEqual(ports, {"http": self.flags["--port"],
                                 "admin": self.flags["--admin-port"]})
        for probe, path in (("startupProbe", "/ready"), ("readinessProbe", "/ready"),
                            ("livenessProbe", "/health")):
            asked = self.container[probe]["httpGet"]
            self.assertEqual((asked["path"], asked["port"]), (path, "admin"))
            self.assertEqual(
                self.server.request("GET", path, port=self.server.admin_port)[0], 200)

    def test_the_image_is_one_that_the_page_builds(self):
        image = self.container["image"]
        self.assertRegex(image, r":\d+\.\d+\.\d+$")  # Kubernetes always asks a registry for :latest
        for text in (DOCKERFILE, (ROOT / "docs" / "serving.md").read_text()):
            self.assertIn(f"docker build -t {image} .", text)

    def test_there_is_time_to_drain(self):
        delay = seconds(self.flags["--shutdown-delay"])
        self.assertGreaterEqual(delay, self.container["readinessProbe"]["periodSeconds"])
        self.assertLess(delay + seconds(self.flags["--drain-timeout"]) + 20,
                        self.pod["terminationGracePeriodSeconds"])


class ContainerTest(ServerTest):
    def started(self, *arguments, **environment):
        """What the container's start runs, with which key, and says."""
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder, "kvcake")
            fake.write_text('#!/bin/sh\necho "$@ key=${KVCAKE_API_KEY-none}"\n')
            fake.chmod(0o755)
            path = {"PATH": f"{folder}:{os.environ['PATH']}"}
            done = subprocess.run([DEPLOY / "container-start", *arguments], check=True,
                                  capture_output=True, env={**path, **environment})
        return done.stdout.decode().strip(), done.stderr.decode()

    def test_its_server_asks_for_a_key(self):
        out, said = self.started("serve", "--port", "1")
        made = re.fullmatch(r"serve --port 1 key=([0-9a-f]{48})", out)[1]
        self.assertIn(made, said)
        self.assertNotEqual(self.started("serve", "--port", "1")[0], out)
        self.assertEqual(self.started("serve", KVCAKE_API_KEY="mine"), ("serve key=mine", ""))
        self.assertEqual(self.started("serve", "--api-key-file", "f"),
                         ("serve --api-key-file f key=none", ""))
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "kvcake.toml")
            config.write_text("max-num-seqs = 4\n# api-key = 1\n")
            self.assertRegex(self.started("serve", "--config", str(config))[0], "key=[0-9a-f]{48}$")
            for line in ('api-key = "k"', '  api-key-file="f"', '"api-key" = "k"'):
                config.write_text(f"max-num-seqs = 4\n{line}\n")
                for flags in (("--config", str(config)), (f"--config={config}",)):
                    self.assertRegex(self.started("serve", *flags)[0], "key=none$")
        self.assertEqual(self.started("store", "ls", "d"), ("store ls d key=none", ""))

    def test_its_health_is_the_servers(self):
        def healthy(*flags, **environment):
            with tempfile.NamedTemporaryFile() as command_line:
                command_line.write(b"".join(flag.encode() + b"\0" for flag in flags))
                command_line.flush()
                return subprocess.run([DEPLOY / "container-health", command_line.name],
                                      env={"PATH": os.environ["PATH"], **environment},
                                      stderr=subprocess.DEVNULL, check=False).returncode == 0
        port = str(self.server.port)
        for flags in (("--port", port), (f"--port={port}",)):
            self.assertTrue(healthy("kvcake", "serve", *flags))
        self.assertTrue(healthy("kvcake", "serve", KVCAKE_PORT=port))
        self.assertTrue(healthy("kvcake", "serve", "--port", port,
                                KVCAKE_PORT="tcp://10.96.1.2:8000"), "as Kubernetes has it")
        self.assertFalse(healthy("kvcake", "serve", "--port", "1"))
        self.assertFalse(healthy("kvcake", "serve", "--port", port, KVCAKE_TLS="1"))
        self.assertTrue(healthy("kvcake", "worker", "--listen", "10.0.0.1:7100"))
        self.assertFalse(healthy("kvcake", "serve", "--served-model-name", "worker", "--port", "1"))

    def test_its_health_is_asked_for_in_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            pem, key = f"{folder}/c.pem", f"{folder}/c.key"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-out", pem, "-keyout", key],
                           check=True, capture_output=True)
            flags = ("--ssl-certfile", pem, "--ssl-keyfile", key)
            server = Server(*flags, tls=ssl.create_default_context(cafile=pem))
            self.addCleanup(server.kill)
            with tempfile.NamedTemporaryFile() as command_line:
                for flag in ("kvcake", "serve", "--port", str(server.port), *flags):
                    command_line.write(flag.encode() + b"\0")
                command_line.flush()
                subprocess.run([DEPLOY / "container-health", command_line.name], check=True)

    def test_the_dockerfile_uses_both(self):
        for line in ('HEALTHCHECK .*CMD \\["container-health"\\]',
                     'ENTRYPOINT \\["container-start"\\]',
                     'COPY deploy/container-start deploy/container-health /usr/local/bin/',
                     'install .* ca-certificates '):
            self.assertRegex(DOCKERFILE, line)


class PackageTest(unittest.TestCase):
    def run_script(self, name, argument, failing=""):
        """The exit code of a maintainer script where systemd runs, and what it has systemctl do;
        that of `failing` fails."""
        with tempfile.TemporaryDirectory() as folder:
            text = (ROOT / "packaging" / name).read_text()
            for path in ("/run/systemd/system", "/var/cache/kvcake"):
                text = text.replace(path, folder)
            script = pathlib.Path(folder, "script")
            script.write_text(text)
            fakes = ["systemctl", "systemd-sysusers"] + (["rm"] if failing == "-rf" else [])
            for fake in fakes:
                path = pathlib.Path(folder, fake)
                path.write_text(f'#!/bin/sh\necho {fake} "$@" >> {folder}/log\n'
                                f'[ "$1" != "{failing}" ]\n')
                path.chmod(0o755)
            log = pathlib.Path(folder, "log")
            log.write_text("")
            log = os.open(log, os.O_RDONLY)  # is still there when the folder is purged
            done = subprocess.run(["sh", script, argument], stderr=subprocess.PIPE, check=False,
                                  env={"PATH": f"{folder}:{os.environ['PATH']}"})
            said = os.read(log, 1 << 16).decode().splitlines()
            os.close(log)
            return done.returncode, said

    def test_what_is_in_it(self):
        build = pathlib.Path(PROGRAM.split()[-1]).parent
        if SANITIZED:
            self.skipTest("nobody packs what sanitizers watch")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cpack", "-B", folder], cwd=build, check=True, stdout=subprocess.DEVNULL)
            (package,) = pathlib.Path(folder).glob("kvcake_*.deb")
            names = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True,
                                   stdout=subprocess.PIPE).stdout
            files = tarfile.open(fileobj=io.BytesIO(names)).getnames()
            told = subprocess.run(["dpkg-deb", "--field", package], check=True,
                                  stdout=subprocess.PIPE).stdout.decode()
        for name in ("bin/kvcake", "lib/libkvcake.so.0", "lib/systemd/system/kvcake.service",
                     "lib/sysusers.d/kvcake.conf", "share/kvcake/models/demo/config.json",
                     "share/doc/kvcake/copyright", "share/doc/kvcake/examples/restore.c"):
            self.assertIn(f"./usr/{name}", files)
        for page in re.findall(r"\]\((docs/[a-z.-]+)", (ROOT / "README.md").read_text()):
            self.assertIn(f"./usr/share/doc/kvcake/{page}", files)
        documentation = re.search("^Documentation=file://(.*)$", SERVICE, re.MULTILINE)[1]
        self.assertIn(f".{documentation}", files)
        self.assertRegex(told, r"\nDepends: .*libc6")
        self.assertIn("\nRecommends: ca-certificates\n", told)

    def test_what_it_installs_is_built_for_it(self):
        cmake = "".join(path.read_text() for path in (ROOT / "cmake").glob("*.cmake"))
        built = re.search(r"\n  package\)\n.*?\n    build release (.*?)\n",
                          (ROOT / "dev").read_text(), re.DOTALL)[1].split()
        self.assertEqual(sorted(built), sorted(re.findall(r"install\(TARGETS (\w+)", cmake)))

    def test_the_unit_is_installed_where_its_paths_are(self):
        script = (pathlib.Path(PROGRAM.split()[-1]).parent / "cmake_install.cmake").read_text()
        with tempfile.TemporaryDirectory() as folder:
            for prefix, installed in (("/usr", True), ("/usr/local", False)):
                # What it installs beside programs, which need not be built yet.
                part = script[script.index("if(CMAKE_INSTALL_PREFIX STREQUAL"):]
                path = pathlib.Path(folder, "install.cmake")
                path.write_text(part[:part.index("endif()") + len("endif()\n")])
                root = f"{folder}{prefix.replace('/', '-')}"
                subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", path], check=True,
                               stdout=subprocess.DEVNULL, env={**os.environ, "DESTDIR": root})
                for name in ("systemd/system/kvcake.service", "sysusers.d/kvcake.conf"):
                    self.assertEqual(pathlib.Path(root, "usr/lib", name).exists(), installed)

    def test_a_server_that_does_not_come_up_leaves_the_package_installed(self):
        for failing in ("", "try-restart", "daemon-reload"):
            code, said = self.run_script("postinst", "configure", failing)
            self.assertEqual(code, 0, failing)
            self.assertIn("systemctl try-restart --no-block kvcake.service", said)

    def test_a_server_that_does_not_stop_lets_the_package_go(self):
        for failing in ("", "disable"):
            self.assertEqual(self.run_script("prerm", "remove", failing),
                             (0, ["systemctl disable --now kvcake.service"]))
        self.assertEqual(self.run_script("prerm", "upgrade"), (0, []))
        for argument in ("remove", "purge"):
            self.assertEqual(self.run_script("postrm", argument, "daemon-reload"),
                             (0, ["systemctl daemon-reload"]))
        code, said = self.run_script("postrm", "purge", "-rf")
        self.assertEqual((code, said[1][:7]), (0, "rm -rf "), "a disk is mounted there")


if __name__ == "__main__":
    unittest.main()
