"""What the tests of stores elsewhere share: runs and requests whose prompts have chunks to keep,
and ports for the servers of such stores."""
import atexit
import json
import pathlib
import random
import subprocess
import tempfile

from server_fixture import MODEL, PROGRAM

CHUNK, CHUNKS = 128, 4
TRIES = 20  # at a port that nobody has
TEXT = "".join(f"once upon a time {i} " for i in range(300))


def any_port():
    """Below those that the system gives to whoever asks for any: while a server is down nobody else
    gets its port."""
    return random.randint(15000, 32000)


class StoreServer:
    """A server that keeps chunks, on a port of its own, with its files in a folder of its own. It
    ends with the test's process at the latest; so it is to be started on its main thread. start()
    of who inherits begins it at self.port, and returns whether it does."""

    LOG = "log"  # the file of the folder

    def __init__(self, name):
        self.folder = tempfile.TemporaryDirectory(prefix=f"kvcake-{name}-")
        self.process = self.port = None
        atexit.register(self.close)

    def take_ports(self):
        self.port = any_port()

    def start_at_any_port(self):
        for _ in range(TRIES):
            self.take_ports()
            if self.start():
                return
        raise AssertionError(self.log())

    def log(self):
        return pathlib.Path(self.folder.name, self.LOG).read_text(errors="replace")

    def kill(self):
        """Ends it at once, as a crash does."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def close(self):
        atexit.unregister(self.close)
        self.kill()
        self.folder.cleanup()


def kvcake(*arguments):
    """What a command prints as JSON."""
    done = subprocess.run([*PROGRAM.split(), *arguments, "--json"], check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(*stores, policy="load", flags=()):
    """The text of a run's answer, and each of its stores."""
    named = [word for store in stores for word in ("--store", store)]
    ran = kvcake("run", "--model", MODEL, "--threads", "1", "--ram-capacity", "64MiB", "--prompt",
                 TEXT, "--max-tokens", "4", "--policy", policy, *named, *flags)
    return ran["text"], ran["store"]["tiers"]


def prompt(seed, chunks=CHUNKS):
    """Tokens. No two seeds, nor two lengths, share a chunk."""
    rng = random.Random(f"{seed} {chunks}")
    return [rng.randrange(5, 4000) for _ in range(CHUNK * chunks + 5)]


def ask(server, seed):
    """The text of a server's answer to a prompt."""
    body = {"prompt": prompt(seed), "max_tokens": 4, "temperature": 0}
    return server.post("/v1/completions", body)["choices"][0]["text"]
