"""The inner wall, put up in the worker once everything is loaded: from then on Python and the kernel say no.

Python's audit hook cannot be taken off again, and works on every system; it stops what is tried in Python. On Linux a
filter of system calls stops the rest: no network, no new process, no signal to another one, however it is asked for.
"""

import ctypes
import json
import os
import platform
import struct
import sys
from collections.abc import Callable

FORBIDDEN = {
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "os.chdir", "os.fchdir", "os.chroot", "os.exec",
    "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.posix_spawn", "os.spawn", "os.startfile",
    "os.symlink", "os.system", "pty.spawn", "signal.pthread_kill", "sys._current_frames", "webbrowser.open",
}  # fmt: skip
FORBIDDEN_FAMILIES = ("socket.", "subprocess.", "ctypes.", "winreg.", "_winapi.", "syslog.", "resource.")
CHANGES = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime",
    "os.setxattr", "os.removexattr", "os.chflags", "os.lchmod", "os.mknod",
}  # fmt: skip
READS = {"os.listdir", "os.scandir", "os.getxattr", "os.listxattr"}
HARMLESS = ("/dev/null", "/dev/urandom", "/proc/self/status", "/proc/self/maps", "/proc/cpuinfo", "/proc/meminfo")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# x86_64 and aarch64 numbers of what nobody needs to compute an advantage.
SYSCALLS = {
    "x86_64": (0xC000003E, 56, (
        41, 42, 53, 57, 58, 59, 62, 101, 129, 165, 166, 200, 234, 248, 249, 250, 272, 297, 298, 304, 308, 310, 311,
        321, 322, 323, 424, 425, 434, 438,
    )),
    "aarch64": (0xC00000B7, 220, (
        198, 199, 203, 221, 281, 129, 117, 138, 40, 39, 130, 131, 217, 218, 219, 97, 240, 241, 265, 268, 270, 271,
        280, 282, 424, 425, 434, 438,
    )),
}  # fmt: skip
_CLONE3, _THREAD, _X32 = 435, 0x10000, 0x40000000


def main() -> None:
    """Put the walls up in this process, to see whether they hold, and print what `close` returns."""
    print(json.dumps(close(os.getcwd(), [], [], 2**30)))


def close(folder: str, hidden: list[str], kept: list[str], memory: int) -> dict[str, str]:
    """Put up every inner wall. Returns wall -> "", or why it could not be put up."""
    standing = {"memory": limit_memory(memory), "system calls": filter_system_calls()}
    refused: list[str] = []
    sys.addaudithook(make_hook(folder, tuple(hidden), tuple(kept), refused))
    standing["audit"] = ""
    return standing


def make_hook(folder: str, hidden: tuple[str, ...], kept: tuple[str, ...], refused: list[str]) -> Callable:
    """The hook. It uses no name that a student's code could replace: all are bound here, and paths are plain text."""
    forbidden, families, changes, reads, harmless = FORBIDDEN, FORBIDDEN_FAMILIES, CHANGES, READS, HARMLESS
    folder, hidden, kept = _text(folder), tuple(map(_text, hidden)), tuple(map(_text, kept))
    text, depth, problem, writing = _text, _depth, PermissionError, _WRITING
    a_string, a_number, is_a, fspath, decode = str, int, isinstance, os.fspath, os.fsdecode

    def refuse(what: str):
        if len(refused) < 20:
            refused.append(what)
        raise problem(f"{what} is not allowed while a submission is graded")

    def may(path, write: bool, event: str) -> None:
        if path is None or is_a(path, a_number):
            return
        path = text(decode(fspath(path)), folder)
        if depth(path, (folder,)) or path in harmless:
            return
        if write:
            refuse(f"{event}: writing outside of the folder of this run")
        if path.startswith("/proc/") or depth(path, hidden) > depth(path, kept):
            refuse(f"{event}: reading {path[:200]!r}")

    def hook(event: a_string, arguments: tuple) -> None:
        if event == "open":
            may(arguments[0], bool(arguments[2] & writing), event)
        elif event in forbidden or event.startswith(families):
            refuse(event)
        elif event in changes:
            for path in arguments[: 2 if event == "os.rename" else 1]:
                may(path, True, event)
        elif event in reads:
            may(arguments[0] if arguments else None, False, event)
        elif event == "object.__setattr__" and arguments[1] == "__code__":
            refuse(event)

    hook.refused = refused
    return hook


def _text(path: str, start: str = "") -> str:
    """The path without `.`, `..` and doubled slashes, from the root. Links are not followed: none can be made."""
    path = path.replace("\\", "/") if os.sep == "\\" else path
    if not (path.startswith("/") or path[1:2] == ":"):
        path = f"{start}/{path}"
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part.lower() if os.sep == "\\" else part)
    return ("" if parts and parts[0][1:2] == ":" else "/") + "/".join(parts)


def _depth(path: str, folders: tuple[str, ...]) -> int:
    """How long the longest of the folders is that hold the path; 0 if none does."""
    longest = 0
    for one in folders:
        if (path == one or path.startswith(one + "/")) and len(one) > longest:
            longest = len(one)
    return longest


def limit_memory(extra: int) -> str:
    """At most so many bytes more than now."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))
        return ""
    except (ImportError, OSError, ValueError) as error:
        return f"no limit of memory on this system ({type(error).__name__})"


def filter_system_calls() -> str:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in SYSCALLS:
        return f"no filter of system calls for {sys.platform} on {machine}"
    program = _filter(*SYSCALLS[machine])
    buffer = ctypes.create_string_buffer(program)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    whole = Program(len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(whole), 0, 0):
        return f"the kernel refuses it ({os.strerror(ctypes.get_errno())})"
    return ""


def _filter(architecture: int, clone: int, denied: tuple[int, ...]) -> bytes:
    """Berkeley packet filter: EPERM for what is denied, threads allowed, processes not; else go on."""
    allow, eperm, enosys, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
    load, equal, at_least, bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    tests = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    tests += [(at_least, 0, 1, _X32), (give, 0, 0, eperm), (equal, 0, 1, _CLONE3), (give, 0, 0, enosys)]
    for number in denied:
        tests += [(equal, 0, 1, number), (give, 0, 0, eperm)]
    tests += [(equal, 0, 3, clone), (load, 0, 0, 16), (bits, 1, 0, _THREAD), (give, 0, 0, eperm), (give, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", code, yes, no, value) for code, yes, no, value in tests)


if __name__ == "__main__":
    main()
