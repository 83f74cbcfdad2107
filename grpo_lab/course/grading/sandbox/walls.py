"""The inner wall, put up in the worker once everything is loaded: from then on Python and the kernel say no.

Python's audit hook cannot be taken off again, and works on every system; it stops what is tried in Python. On Linux a
filter of system calls stops the rest: no network, no new process, nothing done to another one, no memory that belongs
to nobody, no change of a file's mode, however it is asked for. Landlock, where the kernel has it, lets nothing be read
or written but what is listed.
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
_FOLDER, _MAX_LINKS = 0o040000, 40
_OWN_ONLY = ("DUPFD", "DUPFD_CLOEXEC", "GETFD", "SETFD", "GETFL", "SETFL", "GETLK", "SETLK", "SETLKW")  # for fcntl

# What nobody needs to compute an advantage, by its numbers on x86-64 and on 64-bit ARM.
DENIED = {
    "the network": ("41-55 288 299 307", "198-212 242-243 269"),
    "new processes": ("57-59 322", "221 281"),
    "signals": ("62 129 200 234 297", "129-131 138 240"),
    "others' memory, priority and processors": (
        "101 141-142 144 203 251 256 279 310-312 314", "30 117-119 122 140 238-239 270-272 274",
    ),
    "memory and queues beside processes and files": (
        "29-31 64-71 206-210 220 240-245 253-255 294 300-301 319 333", "0-4 26-28 180-197 262-263 279 292",
    ),
    "links, devices, attributes, whole disks": (
        "86 88 133 162 179 188-190 197-199 259 265-266 303-304 306", "5-7 14-16 33 36-37 60 81 264-265 267",
    ),
    "the machine": (
        "103 134-135 153-156 159 161 163-176 180 212 227 246 248-250 272 298 305 308 313 320-321 323",
        "18 39-42 51 58 89 92 97 104-106 112 116 142 161-162 170-171 217-219 224-225 241 266 268 273 280 282 294",
    ),
}  # fmt: skip
# Modes, owners and times of files: nothing is done and no error comes, since copying a file asks for them in passing.
PRETENDED = ("90-94 132 235 260-261 268 280", "52-55 88")
# Calls that depend on one argument: numbers, which argument, and its values that are allowed, or that are not.
ARGUMENTS = (
    ((72, 25), 1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032), True),  # fcntl: no owners of signals, no leases
    ((302, 261), 0, (0,), True),  # prlimit64: of this process
    ((157, 167), 0, (1,), False),  # prctl: whoever looks after this process takes it along
)
NEWEST = 424  # those from here on are the same everywhere; the system's library goes on without them
_MACHINES, _ARCHITECTURES, _CLONE, _THREAD = ("x86_64", "aarch64"), (0xC000003E, 0xC00000B7), (56, 220), 0x10000

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
    vars(sys.modules.get("_posixshmem", sys)).pop("shm_open", None)  # it makes files, and Python's hook sees none of it
    refused: list[str] = []
    sys.addaudithook(make_hook(folder, tuple(readable), tuple(hidden), refused))
    standing["audit"] = ""
    return standing


def make_hook(folder: str, readable: tuple[str, ...], hidden: tuple[str, ...], refused: list[str]) -> Callable:
    """The hook. It uses no name that a student's code could replace: all are bound here, and paths are plain text."""
    forbidden, families, changes, reads, harmless = FORBIDDEN, FORBIDDEN_FAMILIES, CHANGES, READS, HARMLESS
    folder, readable, hidden = _text(folder), tuple(map(_text, readable)), tuple(map(_text, hidden))
    real, depth, problem, writing, commands = _real, _depth, PermissionError, _WRITING, _commands()
    a_string, a_number, is_a, fspath, status, no_file = str, int, isinstance, os.fspath, os.stat, OSError
    plain, decode, coding = str.__str__, bytes.decode, (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())

    def refuse(what: str):
        if len(refused) < 20:
            refused.append(what)
        raise problem(f"{what} is not allowed while a submission is graded")

    def may(path, write: bool, event: str) -> None:
        if path is None or is_a(path, a_number):
            if write and event in changes and event != "os.truncate":  # a file that is open to be read has a mode, too
                refuse(f"{event}: changing a file that is open")
            return
        path = fspath(path)
        path = plain(path) if is_a(path, a_string) else decode(path, *coding)
        if path in harmless:
            return
        path = real(path, folder)
        if depth(path, (folder,)):
            return
        if write:
            refuse(f"{event}: writing outside of the folder of this run")
        if depth(path, readable) <= depth(path, hidden):
            refuse(f"{event}: reading {path[:200]!r}")

    def is_folder(path) -> bool:
        try:
            return not is_a(path, a_number) and status(path).st_mode & 0o170000 == _FOLDER
        except no_file:
            return False

    def hook(event: a_string, arguments: tuple) -> None:
        if event == "open":
            may(arguments[0], bool(arguments[2] & writing), event)
            if arguments[1] is None and is_folder(arguments[0]):  # names can be asked for from there, unseen
                may(arguments[0], True, event)
        elif event in forbidden or event.startswith(families):
            refuse(event)
        elif event in changes:
            for path in arguments[: 2 if event == "os.rename" else 1]:
                may(path, True, event)
        elif event in reads:
            may(arguments[0] if arguments else None, False, event)
        elif event == "fcntl.fcntl" and arguments[1] not in commands:
            refuse(f"{event} {arguments[1]}")
        elif event == "object.__setattr__" and arguments[1] == "__code__":
            refuse(event)

    hook.refused = refused
    return hook


