"""What the tests of stores elsewhere share: runs and requests whose prompts have chunks to keep,
and ports for the servers of such stores."""
import json
import random
import subprocess

from server_fixture import MODEL, PROGRAM

CHUNK, CHUNKS = 128, 4
TRIES = 20  # at a port that nobody has
TEXT = "".join(f"once upon a time {i} " for i in range(300))


def any_port():
    """Below those that the system gives to whoever asks for any: while a server is down nobody else
    gets its port."""
    return random.randint(15000, 32000)


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
