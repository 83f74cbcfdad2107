"""Files that survive a crash: written under another name, flushed to the disk, and only then moved into place."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNFINISHED = "grpo_run.unfinished"  # the run's own folder for what is not finished


def as_json(value: Any, **how) -> str:
    """JSON with the letters themselves, for people to read; NaN and infinity, which JSON does not have, are null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, ensure_ascii=False, allow_nan=False, **how)


def write_whole(path: Path, text: str) -> None:
    """Write a file of the run: after a crash it has either the old text or the new one."""
    unfinished = path.parent / UNFINISHED / path.name
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    flush(unfinished)
    publish(unfinished, path)


def publish(unfinished: Path, final: Path) -> None:
    """Move a file or folder, itself flushed already, into its place."""
    os.replace(unfinished, final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # has no such thing, and needs none
        return
    number = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(number)
    except OSError:
        if not is_folder:  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(number)


def flush_and_describe(folder: Path) -> dict[str, list]:
    """Flush a folder; returns size in bytes and SHA-256 of every file in it, by its path below it, with slashes."""
    for path in (*folder.rglob("*"), folder):
        flush(path)
    return {name: [(folder / name).stat().st_size, digest(folder / name)] for name in sorted(names_below(folder))}


def names_below(folder: Path) -> set[str]:
    """The files in a folder and in those inside it, by their paths below it, with slashes."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault(folder: Path, files: dict[str, list]) -> str | None:
    """How the files in a folder differ from their description, in words; None if they don't. Others may be there."""
    for name, (size, checksum) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes; expected {size:,}"
        if digest(path) != checksum:
            return f"{name} is not what was written: its checksum differs"
    return None


@contextlib.contextmanager
def explained(path: Path, remedy: str, done: str = "written") -> Iterator[None]:
    """Turn an error of the file system into one sentence: which file, what is wrong, and the remedy once it is not."""
    try:
        yield
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))  # safetensors and tokenizers write in Rust
        number = int(found[1]) if found else getattr(error, "errno", None)
        if number is None:
            raise
        where = os.fspath(getattr(error, "filename", None) or path)
        said = f"{where!r} could not be {done} ({os.strerror(number)}): mend that, then {remedy}"
        raise OSError(number, said) from error
