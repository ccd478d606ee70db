"""Starts a redis-server for the tests beside this file."""
import atexit
import pathlib
import random
import subprocess
import tempfile

from server_fixture import eventually

TRIES = 20


class Redis:
    """A redis-server with an empty data set that is kept in memory only, on a port of its own. It
    ends with the test's process at the latest; so it is to be started on its main thread."""

    def __init__(self, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="kvcake-redis-")
        self.options = options
        self.process = None
        atexit.register(self.close)
        for _ in range(TRIES):
            # Below those that the system gives to whoever asks for any: while the server is down
            # nobody else gets its port.
            self.port = random.randint(15000, 32000)
            if self.start():
                return
        raise AssertionError(self.log())

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def log(self):
        return pathlib.Path(self.folder.name, "log").read_text(errors="replace")

    def start(self):
        """Begins again, empty, on the same port; whether it accepts connections."""
        with open(self.folder.name + "/log", "w", encoding="utf-8") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "redis-server", "--bind", "127.0.0.1", "--port",
                 str(self.port), "--save", "", "--appendonly", "no", "--dir", self.folder.name,
                 *self.options], stdout=log, stderr=log)
        eventually(lambda: "Ready to accept connections" in self.log() or
                   self.process.poll() is not None, "redis-server starts")
        return self.process.poll() is None

    def kill(self):
        """Ends it at once, as a crash does."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def close(self):
        atexit.unregister(self.close)
        self.kill()
        self.folder.cleanup()

    def cli(self, *command):
        """What redis-cli prints for a command."""
        return subprocess.run(["redis-cli", "-p", str(self.port), *command], check=True,
                              stdout=subprocess.PIPE).stdout.decode()
