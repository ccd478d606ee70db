"""Random requests, cancellations, store faults, and kills with restarts on the same store.

    server_chaos_test.py PROGRAM [--seconds N] [--seed S] [--clients N]

No answer is wrong, every request has an answer or an error (or its connection died with the
server), and when it is quiet everything has been given back.
"""
import argparse
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback

from server_chaos_clients import CONNECTION_ERRORS, Client, Reference, Wrong, make_asks
from server_chaos_vandal import Vandal
from server_fixture import SANITIZED, SANITIZER_REPORT, WAIT_S, Server, eventually

RSS_SLACK_BYTES = 64 << 20  # for what allocators keep; what grows with requests passes it
COUNTED = ("vllm:num_preemptions_total", "kvcake_chunks_failed_total",
           "kvcake_tier_quarantined_total", "kvcake_tier_writes_failed_total",
           "kvcake_tier_evicted_total")


LIVES_MAX = 50  # of servers, while none has restored anything
HANGS = ("late reads", "reads", "writes", "everything")


class Life:
    """One server's, from start to exit."""

    def __init__(self, rng, store, hangs):
        self.ram_mib = 12 if hangs == "everything" else rng.choice([12, 12, 16, 64])
        self.flags = ["--max-num-seqs", rng.choice(["2", "4", "16", "16"]),
                      "--queue-max", rng.choice(["2", "1024"]),
                      "--disk-capacity", rng.choice(["8MiB", "1GiB"]),
                      "--step-ms-max", rng.choice(["0", "2", "100"]),
                      "--store-writes", rng.choice(["always", "always", "second-use"])]
        if rng.random() < 0.3:
            self.flags += ["--load-rate", "400Mbit", "--load-latency", "3ms"]
        # All that can hang at once: of each store's reads, and of the writes to all.
        more = ["-second", "-third"] if hangs == "everything" else ["-second"]
        if hangs == "everything" or rng.random() < 0.3:
            self.flags += [flag for name in more for flag in ("--store", store + name)]
            self.flags += rng.choice([[], ["--promote"]])
        if rng.random() < 0.2:
            self.flags.append("--durable")
        # Reads that come back long after they were given up, or not before the server ends; writes
        # that hang as long. Until then they keep their pages.
        self.hangs = hangs  # one of HANGS, or None
        if self.hangs:
            self.flags += ["--stall-timeout", "1s"]
            for which in ("load", "write"):
                if self.hangs != "everything" and (self.hangs == "writes") != (which == "write"):
                    continue
                self.flags += [f"--{which}-stall-share", rng.choice(["0.05", "0.3", "1"]),
                               f"--{which}-stall", "4s" if self.hangs == "late reads" else "1h"]
        self.server = Server(*self.flags, store=store, ram=f"{self.ram_mib}MiB")
        self.descriptors = self.server.descriptors()
        self.rss_bytes = self.server.rss_bytes()
        self.ending = None  # or the signal that was sent
        self.given_up = 0  # requests, for the pages that hang

    @property
    def finishes(self):
        """What has begun to be answered is answered to its end."""
        return self.ending != signal.SIGKILL

    @property
    def hangs_for_ever(self):
        return self.hangs in ("reads", "writes", "everything")

    def end(self, how):
        if self.hangs_for_ever:
            how = signal.SIGKILL  # it waits for its device
        self.ending = how
        self.server.process.send_signal(how)
        code = self.server.process.wait(WAIT_S)
        expected = 0 if how == signal.SIGTERM else -signal.SIGKILL
        if code != expected:
            raise Wrong(f"exit code {code} after signal {how}")
        self.check_log()

    def check_log(self):
        if report := SANITIZER_REPORT.search(self.server.log()):
            raise Wrong("a sanitizer's report: " + report[0])

    def check_quiet(self):
        """Everything has been given back; called when no client asks anything."""
        if self.hangs_for_ever:
            eventually(self.server.answers_nothing, "requests ended")
            return 0
        eventually(self.server.idle, "pages, reads and requests given back")
        eventually(lambda: self.server.descriptors() <= self.descriptors, "descriptors closed")
        grown = self.server.rss_bytes() - self.rss_bytes
        if not SANITIZED and grown > (self.ram_mib << 20) + RSS_SLACK_BYTES:
            raise Wrong(f"the server has grown by {grown >> 20} MiB")
        return grown


