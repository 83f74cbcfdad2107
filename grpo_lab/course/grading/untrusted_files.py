"""The files of a folder or a zip archive from strangers: any depth, any name, links, pipes, zip bombs.

Nothing is unpacked; an archive is read like a folder. Listing files raises nothing, whatever a file is. Reading a file
may raise an InputError, whose message is a sentence for the report.
"""

import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.checks import InputError

MAX_NOTEBOOK_BYTES = 32_000_000  # largest file that is read
MAX_ARCHIVE_BYTES = 256_000_000  # largest archive within an archive
MAX_DEPTH = 12  # folders within folders
MAX_FILES = 20_000  # files below one entry of the folder
MAX_MEMBERS = 200_000  # files in an archive
MAX_NOTEBOOKS = 50  # notebooks of one student that are read
IGNORED_NAMES = ("__pycache__", "__macosx", "thumbs.db", "desktop.ini")  # files and folders that systems create


@dataclass(frozen=True)
class File:
    """A file from a stranger, in a folder or in an archive.

    Attributes:
        parts: The names of the folders and archives on the way to the file, and its own name.
        source: A function that reads the file.
        problem: The reason why the file cannot be read; "" if it can be.
    """

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
    """Yield all files at or below an entry of a folder. A folder that cannot be listed is yielded with a problem."""
    pending: list[tuple[Path, tuple[str, ...]]] = [(entry, (entry.name,))]
    files_seen = 0
    while pending:
        path, parts = pending.pop()
        if is_ignored(parts[-1]):
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
                yield from files_in_archive(Archive(path), parts)
            else:
                yield File(parts, partial(_file_content, path), _reason_unreadable(status))
        except OSError as error:
            yield File(parts, problem=f"it cannot be looked into ({error.strerror})")


class Archive(NamedTuple):
    """A zip archive, which may lie in another one, as in a platform's download of a class.

    Attributes:
        path: The path of the archive, or of the one that it lies in.
        inner: The entry of the archive in the one that it lies in; None if it lies in none.
    """

    path: Path
    inner: zipfile.ZipInfo | None = None


def files_in_archive(archive: Archive, parts: tuple[str, ...]) -> Iterator[File]:
    """Yield the files of a zip archive. The name of the archive, without its ending, counts as a folder.

    parts: The names on the way to the archive, and its own name.
    """
    try:
        with zipfile.ZipFile(_zip_source(archive)) as zip_file:
            members = zip_file.infolist()
    except Exception as error:  # the format has many ways to be broken
        problem = str(error) if isinstance(error, InputError) else "it cannot be read as a zip archive"
        yield File(parts, problem=problem)
        return
    parts = (*parts[:-1], file_stem(parts[-1]))
    for member in members[:MAX_MEMBERS]:
        names = tuple(name for name in member.filename.replace("\\", "/").split("/") if name not in ("", ".", ".."))
        if not names or member.is_dir() or any(is_ignored(name) for name in names):
            continue
        if not names[-1].lower().endswith(".zip"):
            yield File((*parts, *names), partial(_member_content, archive, member, MAX_NOTEBOOK_BYTES))
        elif archive.inner is None:
            yield from files_in_archive(Archive(archive.path, member), (*parts, *names))
        else:
            yield File((*parts, *names), problem="an archive in an archive in an archive is not looked into")
    if len(members) > MAX_MEMBERS:
        yield File((*parts, "…"), problem=f"there are more than {MAX_MEMBERS:,} files; the rest was not looked at")


@lru_cache(maxsize=1)  # the files of an inner archive are read one after the other, so it is read once
def _zip_source(archive: Archive) -> Path | io.BytesIO:
    """Return an archive in a form that `ZipFile` takes: its path, or the content of an inner archive."""
    if archive.inner is None:
        return archive.path
    return io.BytesIO(_member_content(Archive(archive.path), archive.inner, MAX_ARCHIVE_BYTES))


def _member_content(archive: Archive, member: zipfile.ZipInfo, max_bytes: int) -> bytes:
    """Read a file of an archive.

    This is called for one file at a time, because the archives of a class may be larger than the memory.

    Args:
        member: The entry of the file in the archive.
        max_bytes: The size above which the file is refused.
    """
    if member.file_size > max_bytes:
        raise InputError(_too_large(member.file_size, max_bytes))
    try:
        with zipfile.ZipFile(_zip_source(archive)) as zip_file, zip_file.open(member) as file:
            content = file.read(max_bytes + 1)
    except Exception as error:  # zlib raises errors of its own, and a missing password is a RuntimeError
        raise InputError(f"it cannot be read from its archive ({type(error).__name__})") from None
    if len(content) > max_bytes:
        raise InputError(_too_large(len(content), max_bytes))
    return content


def _reason_unreadable(status: os.stat_result) -> str:
    """Return the reason why a file cannot be read; "" for an ordinary file that is not too large."""
    if not stat.S_ISREG(status.st_mode):
        return "a link, not a file" if stat.S_ISLNK(status.st_mode) else "not an ordinary file"
    return _too_large(status.st_size, MAX_NOTEBOOK_BYTES) if status.st_size > MAX_NOTEBOOK_BYTES else ""


def _file_content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"it cannot be read ({error.strerror})") from None


def _too_large(size: int, max_bytes: int) -> str:
    return f"the file has {size / 1e6:.0f} MB; at most {max_bytes / 1e6:.0f} MB are read"


def is_ignored(name: str) -> bool:
    """Return True for a name that begins with a dot, and for names of files and folders that systems create."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def is_notebook(name: str) -> bool:
    """Return True for a name that ends in `.ipynb`, in any case, or in an ending that browsers append to it."""
    return name.lower().endswith((".ipynb", ".ipynb.txt", ".ipynb.json"))


def file_stem(name: str) -> str:
    """Return a file name without an ending that `is_notebook` accepts, or else without its last ending."""
    for ending in (".ipynb.txt", ".ipynb.json", ".ipynb"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return os.path.splitext(name)[0]
