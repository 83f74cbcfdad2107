"""Files that a command will write when its work is done: whether it can is found out before the work."""

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
    try:
        # Not os.access, which knows nothing of a full disk or of the rules of a share.
        with tempfile.TemporaryFile(dir=file.parent) as trial:
            trial.write(b"{}")
    except OSError as error:
        raise ArgumentTypeError(f"is {text!r}; expected a file that can be written, but: {error.strerror}") from None
    return file
