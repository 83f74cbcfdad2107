"""The files of a folder or a zip archive, as strangers made them: any depth, any name, links, pipes, bombs.

Nothing is unpacked: an archive is read like a folder. Nothing here raises for what a file is; reading one raises
ValueError with a sentence for the report.
"""

import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from grpo_lab.base.checks import InputError

MAX_NOTEBOOK = 32_000_000  # bytes of one file that is read
MAX_ARCHIVE = 256_000_000  # bytes of an archive within an archive
MAX_DEPTH, MAX_FILES, MAX_MEMBERS = 12, 20_000, 200_000  # folders within folders; files of an entry, and of an archive
MAX_NOTEBOOKS = 50  # of one student
UNSEEN = ("__pycache__", "__macosx", "thumbs.db", "desktop.ini")  # what systems leave behind, and names with a dot


@dataclass(frozen=True)
class File:
    """One file. `parts` are the names on the way to it, its own last; `problem` says why nothing reads it."""

    parts: tuple[str, ...]
    source: Callable[[], bytes] = bytes
    problem: str = ""

    @property
    def name(self) -> str:
        return self.parts[-1]

    def read(self) -> bytes:
        if self.problem:
            raise InputError(self.problem)
        return self.source()


def walk(entry: Path) -> Iterator[File]:
    """All files at or below one entry of a folder; what cannot be looked into is a file whose reading says why."""
    pending, files_seen = [(entry, (entry.name,))], 0
    while pending:
        path, parts = pending.pop()
        if unseen(parts[-1]):
            continue
        files_seen += 1
        if files_seen > MAX_FILES:
            yield File(parts, problem=f"there are more than {MAX_FILES:,} files; the rest was not looked at")
            return
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and len(parts) > MAX_DEPTH:
                yield File(parts, problem=f"folders more than {MAX_DEPTH} deep are not looked into")
            elif stat.S_ISDIR(status.st_mode):
                entries = sorted((path / name for name in os.listdir(path)), key=lambda p: p.name, reverse=True)
                pending += [(child, (*parts, child.name)) for child in entries]
            elif stat.S_ISREG(status.st_mode) and path.suffix.lower() == ".zip":
                yield from archived((path,), parts)
            else:
                yield File(parts, partial(_bytes_of, path), _unreadable(status))
        except OSError as error:
            yield File(parts, problem=f"it cannot be looked into ({error.strerror})")


def archived(location: tuple, parts: tuple[str, ...]) -> Iterator[File]:
    """The files of a zip archive; its own name, without the ending, stands for a folder.

    location: the path of the archive; for one that lies in another, as a platform hands out a class, also its entry.
    """
    try:
        if len(location) > 2:
            raise InputError("an archive in an archive in an archive is not looked into")
        with zipfile.ZipFile(_opened(*location)) as archive:
            members = archive.infolist()
    except Exception as error:  # the format has many ways to be broken
        problem = str(error) if isinstance(error, InputError) else "it cannot be read as a zip archive"
        yield File(parts, problem=problem)
        return
    parts = (*parts[:-1], stem(parts[-1]))
    for member in members[:MAX_MEMBERS]:
        names = tuple(name for name in member.filename.replace("\\", "/").split("/") if name not in ("", ".", ".."))
        if not names or member.is_dir() or any(unseen(name) for name in names):
            continue
        if names[-1].lower().endswith(".zip"):
            yield from archived((*location, member), (*parts, *names))
        else:
            yield File((*parts, *names), partial(_content, MAX_NOTEBOOK, member, *location))
    if len(members) > MAX_MEMBERS:
        yield File((*parts, "…"), problem=f"there are more than {MAX_MEMBERS:,} files; the rest was not looked at")


@lru_cache(maxsize=1)  # of several files in one, one after the other is asked for
def _opened(path: Path, *member: zipfile.ZipInfo) -> Path | io.BytesIO:
    return io.BytesIO(_content(MAX_ARCHIVE, *member, path)) if member else path


def _content(max_bytes: int, member: zipfile.ZipInfo, *location) -> bytes:
    """A file of an archive, read when somebody asks: the archives of a class may hold more than a memory does."""
    if member.file_size > max_bytes:
        raise InputError(_too_large(member.file_size, max_bytes))
    try:
        with zipfile.ZipFile(_opened(*location)) as archive, archive.open(member) as file:
            content = file.read(max_bytes + 1)
    except Exception as error:  # zlib has errors of its own, and a password is a RuntimeError
        raise InputError(f"it cannot be read out of its archive ({type(error).__name__})") from None
    if len(content) > max_bytes:
        raise InputError(_too_large(len(content), max_bytes))
    return content


def _unreadable(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "a link, not a file" if stat.S_ISLNK(status.st_mode) else "no ordinary file"
    return _too_large(status.st_size, MAX_NOTEBOOK) if status.st_size > MAX_NOTEBOOK else ""


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})") from None


def _too_large(size: int, max_bytes: int) -> str:
    return f"the file has {size / 1e6:.0f} MB; at most {max_bytes / 1e6:.0f} MB are read"


def unseen(name: str) -> bool:
    return name.startswith(".") or name.lower() in UNSEEN


def is_notebook(name: str) -> bool:
    """Recognise `.ipynb` in any case, and what browsers make of it."""
    return name.lower().endswith((".ipynb", ".ipynb.txt", ".ipynb.json"))


def stem(name: str) -> str:
    """A file name without what `is_notebook` accepts, or without its last ending."""
    for ending in (".ipynb.txt", ".ipynb.json", ".ipynb"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return os.path.splitext(name)[0]
