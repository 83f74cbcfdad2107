"""End a run right before its n-th change to the file system, as a power cut or SIGKILL would, or let changes fail.

Python reports each change to audit hooks before it is made, by this package, transformers or shutil.
"""

import errno
import os
import sys
from pathlib import Path

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TAKES_NO_ROOM = {"os.rename", "os.remove", "os.rmdir", "os.truncate"}


class Killed(BaseException):
    """The end of a killed run; no Exception, so that no `except Exception` catches it."""


class FileFaults:
    """A context that raises `Killed` before a given change to the files of a folder.

    `changes` counts the changes that were made before.

    Args:
        folder: Folder whose changes are counted.
        failing_change: Number of the change, from 0, before which the run ends; None counts only.
        fault: Error number of the system. With it, this change and all later ones raise OSError and the run goes on.
            With ENOSPC (a full disk) changes that need no room are made.
    """

    _armed: "FileFaults | None" = None
    _hooked = False

    def __init__(self, folder: Path, failing_change: int | None, fault: int | None = None):
        self.folder, self.failing_change, self.fault = str(folder), failing_change, fault
        self.changes, self._fsync = 0, os.fsync
        self._on_disk: dict[int, int] = {}  # inode of a file: number of bytes that survive a power cut

    def __enter__(self):
        if not FileFaults._hooked:
            sys.addaudithook(_hook)
            FileFaults._hooked = True
        self._on_disk = {path.stat().st_ino: path.stat().st_size for path in self._files()}
        os.fsync = self._sync
        FileFaults._armed = self
        return self

    def __exit__(self, *details):
        FileFaults._armed = None
        os.fsync = self._fsync

    def count_change(self, event: str, path: str, flags: int = 0) -> None:
        if self.failing_change is not None and self.changes >= self.failing_change:
            if self.fault is None:
                self.kill_run()
            if self.fault != errno.ENOSPC or event not in _TAKES_NO_ROOM:
                raise OSError(self.fault, os.strerror(self.fault), path)
        self.changes += 1
        if event == "os.remove" or flags & os.O_TRUNC:
            self._forget(path)

    def kill_run(self) -> None:
        self.__exit__()
        self.lose_unsynced_bytes()
        raise Killed

    def lose_unsynced_bytes(self) -> None:
        """Truncate each file to half of the bytes that were written and not yet synced to the disk."""
        for path in self._files():
            before, after = self._on_disk.get(path.stat().st_ino, 0), path.stat().st_size
            if after > before:
                os.truncate(path, (before + after) // 2)

    def _sync(self, number: int) -> None:
        status = os.fstat(number)
        self._on_disk[status.st_ino] = status.st_size

    def _forget(self, path: str) -> None:
        if os.path.exists(path):
            self._on_disk.pop(os.stat(path).st_ino, None)

    def _files(self) -> list[Path]:
        return [path for path in Path(self.folder).rglob("*") if path.is_file()]


def _hook(event, arguments):
    faults = FileFaults._armed
    if faults is None or not (event in _CHANGES or event == "open"):
        return
    has_path = isinstance(arguments[0], str | bytes | os.PathLike)  # the alternative is the number of an open file
    if event == "open" and not (has_path and arguments[2] & _WRITING):
        return
    path = os.fsdecode(arguments[0]) if has_path else ""
    # On Linux, shutil.rmtree passes paths relative to the open folder.
    if path.startswith(faults.folder) or not os.path.isabs(path):
        faults.count_change(event, path, arguments[2] if event == "open" else 0)
        if event == "os.rename":
            faults._forget(os.fsdecode(arguments[1]))
