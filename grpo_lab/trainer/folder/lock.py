"""One run at a time in a folder: a lock of the operating system's, which ends with its process, however that ends."""

import contextlib
import errno
import json
import os
import platform
import time
from pathlib import Path

if os.name == "nt":
    import msvcrt
else:
    import fcntl

LOCK = "grpo_run.lock"
_FAR = 2**30  # the byte that is locked on Windows, where no locked byte can be read: beyond what the file says
_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """A context that holds the folder. Its file says who holds it; a file that a killed run left is no obstacle."""

    def __init__(self, folder: Path):
        self.path = folder / LOCK

    def __enter__(self):
        while True:
            file = open(self.path, "a+", encoding="utf-8")
            try:
                if not self._take(file):
                    raise BlockingIOError(self._refusal(file))
                # The run that held it may have removed the file between our opening and our locking it.
                if self._is_in_place(file):
                    self._sign(file)
                    self._file = file
                    return self
            except BaseException:
                file.close()
                raise
            file.close()

    def __exit__(self, *details):
        # On POSIX nobody may lock the file between its end and its removal; on Windows an open file stays.
        try:
            if os.name == "nt":
                self._file.close()
            with contextlib.suppress(OSError):
                self.path.unlink()
        finally:
            self._file.close()

    def _take(self, file) -> bool:
        try:
            if os.name == "nt":
                file.seek(_FAR)
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if error.errno not in _NO_LOCKS:
                raise
            print(f"{str(self.path.parent)!r} is on a file system without locks: see to it that no second run uses it")
        return True

    def _is_in_place(self, file) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        return False

    def _sign(self, file) -> None:
        file.truncate(0)
        who = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        file.write(json.dumps(who) + "\n")
        file.flush()

    def _refusal(self, file) -> str:
        file.seek(0)
        try:
            who = "process {pid} on {host}, since {since}".format(**json.loads(file.read()))
        except (ValueError, KeyError, TypeError):
            who = "a process that has just begun"
        return (
            f"output_dir is {str(self.path.parent)!r}, where another run is at work ({who}); "
            "wait for its end, stop it, or choose another folder"
        )
