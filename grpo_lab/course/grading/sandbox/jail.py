"""The outer wall: limits, and on Linux a machine in which there is nothing but what is shown. Run as a script.

    python jail.py SPEC.json      start the worker behind the walls and hand on how it ended
    python jail.py --probe        print as JSON which walls this machine can put up

It uses nothing but the standard library, and its own process never runs code of a student. On Linux the worker gets
name spaces of its own: no network, no process but itself, and a new root with its own folder, Python, its libraries and
the stripped package; only its own folder can be written. This needs no privilege, but some systems forbid it (most
containers do); then `--probe` says so, and so does the report.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000  # user, network, process, ipc
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, RDONLY, MNT_DETACH = 442, -100, 0x8000, 1, 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, CAPABILITIES_3 = 1, 36, 38, 0x20080522
NOBODY = 65534
MAX_FILE, MAX_OPEN, MAX_LOG, MAX_TASKS = 16_000_000, 64, 1_000_000, 100
LOOK = 0.02  # seconds between two looks at the worker
FAILED, CROWD = 70, 71  # exit codes: the walls could not be put up; too many threads or processes


def libc():
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments) -> None:
    if getattr(libc(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def set_limits(cpu_seconds: int) -> None:
    """Of processor time, of files and their size; no memory dumps. Memory is limited once torch is loaded.

    A file that is deleted and kept open takes room, and nobody sees it: so they are few, and small.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, most in (("CPU", cpu_seconds), ("FSIZE", MAX_FILE), ("CORE", 0), ("NOFILE", MAX_OPEN)):
        number = getattr(resource, f"RLIMIT_{kind}")
        _, hard = resource.getrlimit(number)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def launch(spec: dict, act: Callable[[], None], hung_up: Callable[[], bool] = lambda: False) -> int:
    """Fork. The child goes behind the outer wall and acts; this process looks after it and returns its exit code.

    When the child ends, all that it started ends with it, and so it does when `hung_up` returns True.
    """
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever it leaves behind becomes a child of this process
    if spec["namespaces"]:
        enter_namespaces()
    child = os.fork()
    if child == 0:
        try:
            if spec["namespaces"]:
                enter_root(Path(spec["view"]), spec["shown"], spec["hidden"], spec["folder"])
            give_up_rights()
            os.closerange(3, 2**16)
            os.chdir(spec["folder"])
            act()
        except BaseException as error:
            print(f"jail: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(FAILED)
    return _look_after(child, hung_up)


def enter_namespaces() -> None:
    """No way back from here, for this process and for all that it starts."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", NEW_NAMESPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")


def enter_root(view: Path, shown: dict[str, str], hidden: list[str], own: str) -> None:
    """Make a root at `view` that holds what is shown (place -> what lies there), and leave all else behind.

    What is hidden is covered where it lies in something shown. Nothing can be written but below `own`.
    """
    _call("unshare", NEW_MOUNTS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(view), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m")
    _show(view, shown, hidden)
    (view / "proc").mkdir()
    _call("mount", b"proc", os.fsencode(view / "proc"), b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    _set_readonly(view, True)
    _set_readonly(Path(f"{view}{own}"), False)
    os.chdir(view)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _show(view: Path, shown: dict[str, str], hidden: list[str]) -> None:
    """From the root downwards. No place is made in a folder that is shown: that would be made on the real machine."""
    done: dict[Path, bool] = {}  # place -> whether it is shown there, or covered
    for place in sorted({*map(Path, shown), *map(Path, hidden)}, key=lambda path: len(path.parts)):
        around = next((done[parent] for parent in place.parents if parent in done), False)
        source, target = shown.get(str(place)), Path(f"{view}{place}")
        if (source is not None) == around or (source is None and not target.exists()):
            continue
        if source is not None:
            _make_place(target, os.path.isdir(source))
            _call("mount", os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None)
        elif target.is_dir():
            _call("mount", b"tmpfs", os.fsencode(target), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64k")
        else:
            _call("mount", b"/dev/null", os.fsencode(target), None, MS_BIND, None)
        done[place] = source is not None


def _make_place(target: Path, folder: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        target.mkdir(exist_ok=True)
    else:
        target.touch()


def _set_readonly(path: Path, readonly: bool) -> None:
    flags = [RDONLY, 0] if readonly else [0, RDONLY]  # to set, to clear
    attributes = (ctypes.c_uint64 * 4)(*flags, 0, 0)
    recursive = AT_RECURSIVE if readonly else 0
    _call("syscall", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), recursive, attributes, 32)


def give_up_rights() -> None:
    """Those of root as well: in name spaces it was needed to build them, elsewhere the teacher may be root."""
    _call("capset", (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)())
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _look_after(child: int, hung_up: Callable[[], bool]) -> int:
    crowd = False
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        running, tasks = _started()
        crowd = crowd or tasks > MAX_TASKS
        if crowd or hung_up():
            _end(running)
        time.sleep(LOOK)
    _end(_started()[0])
    return CROWD if crowd else os.waitstatus_to_exitcode(ended[1])


def _started() -> tuple[list[int], int]:
    """All processes below this one, and how many threads they have."""
    found, tasks, waiting = [], 0, [os.getpid()]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}/task")
        try:
            threads = os.listdir(folder)
            tasks += len(threads)
            children = [int(pid) for thread in threads for pid in (folder / thread / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        found += children
        waiting += children
    return found, tasks - 1


def _end(processes: list[int]) -> None:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main(spec_path: str) -> int:
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    set_limits(spec["cpu_seconds"])
    command, environment = spec["command"], spec["environment"]
    if sys.platform == "linux":  # Python finds its environment by the name it is called by, the loader by the real one
        return launch(spec, lambda: os.execve(os.path.realpath(command[0]), command, environment))
    return subprocess.call(command, env=environment, cwd=spec["folder"], stdin=subprocess.DEVNULL, close_fds=True)


def probe(view: str) -> dict[str, str]:
    """Wall -> "" if it stands, or why it does not."""
    found = {"limits": "", "namespaces": ""}
    try:
        import resource  # noqa: F401
    except ImportError:
        found["limits"] = "this system has no limits of memory and processor time for a process"
    if sys.platform != "linux":
        return found | {"namespaces": "only Linux has them"}
    spec = {"namespaces": True, "view": view, "shown": {"/own": view}, "hidden": [], "folder": "/own"}
    try:
        code = launch(spec, lambda: os._exit(0 if os.listdir("/") == ["proc", "own"] else FAILED))
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
