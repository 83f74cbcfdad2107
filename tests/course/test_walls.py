"""The inner walls: what the filter of system calls answers, what Python's hook refuses, which limits hold."""

import errno
import json
import os
import struct
import subprocess
import sys

import pytest

from grpo_lab.course.grading.sandbox import jail, walls
from tests.course.submitted import LINUX

ALLOW, EPERM, ENOSYS, NOTHING, KILL = 0x7FFF0000, 0x50000 + errno.EPERM, 0x50000 + 38, 0x50000, 0x80000000
OTHER = 4_000  # the number of some other process
# What is asked for: numbers on x86-64 and on 64-bit ARM, arguments, the answer.
ASKED = {
    "read": ((0, 63), (), ALLOW),
    "openat": ((257, 56), (), ALLOW),
    "futex": ((202, 98), (), ALLOW),
    "exit_group": ((231, 94), (), ALLOW),
    "rseq": ((334, 293), (), ALLOW),
    "a thread": ((56, 220), (0x3D0F00,), ALLOW),
    "a process": ((56, 220), (17,), EPERM),
    "clone3": ((435, 435), (), ENOSYS),
    "execve": ((59, 221), (), EPERM),
    "socket": ((41, 198), (), EPERM),
    "accept4": ((288, 242), (), EPERM),
    "kill": ((62, 129), (OTHER, 9), EPERM),
    "memfd_create": ((319, 279), (), EPERM),
    "shmget": ((29, 194), (), EPERM),
    "mq_open": ((240, 180), (), EPERM),
    "setpriority": ((141, 140), (0, OTHER, 7), EPERM),
    "sched_setaffinity": ((203, 122), (OTHER,), EPERM),
    "its own limits": ((302, 261), (0,), ALLOW),
    "another's limits": ((302, 261), (OTHER,), EPERM),
    "F_GETFL": ((72, 25), (3, 3), ALLOW),
    "F_DUPFD_CLOEXEC": ((72, 25), (3, 1030), ALLOW),
    "F_SETOWN": ((72, 25), (3, 8, OTHER), EPERM),
    "F_SETSIG": ((72, 25), (3, 10, 9), EPERM),
    "F_SETLEASE": ((72, 25), (3, 1024), EPERM),
    "a thread's name": ((157, 167), (15,), ALLOW),
    "not to die with the jail": ((157, 167), (1, 0), EPERM),
    "fchmod": ((91, 52), (3, 0), NOTHING),
    "utimensat": ((280, 88), (), NOTHING),
    "symlinkat": ((266, 36), (), EPERM),
    "mount": ((165, 40), (), EPERM),
    "fchmodat2": ((452, 452), (), ENOSYS),
    "what is not invented yet": ((999, 999), (), ENOSYS),
    "another numbering": ((0x40000000, 0x40000000), (), ENOSYS),
}


def answer(machine: int, number: int, arguments: tuple[int, ...], architecture: int | None = None) -> int:
    """What a kernel does with the filter, instruction for instruction."""
    architecture = walls._ARCHITECTURES[machine] if architecture is None else architecture
    words = struct.pack("=IIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    program = list(struct.iter_unpack("=HBBI", walls._filter(machine)))
    assert len(program) < 4096
    held, at = 0, 0
    while True:
        code, yes, no, value = program[at]
        if code == 0x06:
            return value
        if code == 0x20:
            (held,) = struct.unpack_from("=I", words, value)
            at += 1
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x25: held > value, 0x45: bool(held & value)}[code]
        at += 1 + (yes if holds else no)


@pytest.mark.parametrize("machine", [0, 1], ids=walls._MACHINES)
@pytest.mark.parametrize("asked", ASKED)
def test_the_filter_lets_through_what_a_notebook_needs(asked, machine):
    numbers, arguments, expected = ASKED[asked]
    assert answer(machine, numbers[machine], arguments) == expected


def test_the_filter_ends_what_speaks_another_machine_s_language():
    assert answer(0, 0, (), walls._ARCHITECTURES[1]) == KILL


IN_THE_WALLS = """
import contextlib, json, os, runpy, shutil, sys, threading
walls, folder = runpy.run_path(sys.argv[1]), sys.argv[2]
import _posixshmem
os.chdir(folder)
standing = walls["close"](folder, [sys.prefix, sys.base_prefix], [], 2**31, {"landlock": "not now"})
found = {}
def attempt(name, call):
    try:
        found[name] = call()
    except (OSError, AttributeError) as error:
        found[name] = type(error).__name__
def modes():
    open("a", "w").close()
    os.chmod("a", 0)
    shutil.copy2("a", "b")
    return oct(os.stat("a").st_mode & 0o777), os.path.exists("b")
def threads():
    thread = threading.Thread(target=lambda: found.update(inside=True))
    thread.start(), thread.join()
attempt("modes", modes), attempt("threads", threads)
attempt("memfd", lambda: os.memfd_create("x"))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 7))
attempt("processors", lambda: os.sched_setaffinity(os.getppid(), {0}))
attempt("link", lambda: os.link("a", "c"))
attempt("shared memory", lambda: _posixshmem.shm_open("/grpo-lab-test", os.O_CREAT | os.O_RDWR, 0o600))
print(json.dumps([standing["system calls"], found]))
"""


