"""LMCache as an arm of bench_vllm.py: its server, whose second level is as slow as a link of ours,
and the connector of vLLM that speaks to it. Runs where LMCache is, see tools/lmcache_venv."""
from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator


def can_run() -> bool:
    return importlib.util.find_spec("lmcache") is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def server(folder: pathlib.Path, rate: float, chunk: int) -> Iterator[dict]:
    """A server that keeps nothing in its first level, and `kv_transfer_config` for it. Bytes come
    at `rate` a second by LMCache's own mock of a link; 0: from files."""
    files = folder / "lmcache"
    files.mkdir(parents=True, exist_ok=True)
    level = ({"type": "mock", "max_size_gb": 4, "mock_bandwidth_gb": rate / 2 ** 30} if rate
             else {"type": "fs", "base_path": str(files)})
    port = free_port()
    with open(folder / "lmcache.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lmcache.cli.main", "server", "--port", str(port),
             "--http-port", str(free_port()), "--l1-size-gb", "2", "--chunk-size", str(chunk),
             "--supported-transfer-mode", "auto", "--l2-adapter", json.dumps(level),
             "--l2-store-policy", "skip_l1", "--eviction-policy", "LRU", "--disable-metrics",
             "--disable-observability"], stdout=log, stderr=log)
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None:
                raise OSError(f"LMCache has ended, see {log.name}")
            time.sleep(0.1)
        yield {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
               "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1",
                                             "lmcache.mp.port": port}}
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
