"""A leader of a chain, as a stranger may write one: it says to a `kvcake worker` whatever it likes.

Speaks what src/comm/join_message.h, mesh_hello.h, tcp_comm.h and src/runahead/job_message.h say.
"""
import hashlib
import hmac
import os
import socket
import struct

FACTS_TAG, PROBE_TAG, ECHO_TAG, RECORD_TAG = (2**30 + i for i in range(4))
HEADER_TAG, BODY_TAG, ANSWER_TAG = range(3)
FRAME_MAGIC = 0x3143564B


def prove(key, purpose, *parts):
    message = b"".join(struct.pack("<Q", len(part)) + part for part in (purpose, *parts))
    return hmac.new(key, message, hashlib.sha256).digest()


class Refused(Exception):
    """What the worker has said."""


class RogueLeader:
    """The last of two ranks. `key`: what it takes for the cluster's."""

    def __init__(self, address, key=b"", roster=None):
        host, port = address.rsplit(":", 1)
        self.peer = (host, int(port))
        self.roster = roster or [address]
        self.key = key
        self.control = socket.create_connection(self.peer)
        self.chain = None

    def close(self):
        for one in (self.control, self.chain):
            if one is not None:
                one.close()

    def join(self):
        """Up to a connection as a rank; Refused says why not."""
        lines = self.control.makefile("rwb")
        said = b"kvcake-chain 2 " + os.urandom(32).hex().encode() + b"\n"
        lines.write(said)
        lines.flush()
        said += lines.readline()
        chain, facts = os.urandom(32), bytes(32)
        rest = f"{chain.hex()} {facts.hex()} 0 {' '.join(self.roster)}".encode()
        proof = prove(self.key, b"kvcake 2: a leader calls a worker", said, rest)
        call = b"call " + proof.hex().encode() + b" " + rest + b"\n"
        lines.write(call)
        lines.flush()
        said += call
        answer = lines.readline()
        if not answer.startswith(b"ready "):
            raise Refused(answer.decode())
        said += answer
        proof = prove(self.key, b"kvcake 2: a leader lets a worker go on", said)
        lines.write(b"go " + proof.hex().encode() + b"\n")
        lines.flush()
        self._connect(chain)

    def _connect(self, chain):
        addresses = b"".join(struct.pack("<Q", len(a)) + a.encode() for a in self.roster)
        roster = prove(b"", b"kvcake 2: the roster of a chain", chain, addresses)
        self.chain = socket.create_connection(self.peer)
        told = b"kvchain2" + struct.pack("<4I", 2, 1, 0, 0) + os.urandom(32) + bytes(32)
        self.chain.sendall(told)
        heard = self._exactly(len(told))
        proof = prove(self.key, b"kvcake 2: a rank calls another", roster, told, heard)
        self.chain.sendall(proof)
        self._exactly(32)

    def echo_facts(self):
        """What the worker says of itself, said back; then its link is measured."""
        self.send(FACTS_TAG, self.receive(FACTS_TAG))
        for _ in range(19):
            self.send(ECHO_TAG, self.receive(PROBE_TAG)[:8])
        self.receive(RECORD_TAG)

    def ask(self, tokens, **options):
        """A job; the worker's reason to refuse it, "" where it does not."""
        self.say(tokens, **options)
        refused, why = struct.unpack("<i508s", self.receive(ANSWER_TAG))
        return why.rstrip(b"\0").decode() if refused else ""

    def say(self, tokens, origin=0, bounds=None, parts=None, count=None):
        """A job."""
        bounds = bounds or [0, (len(tokens) - origin) // 2, len(tokens) - origin]
        self.send(HEADER_TAG, struct.pack("<7i", len(tokens) if count is None else count, origin,
                                          len(bounds) - 1 if parts is None else parts, 0, 1, 0, 0))
        self.send(BODY_TAG, struct.pack(f"<{len(bounds) + len(tokens)}i", *bounds, *tokens))

    def send(self, tag, data):
        self.chain.sendall(struct.pack("<IiQ", FRAME_MAGIC, tag, len(data)) + data)

    def receive(self, tag):
        while True:
            _, got, size = struct.unpack("<IiQ", self._exactly(16))
            data = self._exactly(size)
            if got == tag:
                return data

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.chain.recv(size - len(data))
            if not more:
                raise ConnectionError("hung up")
            data += more
        return data
