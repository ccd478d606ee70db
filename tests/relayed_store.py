"""A directory that a process serves by FUSE, read only, so that a store can be killed:

    relayed_store.py FOLDER MOUNT OPENED

Serves FOLDER at MOUNT. When so many chunks have been opened it says "held" and answers nothing any
more, until a line on stdin says how many may follow. Who kills it then kills a store in mid-load,
and every call on MOUNT fails from there on.
"""
from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 27, 28, 29, 34, 36, 42
WRITING = {4, 6, 8, 9, 10, 11, 12, 13, 16, 35, 45}  # setattr, symlink, mknod, mkdir and so on
CAN_FUSE = os.path.exists("/dev/fuse") and shutil.which("fusermount3") is not None


def mount(where: str) -> int:
    """The kernel's end, by fusermount3, which anybody may use."""
    ours, theirs = socket.socketpair()
    subprocess.run(["fusermount3", "-o", "ro,fsname=kvcake-test", "--", where], check=True,
                   pass_fds=[theirs.fileno()],
                   env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())})
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    return descriptors[0]


def attributes(status: os.stat_result) -> bytes:
    return struct.pack("<6Q10I", status.st_ino, status.st_size, status.st_blocks,
                       int(status.st_atime), int(status.st_mtime), int(status.st_ctime), 0, 0, 0,
                       status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0)


class Relay:
    def __init__(self, folder: str, device: int, may_open: int) -> None:
        self._device, self._may_open = device, may_open  # chunks
        self._paths = {1: folder}
        self._nodes = {folder: 1}

    def run(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it was interrupted
                    continue
                return  # unmounted
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            if operation == OPEN and len(os.path.basename(self._paths[node])) == 64:
                self._hold_if_enough()
            try:
                status, answer = 0, self._answer(operation, node, request[40:])
            except OSError as error:
                status, answer = -(error.errno or errno.EIO), b""
            os.write(self._device, struct.pack("<IiQ", 16 + len(answer), status, unique) + answer)

    def _hold_if_enough(self) -> None:
        if self._may_open == 0:
            print("held", flush=True)
            self._may_open = int(sys.stdin.readline())
        self._may_open -= 1

    def _answer(self, operation: int, node: int, body: bytes) -> bytes:
        path = self._paths.get(node, "")
        if operation == INIT:
            major, minor, ahead, _ = struct.unpack_from("<4I", body)
            return struct.pack("<4I2H2I2H8I", major, min(minor, 31), ahead, 0, 12, 9, 4096, 1, 32,
                               0, *[0] * 8)
        if operation == LOOKUP:
            path = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            status = os.lstat(path)
            node = self._nodes.setdefault(path, len(self._nodes) + 1)
            self._paths[node] = path
            return struct.pack("<4Q2I", node, 0, 3600, 3600, 0, 0) + attributes(status)
        if operation == GETATTR:
            return struct.pack("<Q2I", 3600, 0, 0) + attributes(os.lstat(path))
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if operation == READ:
            _, offset, count = struct.unpack_from("<QQI", body)
            with open(path, "rb") as file:
                return os.pread(file.fileno(), count, offset)
        if operation == READDIR:
            _, offset, count = struct.unpack_from("<QQI", body)
            return self._entries(path, offset, count)
        if operation == STATFS:
            return struct.pack("<5Q10I", 1 << 30, 1 << 29, 1 << 29, 1 << 20, 1 << 19, 4096, 255,
                               4096, 0, *[0] * 6)
        if operation in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            return b""
        raise OSError(errno.EROFS if operation in WRITING else errno.ENOSYS, "")

    @staticmethod
    def _entries(path: str, offset: int, count: int) -> bytes:
        made = b""
        for i, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
            status, raw = os.lstat(os.path.join(path, name)), os.fsencode(name)
            entry = struct.pack("<QQII", status.st_ino, i, len(raw), status.st_mode >> 12) + raw
            entry += bytes(-len(entry) % 8)
            if len(made) + len(entry) > count:
                break
            made += entry
        return made


class Relayed:
    """What a test holds: a process that serves `folder` at `where`."""

    def __init__(self, folder: pathlib.Path, where: pathlib.Path, opened: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(where), str(opened)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._told, self._said = self._process.stdin, self._process.stdout
        if self._said.readline() != "mounted\n":
            raise OSError("the relay has ended")

    def wait_held(self) -> bool:
        """Sleeps until it holds a call; False: it has ended."""
        return self._said.readline() == "held\n"

    def go_on(self, opened: int) -> None:
        """Answers what it holds; it holds the next call when so many chunks were opened."""
        self._told.write(f"{opened}\n")
        self._told.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._told.close()
        self._said.close()


@contextlib.contextmanager
def relayed(folder: pathlib.Path, opened: int) -> Iterator[Relayed]:
    """`folder` goes aside, and is served where it was."""
    aside = folder.with_name(folder.name + ".aside")
    folder.rename(aside)
    folder.mkdir()
    try:
        relay = Relayed(aside, folder, opened)
        try:
            yield relay
        finally:
            relay.kill()
            subprocess.run(["fusermount3", "-u", "-z", "--", str(folder)], check=True)
    finally:
        folder.rmdir()
        aside.rename(folder)


if __name__ == "__main__":
    fuse = mount(sys.argv[2])
    print("mounted", flush=True)
    Relay(sys.argv[1], fuse, int(sys.argv[3])).run()
