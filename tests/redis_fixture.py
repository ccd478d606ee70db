"""Starts a redis-server, or a cluster of them, for the tests beside this file."""
import atexit
import os
import subprocess

from server_fixture import eventually
from store_fixture import StoreServer, any_port

SLOTS = 16384


class Redis(StoreServer):
    """A redis-server with an empty data set that is kept in memory only. `within` is a command that
    runs others elsewhere, where `host` is. `tls`: options of TLS, which it speaks instead of plain
    text from its next start on."""

    def __init__(self, *options, host="127.0.0.1", within=(), tls=()):
        super().__init__("redis")
        self.options, self.host, self.within, self.tls = options, host, within, tls
        self._password = ""
        self.start_at_any_port()

    def take_ports(self):
        super().take_ports()
        self.bus_port = any_port() if "--cluster-enabled" in self.options else None

    @property
    def url(self):
        return f"redis{'s' if self.tls else ''}://{self.host}:{self.port}"

    def start(self):
        """Begins again, empty, on the same port. Returns whether it accepts connections."""
        port = ["--port", str(self.port)]
        if self.tls:
            port = ["--port", "0", "--tls-port", str(self.port), *self.tls]
        if self.bus_port:
            port += ["--cluster-port", str(self.bus_port)]
        with open(self.folder.name + "/log", "w", encoding="utf-8") as log:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.within, "redis-server", "--bind",
                 self.host, *port, "--save", "", "--appendonly", "no", "--dir", self.folder.name,
                 *self.options], stdout=log, stderr=log)
        eventually(lambda: "Ready to accept connections" in self.log() or
                   self.process.poll() is not None, "redis-server starts")
        return self.process.poll() is None

    def cli(self, *command):
        """What redis-cli prints for a command."""
        tls = ("--tls", "--insecure") if self.tls else ()
        login = {"REDISCLI_AUTH": self._password} if self._password else {}
        return subprocess.run([*self.within, "redis-cli", "-h", self.host, "-p", str(self.port),
                               *tls, *command], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, **login}).stdout.decode()

    def password(self, new):
        """From now on it asks for this one; empty: for none."""
        self.cli("config", "set", "requirepass", new)
        self._password = new

    def info(self, section, name):
        """A line of INFO, without its name; nothing where there is none."""
        for line in self.cli("info", section).splitlines():
            if line.startswith(name + ":"):
                return line[len(name) + 1:]
        return ""

    def calls(self, command):
        """How often it was called since the last `config resetstat`."""
        said = self.info("commandstats", "cmdstat_" + command)
        return int(said.split(",")[0].removeprefix("calls=")) if said else 0

    def errors(self, word):
        """How often it has answered with such an error."""
        said = self.info("errorstats", "errorstat_" + word)
        return int(said.removeprefix("count=")) if said else 0


class RedisCluster:
    """Masters that have all slots between them, and a replica of each."""

    NODE_TIMEOUT_MS = 3000

    def __init__(self, masters=3):
        self.nodes = []
        atexit.register(self.close)
        self.masters = [self.new_node() for _ in range(masters)]
        self.replicas = [self.new_node() for _ in range(masters)]
        for i, master in enumerate(self.masters):
            self.ask(master, "addslotsrange", i * SLOTS // masters, (i + 1) * SLOTS // masters - 1)
            # Masters of the same epoch would have to agree on one first.
            self.ask(master, "set-config-epoch", i + 1)
        for node in self.nodes[1:]:
            self.meet(node)
        self.wait_whole()
        for master, replica in zip(self.masters, self.replicas):
            self.ask(replica, "replicate", self.id(master))
        eventually(lambda: all(replica.info("replication", "master_link_status") == "up"
                               for replica in self.replicas), "replicas follow")
        self.wait_whole()

    def new_node(self):
        # A master whose slots all go elsewhere would become a replica there, full of its chunks.
        node = Redis("--cluster-enabled", "yes", "--cluster-node-timeout",
                     str(self.NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0",
                     "--cluster-allow-replica-migration", "no")
        self.nodes.append(node)
        return node

    @staticmethod
    def ask(node, *words):
        """A CLUSTER command that has to be obeyed."""
        said = node.cli("cluster", *(str(word) for word in words)).strip()
        assert said == "OK", (words, said)

    @staticmethod
    def id(node):
        return node.cli("cluster", "myid").strip()

    def meet(self, node):
        self.ask(self.nodes[0], "meet", "127.0.0.1", node.port, node.bus_port)

    def wait_whole(self):
        """All slots are known to all, as a cluster that need not have them all calls itself ok
        before."""
        eventually(self.is_whole, "a whole cluster")

    def is_whole(self):
        wanted = {"cluster_state:ok", f"cluster_slots_ok:{SLOTS}",
                  f"cluster_known_nodes:{len(self.nodes)}"}
        return all(wanted <= set(node.cli("cluster", "info").split()) for node in self.nodes)

    @staticmethod
    def is_master(node):
        return node.info("replication", "role") == "master"

    @property
    def url(self):
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://{seeds}"

    def close(self):
        atexit.unregister(self.close)
        for node in self.nodes:
            node.close()
