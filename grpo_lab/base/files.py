"""Text files that are written completely or not at all, and that survive a crash of the machine."""

import contextlib
import os
from pathlib import Path


def write_atomically(file: Path, text: str, unfinished_folder: Path | None = None) -> None:
    """Write a text file so that after a crash it holds either the old text or the new one.

    An unpaired surrogate, half of a character that UTF-8 cannot encode, is written as a question mark.

    Args:
        file: The file to write.
        text: Its new content.
        unfinished_folder: Folder on the same disk for the file while it is written, which is made if it does not exist.
            None writes it beside the file, with the ending ".unfinished".
    """
    if unfinished_folder is None:
        unfinished = file.with_name(file.name + ".unfinished")
    else:
        unfinished_folder.mkdir(exist_ok=True)
        unfinished = unfinished_folder / file.name
    unfinished.write_bytes(text.encode("utf-8", "replace"))
    flush(unfinished)
    publish(unfinished, file)


def publish(unfinished: Path, final: Path) -> None:
    """Move a file or folder that has been flushed to its final place, and flush the folder that contains it."""
    os.replace(unfinished, final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk; a folder only if the system supports it."""
    is_folder = path.is_dir()
    with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
