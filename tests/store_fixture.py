"""What the tests of stores elsewhere share: runs and requests whose prompts have chunks to keep."""
import json
import random
import subprocess

from server_fixture import MODEL, PROGRAM

CHUNK, CHUNKS = 128, 4
TEXT = "".join(f"once upon a time {i} " for i in range(300))


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


def ask(server, seed):
    """The text of a server's answer to a prompt of CHUNKS chunks; each seed has its own."""
    rng = random.Random(seed)
    prompt = [rng.randrange(5, 4000) for _ in range(CHUNK * CHUNKS + 5)]
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    return server.post("/v1/completions", body)["choices"][0]["text"]
