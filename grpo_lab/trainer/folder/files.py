"""Files that outlive a power cut: written under another name, on the disk, and only then put in their place.

What is unfinished lies in one folder of the run's own, `grpo_run.unfinished`; nothing else has such a name.
"""

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

UNFINISHED = "grpo_run.unfinished"
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}  # file systems that cannot sync a folder


def write_whole(path: Path, text: str) -> None:
    """Write a file of the run: a reader, and whoever comes after a power cut, finds the old text or the new one."""
    unfinished = path.parent / UNFINISHED / path.name
    unfinished.parent.mkdir(exist_ok=True)
    with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    publish(unfinished, path)


def publish(unfinished: Path, final: Path) -> None:
    """Put a file or folder, itself on the disk already, in its place, for good."""
    os.replace(unfinished, final)
    sync_folder(final.parent)


def sync_file(path: Path) -> None:
    """Wait until the file is on the disk. (Windows wants it open for writing.)"""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder are on the disk. Windows has no such thing, and needs none."""
    if os.name == "nt":
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """Wait until everything in the folder is on the disk."""
    for path in sorted(folder.rglob("*")):
        sync_folder(path) if path.is_dir() else sync_file(path)
    sync_folder(folder)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(folder: Path) -> dict[str, list]:
    """Size in bytes and SHA-256 of every file in the folder, by its path below it, with slashes."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, digest(path)] for path in found}


def fault(folder: Path, files: dict[str, list]) -> str | None:
    """What distinguishes the files in a folder from those described, in words; None if nothing does.

    Files that are not described are somebody else's, and no fault.
    """
    for name, (size, checksum) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes; expected {size:,}"
        if digest(path) != checksum:
            return f"{name} is not what was written: its checksum differs"
    return None


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove these files of a folder, then the folders that this leaves empty. Whatever else is there stays."""
    paths = [folder / name for name in names]
    for path in paths:
        if path.is_file() or path.is_symlink():
            path.unlink()
    below = {parent for path in paths for parent in path.parents if parent.is_relative_to(folder)}
    for path in sorted(below | {folder}, key=lambda path: -len(path.parts)):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def remove_all(folder: Path) -> None:
    """Remove a folder in which everything is the run's own."""
    remove(folder, [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()])
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        path.rmdir()
    if folder.is_dir():
        folder.rmdir()


@contextlib.contextmanager
def explained(path: Path, remedy: str, done: str = "written") -> Iterator[None]:
    """Make one sentence of whatever the file system says below: which file, what is wrong, what to do.

    remedy: what is to be done once the cause is gone.
    done: "written" or "read".
    """
    try:
        yield
    except Exception as error:  # the writers of safetensors and tokenizers raise errors of their own
        number = _number(error)
        if number is None or _is_explained(error):
            raise
        where = os.fspath(getattr(error, "filename", None) or path)
        kind = type(error) if isinstance(error, OSError) else OSError
        said = kind(f"{where!r} could not be {done} ({os.strerror(number)}): {_cause(number)}, then {remedy}")
        said.errno = number
        raise said from error


def _number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno or (0 if _is_explained(error) else errno.EIO)
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _is_explained(error: Exception) -> bool:
    """Whether it is a sentence of ours already, rather than what the system said."""
    return isinstance(error, OSError) and not error.strerror and bool(error.args)


def _cause(number: int) -> str:
    if number in _FULL:
        return "make room on the disk"
    if number in _CLOSED:
        return "make it readable and writable for you"
    if number == errno.ENOTDIR:
        return "move the file away that has the name of a folder"
    return "look after the disk"
