"""What may happen to a store's directory while a server uses it."""
import os
import pathlib
import shutil
import sys
import threading
import traceback

from damage import flip_in
from server_fixture import WAIT_S


class Vandal:
    """Damages a store, in one way at a time, from a thread of its own while it is let loose."""

    def __init__(self, store, rng, pause_s=0.3):
        self.store = pathlib.Path(store)
        self._aside = self.store.with_name("aside")  # not in the store, where it could be damaged
        self.done = {}  # how often, by what was done
        self._rng = rng
        self._pause_s = pause_s
        self._stop = None
        self._thread = None
        self._error = None  # that ended the thread

    def __enter__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(WAIT_S)
        if self._thread.is_alive():
            stack = traceback.format_stack(sys._current_frames()[self._thread.ident])
            raise AssertionError("what damages the store hangs:\n" + "".join(stack))
        if self._error:
            raise self._error

    def _run(self):
        deeds = [self.cut, self.cut, self.flip, self.flip, self.flip, self.remove, self.remove,
                 self.swap, self.litter, self.directory_for_file, self.pipe_for_file,
                 self.link_for_file, self.remove_directory, self.remove_all, self.take_away,
                 self.forbid]
        while not self._stop.wait(self._rng.uniform(0, 2 * self._pause_s)):
            deed = self._rng.choice(deeds)
            try:
                deed()
            except OSError:  # the server was there first
                continue
            except Exception as error:
                self._error = error
                return
            self.done[deed.__name__] = self.done.get(deed.__name__, 0) + 1

    def _chunk(self):
        """Some chunk's file."""
        files = [path for path in self.store.glob("v1/*/*/*") if path.is_file()]
        if not files:
            raise FileNotFoundError("no chunks")
        return self._rng.choice(files)

    def cut(self):
        path = self._chunk()
        os.truncate(path, self._rng.randrange(path.stat().st_size + 1))

    def flip(self):
        """A bit, as often in the header as in what follows."""
        path = self._chunk()
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size  # of what is open: the name may be another's now
            if size == 0:
                return
            offset = self._rng.randrange(self._rng.choice([min(size, 4096), size]))
            flip_in(file, offset, bit=self._rng.randrange(8))

    def remove(self):
        self._chunk().unlink()

    def swap(self):
        """Two chunks that are whole, each with the other's name."""
        one, two = self._chunk(), self._chunk()
        one.rename(self._aside)
        two.rename(one)
        self._aside.rename(two)

    def litter(self):
        where = self._chunk().parent
        for name in ("no chunk", "ab" * 32):
            self._aside.write_bytes(b"?" * self._rng.randrange(5000))
            self._aside.rename(where / name)  # where a pipe may be by now, whose opening would wait

    def directory_for_file(self):
        path = self._chunk()
        path.unlink()
        path.mkdir()

    def pipe_for_file(self):
        path = self._chunk()
        path.unlink()
        os.mkfifo(path)

    def link_for_file(self):
        path = self._chunk()
        path.unlink()
        path.symlink_to(self._rng.choice(["/dev/zero", path.name, "/nowhere"]))

    def remove_directory(self):
        shutil.rmtree(self._chunk().parent, ignore_errors=True)

    def remove_all(self):
        shutil.rmtree(self.store / "v1", ignore_errors=True)

    def take_away(self):
        """The store is a file for a while, and comes back as it was."""
        aside = self.store.with_name("away")
        self.store.rename(aside)
        try:
            self.store.write_text("no directory")
            self._stop.wait(self._pause_s)
        finally:
            if self.store.is_dir():
                shutil.rmtree(aside)
            else:
                self.store.unlink(missing_ok=True)
                aside.rename(self.store)

    def forbid(self):
        """No permission for a while (root needs none)."""
        directories = [self.store, *self.store.glob("v1"), *self.store.glob("v1/*")]
        path = self._rng.choice(directories)
        path.chmod(self._rng.choice([0, 0o500]))
        try:
            self._stop.wait(self._pause_s)
        finally:
            path.chmod(0o700)