def _commands() -> set[int]:
    """Of `fcntl`, those that concern nobody but this process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return set()
    return {getattr(fcntl, f"F_{name}") for name in _OWN_ONLY if hasattr(fcntl, f"F_{name}")}


def _real(path: str, start: str, link: Callable[[str], str] = os.readlink, separator: str = os.sep) -> str:
    """As `_text`, and links are followed as the system does it: `link/..` is where the link leads. None can be made."""
    if separator == "\\":  # there, `..` goes first
        return _text(path, start)
    waiting, done, followed = [*reversed(f"{start}/{path}".split("/"))], "", 0
    if path.startswith("/"):
        waiting = [*reversed(path.split("/"))]
    while waiting:
        part = waiting.pop()
        if part == "..":
            done = done.rpartition("/")[0]
        elif part not in ("", "."):
            try:
                target = link(f"{done}/{part}")
            except OSError:  # no link
                done = f"{done}/{part}"
                continue
            followed += 1
            if followed > _MAX_LINKS:
                return "/"
            done = "" if target.startswith("/") else done
            waiting += reversed(target.split("/"))
    return done or "/"


def _text(path: str, start: str = "") -> str:
    """The path without `.`, `..` and doubled slashes, from the root."""
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
    if sys.platform != "linux" or machine not in _MACHINES:
        return f"no filter of system calls for {sys.platform} on {machine}"
    program = _filter(_MACHINES.index(machine))
    buffer = ctypes.create_string_buffer(program)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    whole = Program(len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(whole), 0, 0):
        return f"the kernel refuses it ({os.strerror(ctypes.get_errno())})"
    return ""


def _filter(machine: int) -> bytes:
    """Berkeley packet filter: EPERM for what is denied, threads allowed, processes not; else go on."""
    allow, eperm, enosys, nothing, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050000, 0x80000000
    load, equal, at_least, above, bits, give = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
    tests = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[machine]), (give, 0, 0, kill), (load, 0, 0, 0)]
    tests += [(at_least, 0, 1, NEWEST), (give, 0, 0, enosys)]
    for groups, answer in ((DENIED.values(), eperm), ([PRETENDED], nothing)):
        for first, last in _ranges(" ".join(group[machine] for group in groups)):
            tests += [(at_least, 0, 2, first), (above, 1, 0, last), (give, 0, 0, answer)]
    for numbers, argument, values, allowed in ARGUMENTS:
        tests += [(equal, 0, len(values) + 3, numbers[machine]), (load, 0, 0, 16 + 8 * argument)]
        # Each value jumps over the others, and over the answer to all others.
        jumps = [(equal, len(values) - i, 0, value) for i, value in enumerate(values)]
        tests += [*jumps, (give, 0, 0, eperm if allowed else allow), (give, 0, 0, allow if allowed else eperm)]
    tests += [(equal, 0, 3, _CLONE[machine]), (load, 0, 0, 16), (bits, 1, 0, _THREAD), (give, 0, 0, eperm)]
    return b"".join(struct.pack("=HBBI", *test) for test in [*tests, (give, 0, 0, allow)])


def _ranges(text: str) -> list[tuple[int, int]]:
    """From "3-5 9", [(3, 5), (9, 9)]."""
    parts = [part.split("-") for part in text.split()]
    return [(int(part[0]), int(part[-1])) for part in parts]


if __name__ == "__main__":
    main()
