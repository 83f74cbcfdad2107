"""The outer wall: limits, and on Linux a view of the machine that ends at the worker's own folder. Run as a script.

    python jail.py SPEC.json      start the worker behind the walls and hand on how it ended
    python jail.py --probe        print as JSON which walls this machine can put up

It uses nothing but the standard library and is gone before any code of a student runs. On Linux the worker gets name
spaces of its own: no network, no process but itself, every file read-only, and what it must not read covered up. This
needs no privilege, but some systems forbid it (most containers do); then `--probe` says so, and so does the report.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x00020000  # user, network, process, ipc, mount
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
NOBODY = 65534
MAX_FILE = 64_000_000


def libc():
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments) -> None:
    if getattr(libc(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def set_limits(cpu_seconds: int) -> None:
    """Of processor time, of the size of a file, and no memory dumps; memory is limited once torch is loaded."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, most in (("CPU", cpu_seconds), ("FSIZE", MAX_FILE), ("CORE", 0), ("NOFILE", 512)):
        number = getattr(resource, f"RLIMIT_{kind}")
        _, hard = resource.getrlimit(number)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def enter_namespaces() -> None:
    """No way back from here, for this process and for all that it starts."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", NEW_NAMESPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def build_view(view: Path, shown: dict[str, str], hidden: list[str], kept: list[str]) -> None:
    """Show `shown` (name -> folder) under `view`, cover `hidden` but for the ways to `kept`, and forbid to write."""
    _call("mount", b"tmpfs", os.fsencode(view), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m")
    for name, folder in shown.items():
        (view / name).mkdir()
        _call("mount", os.fsencode(folder), os.fsencode(view / name), None, MS_BIND | MS_REC, None)
    for path in hidden:
        _cover(Path(path), [Path(k) for k in (*kept, view)])
    _set_readonly("/", True)
    _set_readonly(view / "run", False)


def _cover(path: Path, kept: list[Path]) -> None:
    """Put nothing over the path; where something in it has to stay, over everything beside the way to that."""
    if not path.exists() or path.is_symlink() or path in kept:
        return
    if path.is_dir() and any(k.is_relative_to(path) for k in kept):
        for child in path.iterdir():
            _cover(child, kept)
    elif path.is_dir():
        _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=4k")
    else:
        _call("mount", b"/dev/null", os.fsencode(path), None, MS_BIND, None)


def _set_readonly(path, readonly: bool) -> None:
    flags = [RDONLY, 0] if readonly else [0, RDONLY]  # to set, to clear
    attributes = (ctypes.c_uint64 * 4)(*flags, 0, 0)
    recursive = AT_RECURSIVE if readonly else 0
    _call("syscall", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), recursive, attributes, 32)


def run_behind(command: list[str], environment: dict[str, str], folder: str) -> int:
    """Start the command as the first process of its own world: when it ends, all that it started ends with it."""
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
            _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
            _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            os.chdir(folder)
            os.execve(command[0], command, environment)  # the last rights go here: the user is nobody
        except BaseException as error:
            print(f"jail: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(70)
    assert launcher == os.getpid()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main(spec_path: str) -> int:
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    set_limits(spec["cpu_seconds"])
    if spec["namespaces"]:
        enter_namespaces()
        build_view(Path(spec["view"]), spec["shown"], spec["hidden"], spec["kept"])
        return run_behind(spec["command"], spec["environment"], spec["folder"])
    return subprocess.call(
        spec["command"], env=spec["environment"], cwd=spec["folder"], stdin=subprocess.DEVNULL, close_fds=True
    )


def probe(view: str) -> dict[str, str]:
    """Wall -> "" if it stands, or why it does not."""
    found = {"limits": "", "namespaces": ""}
    try:
        import resource  # noqa: F401
    except ImportError:
        found["limits"] = "this system has no limits of memory and processor time for a process"
    if sys.platform != "linux":
        return found | {"namespaces": "only Linux has them"}
    try:
        enter_namespaces()
        (Path(view) / "world").mkdir()
        run = Path(view) / "run"
        run.mkdir()
        build_view(Path(view) / "world", {"run": str(run)}, [], [])
        code = run_behind([sys.executable, "-I", "-S", "-c", "pass"], {}, str(Path(view) / "world"))
        if code != 0:
            found["namespaces"] = f"a process in them ended with {code}"
    except OSError as error:
        found["namespaces"] = f"this system forbids them ({error.strerror or error})"
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--probe":
        print(json.dumps(probe(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1]))