class Chaos:
    def __init__(self, options):
        self._rng = random.Random(options.seed)
        self._reference = Reference()
        seconds = options.seconds or (75 if SANITIZED else 25)
        self._deadline = time.monotonic() + seconds
        self._asks = make_asks(self._rng, max(40, seconds // 4), slow=SANITIZED)
        self._lives = itertools.count(1 + self._rng.randrange(9))
        self._dir = tempfile.TemporaryDirectory(prefix="kvcake-chaos-")
        self._vandal = Vandal(self._dir.name + "/store", random.Random(self._rng.random()))
        self._changed = threading.Condition()
        # Guarded by it.
        self._life = None  # what clients talk to
        self._active = 0  # clients under way
        self._over = False
        self._wrong = None
        self.counts = {}
        self._clients = [threading.Thread(target=self._run_client, daemon=True, args=[
            Client(random.Random(self._rng.random()), self._asks, self._reference, self.counts)])
            for _ in range(options.clients)]

    def _run_client(self, client):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._life or self._over)
                if self._over:
                    return
                life = self._life
                self._active += 1
            wrong = None
            try:
                client.act(life)
            except CONNECTION_ERRORS as error:
                if life.ending is None:
                    wrong = f"a connection broke: {error!r}\n{traceback.format_exc()}"
                else:
                    time.sleep(0.05)
            except Exception:  # pylint: disable=broad-except
                wrong = traceback.format_exc()
            with self._changed:
                self._active -= 1
                self._wrong = self._wrong or wrong
                self._changed.notify_all()

    def _tell(self, life):
        """Whom clients are to talk to; None: nobody, and all have finished when this returns."""
        with self._changed:
            self._life = life
            self._changed.notify_all()
            if life is None:
                self._changed.wait_for(lambda: self._active == 0 or self._wrong)
        self._check()

    def _check(self):
        if self._wrong:
            raise Wrong(self._wrong)

    def _wait(self, seconds):
        with self._changed:
            self._changed.wait_for(lambda: self._wrong, seconds)
        self._check()

    def _count(self, server):
        for name in COUNTED:
            self.counts[name] = self.counts.get(name, 0) + int(server.metric(name))
        for tier in ("ram", "disk"):
            name = f"tokens from {tier}"
            got = int(server.metric("kvcake_hit_tokens_total", tier=tier))
            self.counts[name] = self.counts.get(name, 0) + got

    def _live(self):
        """One server's life; whether it was quiet at its end, and whether its store hung."""
        # Every third one's store hangs, in turns in one way and another.
        number = next(self._lives)
        hangs = HANGS[number // 3 % len(HANGS)] if number % 3 == 0 else None
        life = Life(self._rng, self._dir.name + "/store", hangs)
        said = [f"{' '.join(life.flags)} --ram-capacity {life.ram_mib}MiB:"]
        try:
            self._tell(life)
            while True:
                longer = 4 if SANITIZED else 2 if life.hangs else 1
                seconds = self._rng.uniform(1, 4) * longer
                if self._rng.random() < 0.7:
                    with self._vandal:
                        self._wait(seconds)
                else:
                    self._wait(seconds)
                late = time.monotonic() > self._deadline
                what = "quiet" if late else self._rng.choice(["quiet", "quiet", "kill", "term"])
                if what == "quiet":
                    self._tell(None)
                    said.append(f"quiet +{life.check_quiet() >> 20} MiB,")
                    if late or self._rng.random() < 0.3:
                        self._count(life.server)
                        life.end(signal.SIGTERM)
                        break
                    self._tell(life)
                    continue
                self._count(life.server)
                life.end(signal.SIGKILL if what == "kill" else signal.SIGTERM)
                said.append(life.ending.name)
                break
            self._tell(None)
            self.counts["given up"] = self.counts.get("given up", 0) + life.given_up
            said += [f"{life.given_up} given up"] if life.given_up else []
            life.check_log()
        except Exception:
            print(" ".join(said), "\n" + life.server.log()[-8000:], flush=True)
            raise
        finally:
            life.server.kill()
        print(" ".join(said), flush=True)
        return what == "quiet", life.hangs

    def _has_shown_little(self, lives):
        """Whether another server may restore what those before, whose stores hung, have not."""
        return self.counts.get("tokens from disk", 0) == 0 and lives < LIVES_MAX and not SANITIZED

    def run(self):
        for client in self._clients:
            client.start()
        lives = hung = 0
        quiet = False
        while not quiet or time.monotonic() < self._deadline or self._has_shown_little(lives):
            quiet, hangs = self._live()
            lives += 1
            hung += bool(hangs)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for client in self._clients:
            client.join()
        if self._reference.server.stop() != 0:
            raise Wrong("the reference did not end in order")
        print(f"{lives} servers, {hung} of them on a store that hangs; {self.counts}; "
              f"the store: {self._vandal.done}")
        if self.counts.get("tokens from disk", 0) == 0 and not SANITIZED:
            raise Wrong(f"nothing was restored from the store by {lives} servers")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int)  # 25 unless given, more under a sanitizer
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--clients", type=int, default=12)
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    try:
        Chaos(options).run()
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        sys.stdout.flush()
        print(f"again: --seed {options.seed}", file=sys.stderr, flush=True)
        os._exit(1)  # whatever clients still wait for; servers go with this process


if __name__ == "__main__":
    main()
