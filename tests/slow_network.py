"""A network that is slow for real: a namespace behind a token bucket (tc tbf). Needs root."""
import os
import re
import subprocess

BURST_BYTES = 64 << 10


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class SlowNetwork:
    """A namespace at `address`, joined to ours by a pair of devices; both ends send through a
    bucket."""

    def __init__(self, rate_bits):
        number = os.getpid() % 250 + 1
        self.name = f"kvcake-{os.getpid()}"
        self.device = f"kvc{os.getpid() % 100000}h"
        inner = self.device[:-1] + "n"
        self.here, self.address = f"10.213.{number}.1", f"10.213.{number}.2"
        inside = ("ip", "netns", "exec", self.name)
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.device, "type", "veth", "peer", "name", inner, "netns",
            self.name)
        for where, device, address in (((), self.device, self.here),
                                       (inside, inner, self.address)):
            run(*where, "ip", "address", "add", address + "/24", "dev", device)
            run(*where, "ip", "link", "set", device, "up")
            run(*where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                f"{rate_bits}bit", "burst", str(BURST_BYTES), "latency", "400ms")
        run(*inside, "ip", "link", "set", "lo", "up")
        self.inside = inside
        self.inner = inner

    def sent_bytes(self):
        """That have left the namespace."""
        stats = run(*self.inside, "tc", "-s", "qdisc", "show", "dev", self.inner)
        return int(re.search(r"Sent (\d+) bytes", stats)[1])

    def close(self):
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)