@pytest.mark.skipif(not LINUX, reason="only Linux has it")
def test_in_the_walls_files_are_copied_threads_start_and_the_rest_is_refused(tmp_path):
    os.umask(before := os.umask(0))
    done = _python(IN_THE_WALLS, walls.__file__, tmp_path)
    why, found = json.loads(done)
    if why:
        pytest.skip(why)
    assert found.pop("modes") == [oct(0o666 & ~before), True] and found.pop("inside") and found.pop("threads") is None
    assert found.pop("shared memory") == "AttributeError"
    assert set(found.values()) == {"PermissionError"}, found


def _python(code: str, *arguments) -> str:
    command = [sys.executable, "-I", "-B", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def ask(tmp_path):
    """Ask the hook of a run whose folder is `own`, while `lib` may be read: True if it lets it be."""
    for place in ("own/below/x", "lib/x", "secret/x"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(place, encoding="utf-8")
    hook = walls.make_hook(str(tmp_path / "own"), (str(tmp_path / "lib"),), (), [])

    def ask(event: str, *arguments) -> bool:
        try:
            hook(event, arguments)
            return True
        except PermissionError:
            return False

    return ask


def test_the_hook_goes_by_where_a_path_leads(ask, tmp_path):
    own, lib, secret = (tmp_path / name for name in ("own", "lib", "secret"))
    assert ask("open", str(lib / "x"), "r", os.O_RDONLY) and ask("open", "below/x", "w", os.O_WRONLY)
    assert not ask("open", str(secret / "x"), "r", os.O_RDONLY)
    assert not ask("open", f"{lib}/../secret/x", "r", os.O_RDONLY) and not ask("open", "../secret/x", "r", os.O_RDONLY)
    assert ask("open", f"{lib}/below/../x", "r", os.O_RDONLY) and ask("open", os.fsencode(lib / "x"), "r", os.O_RDONLY)
    if not LINUX:
        pytest.skip("not everybody may make links on Windows")
    (lib / "out").symlink_to(secret)
    (lib / "deep").symlink_to(own / "below")
    (lib / "round").symlink_to("round")
    for path in ("out/x", "out/../secret/x", "deep/../../secret/x", "round/x"):
        assert not ask("open", f"{lib}/{path}", "r", os.O_RDONLY), path
    assert ask("open", f"{lib}/deep/x", "r", os.O_RDONLY) and ask("open", f"{lib}/out/../lib/x", "r", os.O_RDONLY)


def test_the_hook_believes_no_text_that_is_a_student_s_own(ask, tmp_path):
    class Liar(str):
        def split(self, *arguments):
            return str(tmp_path / "lib").split("/")

        startswith = replace = __eq__ = lambda self, *arguments: True
        __hash__ = str.__hash__

    assert not ask("open", Liar(tmp_path / "secret" / "x"), "r", os.O_RDONLY)


def test_no_folder_is_opened_but_one_s_own_and_no_open_file_changes_its_mode(ask, tmp_path):
    assert ask("open", str(tmp_path / "own" / "below"), None, os.O_RDONLY)
    assert not ask("open", str(tmp_path / "lib"), None, os.O_RDONLY) and ask("os.listdir", str(tmp_path / "lib"))
    assert ask("open", str(tmp_path / "lib" / "x"), None, os.O_RDONLY)
    assert not ask("os.chmod", 3, 0, -1) and not ask("os.utime", 3, None, None, -1)
    assert ask("os.truncate", 3, 0) and ask("os.listdir", 3)


def test_the_hook_lets_no_file_send_signals(ask):
    fcntl = pytest.importorskip("fcntl")
    assert ask("fcntl.fcntl", 3, fcntl.F_GETFL, 0) and ask("fcntl.fcntl", 3, fcntl.F_SETFD, 1)
    assert not ask("fcntl.fcntl", 3, fcntl.F_SETOWN, OTHER)


LIMITED = """
import os, runpy, sys
runpy.run_path(sys.argv[1])["set_limits"](600)
os.chdir(sys.argv[2])
kept, written = [], 0
try:
    while True:
        kept.append(os.open("x", os.O_CREAT | os.O_RDWR))
except OSError:
    pass
os.unlink("x")
try:
    while True:
        written += os.write(kept[-1], b"x" * 100_000)
except OSError:
    print(len(kept) * written)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_what_is_deleted_and_kept_open_stays_below_a_gigabyte(tmp_path):
    assert int(_python(LIMITED, jail.__file__, tmp_path)) < 1_100_000_000
