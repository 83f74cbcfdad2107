"""Where a command will write when its work is done: whether it can is found out before the work."""

import tempfile
from argparse import ArgumentTypeError
from pathlib import Path


def writable_file(text: str) -> Path:
    """The type of an option such as --json: the path of a file that can be written, in a folder that is there.

    A file that is there already is left as it is.
    """
    file = Path(text)
    if not text or file.is_dir():
        raise ArgumentTypeError(f"is {text!r}{', a folder' * bool(text)}; expected the name of a file")
    if not file.parent.is_dir():
        raise ArgumentTypeError(f"is {text!r}; expected a file in a folder that exists, and {file.parent} does not")
    _try_to_write(text, file.parent, "file")
    return file


def writable_folder(text: str) -> Path:
    """The type of an option such as --output: the path of a folder that can be written to, or that can be made.

    Nothing is made yet.
    """
    folder = Path(text)
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not text or not there.is_dir():
        found = f", and {'it' if there == folder else there} is a file" if text else ""
        raise ArgumentTypeError(f"is {text!r}{found}; expected a folder")
    _try_to_write(text, there, "folder")
    return folder


def _try_to_write(text: str, folder: Path, kind: str) -> None:
    # Not os.access, which knows nothing of a full disk or of the rules of a share.
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"{}")
    except OSError as error:
        why = error.strerror or error
        raise ArgumentTypeError(f"is {text!r}; expected a {kind} that can be written, but: {why}") from None
