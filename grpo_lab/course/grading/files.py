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
from datetime import datetime
from pathlib import Path

MAX_NOTEBOOK = 32_000_000  # bytes of one file that is read
MAX_ARCHIVE = 256_000_000  # bytes of an archive within an archive
MAX_DEPTH, MAX_FILES = 12, 20_000  # folders within folders, and files below one entry of the class
GRADESCOPE_LIST = "submission_metadata.yml"  # who handed in what, beside the submissions of a download
UNSEEN = ("__pycache__", "__macosx", "thumbs.db", "desktop.ini")  # what systems leave behind, and names with a dot


@dataclass(frozen=True)
class File:
    """One file. `parts` are the names on the way to it, its own last; `path` is where it or its archive lies."""

    parts: tuple[str, ...]
    path: Path
    read: Callable[[], bytes]
    modified: float | None = None  # seconds since 1970

    @property
    def name(self) -> str:
        return self.parts[-1]


def walk(entry: Path) -> Iterator[File]:
    """All files at or below one entry of a folder; what cannot be looked into is a file whose reading says why."""
    waiting, found = [(entry, (entry.name,))], 0
    while waiting:
        path, parts = waiting.pop()
        if unseen(parts[-1]):
            continue
        found += 1
        if found > MAX_FILES:
            yield File(parts, path, refusing(f"there are more than {MAX_FILES:,} files; the rest was not looked at"))
            return
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and len(parts) > MAX_DEPTH:
                yield File(parts, path, refusing(f"folders more than {MAX_DEPTH} deep are not looked into"))
            elif stat.S_ISDIR(status.st_mode):
                below = sorted((path / name for name in os.listdir(path)), key=lambda p: p.name, reverse=True)
                waiting += [(one, (*parts, one.name)) for one in below]
            elif stat.S_ISREG(status.st_mode) and path.suffix.lower() == ".zip":
                yield from archived(path, parts)
            else:
                yield File(parts, path, _reader(path, status), status.st_mtime)
        except OSError as error:
            yield File(parts, path, refusing(f"it cannot be looked into ({error.strerror})"))


def archived(path: Path, parts: tuple[str, ...]) -> Iterator[File]:
    """The files of a zip archive; its own name, without the ending, stands for a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield from _members(archive, path, (*parts[:-1], stem(parts[-1])), depth=0)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RecursionError, ValueError) as error:
        yield File(parts, path, refusing(f"it cannot be read as a zip archive ({type(error).__name__})"))


def _members(archive: zipfile.ZipFile, path: Path, parts: tuple[str, ...], depth: int) -> Iterator[File]:
    members = archive.infolist()
    for number, member in enumerate(members):
        below = tuple(name for name in member.filename.replace("\\", "/").split("/") if name not in ("", ".", ".."))
        if member.is_dir() or not below or any(unseen(name) for name in below):
            continue
        if number >= MAX_FILES:
            yield File((*parts, below[-1]), path, refusing(f"the archive has more than {MAX_FILES:,} files"))
            return
        if below[-1].lower().endswith(".zip"):
            yield from _within(archive, member, path, (*parts, *below), depth)
        else:
            # Everything is read now: the archive is closed by the time that anybody asks.
            wanted = is_notebook(below[-1]) or below[-1] == GRADESCOPE_LIST
            read = _once(lambda m=member: _content(archive, m, MAX_NOTEBOOK)) if wanted else refusing("no notebook")
            yield File((*parts, *below), path, read, _time(member))


def _within(archive, member, path: Path, parts: tuple[str, ...], depth: int) -> Iterator[File]:
    """An archive in an archive, as a learning platform hands out a class; no deeper."""
    try:
        if depth:
            raise ValueError("an archive in an archive in an archive is not looked into")
        with zipfile.ZipFile(io.BytesIO(_content(archive, member, MAX_ARCHIVE))) as inner:
            yield from _members(inner, path, (*parts[:-1], stem(parts[-1])), depth + 1)
    except (ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        said = str(error) if isinstance(error, ValueError) else "it cannot be read as a zip archive"
        yield File(parts, path, refusing(said))


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    if member.file_size > most:
        raise ValueError(_too_large(member.file_size, most))
    try:
        with archive.open(member) as file:
            content = file.read(most + 1)
    except (RuntimeError, NotImplementedError, zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        # zlib's own error is no OSError, and a password is a RuntimeError
        raise ValueError(f"it cannot be read out of its archive ({type(error).__name__})") from None
    except Exception as error:
        raise ValueError(f"it cannot be read out of its archive ({type(error).__name__})") from None
    if len(content) > most:
        raise ValueError(_too_large(len(content), most))
    return content


def _time(member: zipfile.ZipInfo) -> float | None:
    """An archive keeps the time that the clock showed, without a zone: it is taken for local time, as a deadline is."""
    try:
        return datetime(*member.date_time).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _reader(path: Path, status: os.stat_result) -> Callable[[], bytes]:
    if not stat.S_ISREG(status.st_mode):
        return refusing("a link, not a file" if stat.S_ISLNK(status.st_mode) else "no ordinary file")
    if status.st_size > MAX_NOTEBOOK:
        return refusing(_too_large(status.st_size, MAX_NOTEBOOK))

    def read() -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise ValueError(f"it cannot be read ({error.strerror})") from None

    return read


def _once(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Reads at once; says later what it got, or why it got nothing."""
    try:
        content = read()
    except ValueError as error:
        return refusing(str(error))
    return lambda: content


def refusing(why: str) -> Callable[[], bytes]:
    def read() -> bytes:
        raise ValueError(why)

    return read


def _too_large(size: int, most: int) -> str:
    return f"the file has {size / 1e6:.0f} MB; at most {most / 1e6:.0f} MB are read"


def unseen(name: str) -> bool:
    return name.startswith(".") or name.lower() in UNSEEN


def is_notebook(name: str) -> bool:
    """`.ipynb` in any case, and what browsers make of it."""
    return name.lower().endswith((".ipynb", ".ipynb.txt", ".ipynb.json"))


def stem(name: str) -> str:
    """The name without what `is_notebook` accepts, or without its last ending."""
    for ending in (".ipynb.txt", ".ipynb.json", ".ipynb"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return os.path.splitext(name)[0]
