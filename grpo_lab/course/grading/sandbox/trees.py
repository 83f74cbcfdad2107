"""Folders that a stranger's process left behind: measured and removed without recursion, however deep they are."""

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

MAX_ENTRIES = 100_000  # looked at for one measurement
TOO_MUCH = sys.maxsize


def size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def size_of_open(file) -> int:
    return os.fstat(file.fileno()).st_size


def size_of_tree(folder: Path) -> int:
    """Bytes of all files below. Folders too deep for a path, or very many entries, cannot be measured: `TOO_MUCH`."""
    total, seen, waiting = 0, 0, [str(folder)]
    while waiting:
        if seen > MAX_ENTRIES:
            return TOO_MUCH
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += size_of(Path(entry.path))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return TOO_MUCH
    return total


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it. What cannot be removed stays, and ends nothing.

    A folder within is moved up beside its parent first, so that no path grows and nothing calls itself: 1,500 folders
    deep is like 1,500 folders side by side.
    """
    if folder.is_symlink() or not folder.is_dir():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    try:
        aside = tempfile.mkdtemp(prefix="removed-", dir=folder.parent)
    except OSError:
        return
    waiting, number = [str(folder)], 0
    while waiting:
        current = waiting.pop()
        for entry in _entries(current):
            try:
                if entry.is_dir(follow_symlinks=False):
                    number += 1
                    os.chmod(entry.path, stat.S_IRWXU)  # a folder that may not be written cannot be moved either
                    os.rename(entry.path, os.path.join(aside, str(number)))
                    waiting.append(os.path.join(aside, str(number)))
                else:
                    _unlink(entry.path)
            except OSError:
                continue
        with contextlib.suppress(OSError):
            os.rmdir(current)
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(aside)


def _entries(folder: str) -> list[os.DirEntry]:
    try:
        os.chmod(folder, stat.S_IRWXU)
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except PermissionError:  # Windows keeps what is read-only
        os.chmod(path, stat.S_IWRITE)
        os.unlink(path)
