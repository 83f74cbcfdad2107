"""Ends a run right before its n-th change to the file system, as a power cut or SIGKILL would, for every n.

Python reports each such change to audit hooks first, whoever makes it: this package, transformers or shutil.
"""

import os
import sys
from pathlib import Path

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """Not an Exception, so that nobody catches it by mistake."""


class Axe:
    """As a context, it falls before change number `at` under `folder`; `changes` counts those that were let through."""

    _armed: "Axe | None" = None
    _hooked = False

    def __init__(self, folder: Path, at: int | None, exit_process: bool = False):
        self.folder, self.at, self.exit_process = str(folder), at, exit_process
        self.changes, self._last_open = 0, None

    def __enter__(self):
        if not Axe._hooked:
            sys.addaudithook(_hook)
            Axe._hooked = True
        Axe._armed = self
        return self

    def __exit__(self, *details):
        Axe._armed = None

    def see(self, event: str, path: str) -> None:
        if self.changes == self.at:
            Axe._armed = None
            self.spoil()
            if self.exit_process:
                os._exit(9)
            raise Killed
        self.changes += 1
        if event == "open":
            before = os.path.getsize(path) if os.path.exists(path) else 0
            self._last_open = (path, before)

    def spoil(self) -> None:
        """Leave half of what was being written: the last file opened, and whatever is in an unfinished folder."""
        if self._last_open and os.path.exists(self._last_open[0]):
            path, before = self._last_open
            after = os.path.getsize(path)
            if after > before:
                os.truncate(path, (before + after) // 2)
        for path in Path(self.folder).glob("unfinished-*/**/*"):
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)


def _hook(event, arguments):
    axe = Axe._armed
    if axe is None or not (event in _CHANGES or event == "open"):
        return
    named = isinstance(arguments[0], str | bytes | os.PathLike)  # and not by the number of an open file
    if event == "open" and not (named and arguments[2] & _WRITING):
        return
    path = os.fsdecode(arguments[0]) if named else ""
    # On Linux, shutil.rmtree names files relative to the folder that it has open.
    if path.startswith(axe.folder) or not os.path.isabs(path):
        axe.see(event, path)
