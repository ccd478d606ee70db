#!/usr/bin/env python3
"""How fast chunks come from Redis and from S3: `kvcake bench load --store`, against servers that
this starts. Needs redis-server and nginx (Debian), and root for --link.

    tools/bench_remote.py redis            a redis-server on loopback
    tools/bench_remote.py redis --link     the same behind 1 Gbit/s, by tc tbf
    tools/bench_remote.py s3               nginx, which serves files by range and takes them by PUT
    tools/bench_remote.py s3 --relay       the same through a relay of 200 MB/s, without and with a
                                           delay of 20 ms each way together
    tools/bench_remote.py s3 --looks       through that relay: how long servers that know nothing of
                                           a prompt look for its chunks, a HEAD for each of them,
                                           and how long the GET of one small object takes

What follows is given to `kvcake bench load`, e.g. --chunk-bytes 4MiB --json F.
"""
import argparse
import asyncio
import http.client
import multiprocessing
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from slow_network import SlowNetwork  # noqa: E402

KVCAKE = ROOT / "build/release/kvcake"
LINK_BITS = 1_000_000_000
RELAY_BYTES_PER_S, RELAY_DELAY_S = 200e6, 0.020
CHUNKS, REPEATS = (8, 32, 63), 5
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/log; worker_rlimit_nofile 4096;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_max_body_size 1g; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/1; fastcgi_temp_path {folder}/2; uwsgi_temp_path {folder}/3;
  scgi_temp_path {folder}/4; sendfile on; tcp_nodelay on; keepalive_requests 100000;
  server {{
    listen 127.0.0.1:{port}; root {folder}/data;
    location / {{ dav_methods PUT DELETE; create_full_put_path on; }}
  }}
}}
"""


def any_port():
    return random.randint(15000, 32000)


def wait_for(port, address="127.0.0.1"):
    for _ in range(500):
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"nobody listens at {address}:{port}")


def start_redis(folder, inside=(), address="127.0.0.1"):
    port = any_port()
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *inside, "redis-server", "--bind", address, "--port",
         str(port), "--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", folder],
        stdout=subprocess.DEVNULL)
    if not inside:
        wait_for(port, address)
    else:
        time.sleep(1)
    return process, port


def start_nginx(folder):
    port = any_port()
    os.chmod(folder, 0o755)
    pathlib.Path(folder, "data").mkdir()
    config = pathlib.Path(folder, "nginx.conf")
    config.write_text(NGINX.format(folder=folder, port=port), encoding="utf-8")
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "nginx", "-c", str(config)],
                               stderr=subprocess.DEVNULL)
    wait_for(port)
    return process, port


class Relay:
    """Passes on what comes, later, and no faster than a link does."""

    def __init__(self, to_port, delay_s):
        self.to_port, self.delay_s = to_port, delay_s
        self.free_at = 0.0  # when the link has sent what it was given

    async def serve(self, port):
        async with await asyncio.start_server(self.accept, "127.0.0.1", port, limit=1 << 20) as it:
            await it.serve_forever()

    async def accept(self, reader, writer):
        there = await asyncio.open_connection("127.0.0.1", self.to_port, limit=1 << 20)
        await asyncio.gather(self.carry(reader, there[1], 0.0), self.carry(there[0], writer,
                                                                           RELAY_BYTES_PER_S))

    async def carry(self, reader, writer, bytes_per_s):
        queue = asyncio.Queue()
        sending = asyncio.create_task(self.send(queue, writer))
        while data := await reader.read(1 << 18):
            now = time.monotonic()
            if bytes_per_s:
                self.free_at = max(self.free_at, now) + len(data) / bytes_per_s
                now = self.free_at
            await queue.put((now + self.delay_s / 2, data))
            # As much as the link holds is under way, no more.
            if bytes_per_s and self.free_at - time.monotonic() > 0.005:
                await asyncio.sleep(self.free_at - time.monotonic())
        await queue.put((0, b""))
        await sending

    async def send(self, queue, writer):
        while True:
            at, data = await queue.get()
            if not data:
                break
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            writer.write(data)
            await writer.drain()
        writer.close()


def start_relay(to_port, delay_s):
    port = any_port()
    process = multiprocessing.Process(
        target=lambda: asyncio.run(Relay(to_port, delay_s).serve(port)), daemon=True)
    process.start()
    wait_for(port)
    return port


def bench(url, rest):
    print(url, flush=True)
    environment = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", **os.environ}
    subprocess.run([KVCAKE, "bench", "load", "--store", url, *rest], check=True, env=environment)


def look(port, folder):
    """Prints how long looks take, a server for each, and GETs on one connection."""
    sys.argv[1:] = [str(KVCAKE)]  # server_fixture's
    os.environ.update({"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"})
    from server_fixture import Server, eventually
    store = f"s3://bench?endpoint=http://127.0.0.1:{port}"
    pathlib.Path(folder, "data", "small").write_bytes(bytes(4096))

    def ask(server, chunks, seed):
        rng = random.Random(f"{chunks} {seed}")
        prompt = [rng.randrange(5, 4000) for _ in range(128 * chunks + 5)]
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})

    for chunks in CHUNKS:
        keeper = Server(store=store)
        for seed in range(REPEATS):
            ask(keeper, chunks, seed)
        eventually(lambda: keeper.metric("kvcake_tier_writes_total") >= chunks * REPEATS,
                   "chunks are kept")
        keeper.stop()
        for what, seed_of in (("stored", lambda i: i), ("not", lambda i: -1 - i)):
            took = []
            for i in range(REPEATS):
                server = Server(store=store)
                ask(server, chunks, seed_of(i))
                eventually(lambda: server.metric("kvcake_tier_looks_total", tier="s3") >= 1,
                           "a look has ended")
                took.append(server.metric("kvcake_tier_look_seconds_total", tier="s3")
                            / server.metric("kvcake_tier_looks_total", tier="s3"))
                server.stop()
            report(f"HEADs of {chunks} chunks, {what}", took)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    took = []
    for _ in range(REPEATS + 1):
        began = time.monotonic()
        connection.request("GET", "/small")
        assert len(connection.getresponse().read()) == 4096
        took.append(time.monotonic() - began)
    report("GET of 4 KiB", took[1:])  # without the connection's making


def report(what, took):
    print(f"{what}: {1e3 * statistics.median(took):.1f} ms ({1e3 * min(took):.1f} to "
          f"{1e3 * max(took):.1f}, {len(took)} times)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["redis", "s3"])
    parser.add_argument("--link", action="store_true")
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--looks", action="store_true")
    args, rest = parser.parse_known_args()
    for program in ["redis-server"] if args.kind == "redis" else ["nginx"]:
        if not shutil.which(program):
            sys.exit(f"{program} is not installed (Debian package {program})")
    folder = tempfile.mkdtemp(prefix="kvcake-bench-remote-")
    network = SlowNetwork(LINK_BITS) if args.link else None
    processes = []
    try:
        if args.kind == "redis":
            where = (network.inside, network.address) if network else ((), "127.0.0.1")
            process, port = start_redis(folder, *where)
            processes.append(process)
            bench(f"redis://{where[1]}:{port}", rest)
        else:
            process, port = start_nginx(folder)
            processes.append(process)
            if args.looks:
                look(start_relay(port, RELAY_DELAY_S), folder)
            ports = [] if args.looks else [port]
            if args.relay:
                ports = [start_relay(port, 0.0), start_relay(port, RELAY_DELAY_S)]
            for each in ports:
                bench(f"s3://bench?endpoint=http://127.0.0.1:{each}", rest)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        if network:
            network.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
