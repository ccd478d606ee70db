#!/usr/bin/env python3
"""How long a small completion waits behind large requests that are being tokenized:

    tools/measure_prepare.py build/release/kvcake [--large 8] [--mib 10] [--rounds 5]

prints, of each round, the time of a completion of one token alone, and sent when --large bodies of
--mib for /tokenize have come; then the medians and their difference.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = "So it goes, and so it went. "


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    # More tokens than /tokenize tells: it knows when it has them all.
    if response.status != 200 and b"more than the limit of" not in content:
        raise SystemExit(f"{path}: {response.status} {content[:200]!r}")


def seconds_of(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--large", type=int, default=8)
    parser.add_argument("--mib", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    large = json.dumps({"prompt": TEXT * (args.mib * 2**20 // len(TEXT))})
    alone, behind = [], []
    with tempfile.NamedTemporaryFile("w+") as log, subprocess.Popen(
            [args.program, "serve", "--model", str(ROOT / "models/demo"), "--port", "0"],
            stdout=log, stderr=log) as server:
        try:
            while not (match := re.search(r"http://[0-9.]+:(\d+)/v1",
                                          pathlib.Path(log.name).read_text())):
                if server.poll() is not None:
                    raise SystemExit(pathlib.Path(log.name).read_text())
                time.sleep(0.05)
            port = int(match[1])
            for i in range(args.rounds):
                small = [json.dumps({"prompt": f"Once upon a time {i}{j}", "max_tokens": 1})
                         for j in range(2)]
                alone.append(seconds_of(lambda: post(port, "/v1/completions", small[0])))
                with concurrent.futures.ThreadPoolExecutor(args.large) as pool:
                    sent = [pool.submit(post, port, "/tokenize", large) for _ in range(args.large)]
                    time.sleep(0.5)  # they have come, and are far from tokenized
                    behind.append(seconds_of(lambda: post(port, "/v1/completions", small[1])))
                    left = sum(not one.done() for one in sent)
                    total = seconds_of(lambda: [one.result() for one in sent])
                print(f"alone {alone[-1] * 1e3:7.1f} ms, behind {behind[-1] * 1e3:7.1f} ms; "
                      f"{left} of {args.large} large ones were not done, and took {total:.2f} s more")
        finally:
            server.terminate()
    wait = statistics.median(behind) - statistics.median(alone)
    print(f"median alone {statistics.median(alone) * 1e3:.1f} ms, behind "
          f"{statistics.median(behind) * 1e3:.1f} ms: waited {wait * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
