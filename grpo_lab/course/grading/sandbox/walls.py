"""The inner wall, put up in the worker once everything is loaded: from then on Python and the kernel say no.

Python's audit hook cannot be taken off again, and works on every system; it stops what is tried in Python. On Linux a
filter of system calls stops the rest: no network, no new process, no signal to another one, however it is asked for.
Landlock, where the kernel has it, lets nothing be read or written but what is listed.
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

_CREATE_RULES, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_CHANGE = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8  # files written, folders and files removed, and made
_MOVE, _TRUNCATE, _OF_DEVICES = 1 << 13, 1 << 14, 1 << 15  # these came in versions 2, 3 and 5


def main() -> None:
    """Put the walls up in this process, to see whether they hold, and print what `close` returns."""
    print(json.dumps(close(os.getcwd(), [], [], 2**30, {})))


def close(folder: str, readable: list[str], hidden: list[str], memory: int, tried: dict[str, str]) -> dict[str, str]:
    """Put up every inner wall. Returns wall -> "", or why it could not be put up.

    folder: the only one that can be written. readable, hidden: of the places that hold a path the longest decides.
    tried: what this has returned before; a wall that did not stand then is not tried again.
    """
    standing = {"memory": limit_memory(memory)}
    standing["landlock"] = tried.get("landlock") or lock_files(folder, readable, hidden)
    standing["system calls"] = filter_system_calls()
    refused: list[str] = []
    sys.addaudithook(make_hook(folder, tuple(readable), tuple(hidden), refused))
    standing["audit"] = ""
    return standing


def make_hook(folder: str, readable: tuple[str, ...], hidden: tuple[str, ...], refused: list[str]) -> Callable:
    """The hook. It uses no name that a student's code could replace: all are bound here, and paths are plain text."""
    forbidden, families, changes, reads, harmless = FORBIDDEN, FORBIDDEN_FAMILIES, CHANGES, READS, HARMLESS
    folder, readable, hidden = _text(folder), tuple(map(_text, readable)), tuple(map(_text, hidden))
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
        if depth(path, readable) <= depth(path, hidden):
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


def lock_files(folder: str, readable: list[str], hidden: list[str]) -> str:
    """Landlock: from here on the kernel opens nothing for this thread, and those it starts, but what is listed."""
    if sys.platform != "linux":
        return "only Linux has it"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULES, None, 0, 1)
    if version < 1:
        return f"this kernel does not have it ({os.strerror(ctypes.get_errno())})"
    if len(os.listdir("/proc/self/task")) > 1:
        return "other threads of this process run already"
    change = _CHANGE | (_MOVE if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = (1 << 13) - 1 | change | (_OF_DEVICES if version >= 5 else 0)
    network, scopes = 3 if version >= 4 else 0, 3 if version >= 6 else 0  # TCP; signals and abstract sockets
    rules = struct.pack("=QQQ", handled, network, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    lock = libc.syscall(_CREATE_RULES, rules, len(rules), 0)
    if lock < 0:
        return f"the kernel refuses it ({os.strerror(ctypes.get_errno())})"
    reading = _READ_FILE | _READ_FOLDER
    _allow(libc, lock, folder, reading | change)
    for path in HARMLESS:
        _allow(libc, lock, path, _READ_FILE | (change & (1 << 1) if path == "/dev/null" else 0))
    for path, names_only in _without(readable, hidden):
        _allow(libc, lock, path, _READ_FOLDER if names_only else reading)
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, lock, 0):
        return f"the kernel refuses it ({os.strerror(ctypes.get_errno())})"
    os.close(lock)
    return ""


def _allow(libc, lock: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there needs no leave
        return
    if not os.path.isdir(path):
        access &= ~_READ_FOLDER
    libc.syscall(_ADD_RULE, lock, 1, struct.pack("=Qi", access, place), 0)
    os.close(place)


def _without(readable: list[str], hidden: list[str]) -> list[tuple[str, bool]]:
    """Rules for what is readable and not hidden: (path, whether only the names in it). A rule holds for all below."""
    rules, waiting = [], list(readable)
    while waiting:
        path = waiting.pop()
        if path in hidden:
            continue
        if any(one.startswith(path.rstrip("/") + "/") for one in hidden) and os.path.isdir(path):
            rules.append((path, True))
            waiting += [os.path.join(path, name) for name in os.listdir(path)]
        else:
            rules.append((path, False))
    return rules


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
