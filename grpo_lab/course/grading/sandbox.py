"""Where a stranger's notebook runs: a process of its own, behind a wall, with a package that lacks the answers.

The wall is bubblewrap on Linux, or a container of Docker where there is none. Without either, `grade` wants `--trust`:
then the process has a clean environment and limits, and where the teacher is root, it belongs to nobody.

parent (this file)  -- stdin: what to run; the library's source of what has been judged -->  worker (`worker.py`)
                    <-- stdout: the step that it is at; outcomes, as data --

The parent neither runs nor unpickles anything of a student's, and what is right is computed in the parent only.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import einops
import safetensors
import torch

import grpo_lab
from grpo_lab.course.checking.outcome_file import MAX_FILE, load_outcomes
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.package_copy import library_source, make_copy

START_SECONDS = 180.0
MEMORY, FILES = 4 * 2**30, 256_000_000  # bytes of memory beyond what is loaded, and of files
MAX_STARTS, MAX_TASKS, MAX_LINE, LOOK = 12, 100, 1_000_000, 0.05
ENDLESS = "took longer than the time limit"
CROWD = f"started more than {MAX_TASKS} threads or processes"
UNREACHED = "The notebook used up its time before this exercise."
IMAGE = "grpo-lab-grade"  # of the Dockerfile at the root of the repository
NOBODY = 65534
STRONG = ("bubblewrap", "docker")
NO_WALL = (
    "there is no sandbox on this machine ({why}). Install bubblewrap (Linux) or build the image of the Dockerfile; or, "
    "if you trust those who handed in, give --trust: their code then runs as an ordinary process"
)
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_KEPT = ("SYSTEMROOT", "WINDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")

# Of one notebook: for each exercise its outcomes by seed, or a sentence that says why there are none; and by the number
# of each cell that failed, why.
Answers = dict[str, dict[int, list] | str]
Failures = dict[str, str]


def walls() -> tuple[str, str]:
    """The strongest wall that this machine has, and why there is no stronger one.

    Returns:
        "bubblewrap", "docker", "another user" or "none"; the last two hold no stranger.
    """
    reasons = []
    bubblewrap, docker = [*_bubblewrap([], "/"), "true"], ["docker", "image", "inspect", IMAGE]
    for name, probe in (("bubblewrap", bubblewrap), ("docker", docker)):
        if not (why := _fails(probe)):
            return name, ""
        reasons.append(f"{name}: {why}")
    as_nobody = [os.path.realpath(sys.executable), "-I", "-c", "import torch"]
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    weakest = "another user" if root and not _fails(as_nobody, **_as_nobody()) else "none"
    return weakest, "; ".join(reasons)


def chosen_wall(trust: bool) -> str:
    """The strongest wall; one that holds no stranger only with `trust`.

    Raises:
        ValueError: if there is no strong wall, and no trust.
    """
    wall, why = walls()
    if wall not in STRONG and not trust:
        raise ValueError(NO_WALL.format(why=why))
    return wall


def _fails(command: list[str], **settings) -> str:
    """Why a command cannot be run; "" if it ends well."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=60, **settings)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started ({type(error).__name__})"
    return "" if done.returncode == 0 else f"exit code {done.returncode} {done.stderr.strip()[-200:]}".strip()


class Sandbox:
    """Runs the notebooks of one assignment. A context manager: its folder goes when it closes.

    Args:
        exercises: of the assignment, in order. The package that submissions import lacks them, until each is judged.
        wall: as `walls` names it.
        seconds: for a cell and for an exercise; an exercise's case has a fifth.
        hidden: paths that no submission may read, wherever they lie.
    """

    def __init__(self, exercises: dict[str, Exercise], wall: str, seconds: float = 30.0, hidden: Iterable[Path] = ()):
        self.exercises, self.wall, self.seconds = exercises, wall, seconds
        self._hidden = [Path(path).resolve() for path in hidden]
        self._stopped = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="grpo-lab-grading-")).resolve()
        self._folder.chmod(0o711)  # the worker may belong to another user
        self._package = self._folder / "package"
        make_copy(self._package, exercises.values())

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception) -> None:
        for folder, _, _ in os.walk(self._folder):
            os.chmod(folder, 0o700)
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """End what runs, and run nothing more."""
        self._stopped.set()

    def run(self, cells: list[Cell], asked: list[str], seeds: list[int]) -> tuple[Answers, Failures]:
        """Run a notebook's cells, and the exercises that are asked for. Whatever happens in there, this returns.

        A process that ends early costs the cell or the exercise that it was at; the rest is run by another one.
        """
        answers: Answers = {}
        failed: Failures = {}
        end = time.monotonic() + START_SECONDS + 20 * self.seconds
        for _ in range(MAX_STARTS):
            left = [name for name in asked if name not in answers]
            if not left or time.monotonic() > end or self._stopped.is_set():
                break
            run = _Run(self, cells, left, seeds, answers, failed)
            run.watch(end)
            cells = run.blame()
        return answers | {name: UNREACHED for name in asked if name not in answers}, failed

    def request(self, cells: list[Cell], asked: list[str], seeds: list[int]) -> dict:
        """What the worker is told at its start."""
        return {
            "cells": [{"number": cell.number, "source": cell.source} for cell in cells],
            "exercises": list(self.exercises), "asked": asked, "lent": self.lent_until(asked[0]), "seeds": seeds,
            "case_seconds": self.seconds / 5, "cpu_seconds": int(START_SECONDS + 20 * self.seconds), "memory": MEMORY,
        }  # fmt: skip

    def lent_until(self, name: str) -> dict[str, str]:
        """The library's source of every exercise that stands before this one."""
        names = list(self.exercises)
        return {one: library_source(self.exercises[one]) for one in names[: names.index(name)]}

    def start(self, folder: Path, log) -> tuple[subprocess.Popen, list[str]]:
        """A worker, and the command that ends it where a signal is not enough."""
        settings, name = {}, f"grpo-lab-{uuid.uuid4().hex}"
        if self.wall == "bubblewrap":
            places = [*_places(), (self._package, "/package")]
            command = _bubblewrap(places, "/tmp", self._hidden) + _python("/package")
        elif self.wall == "docker":
            command = _docker(name, self._package) + _python("/package", "python", [])
        else:
            command, settings = _python(str(self._package)), {"env": _environment(str(folder)), "cwd": folder}
        if self.wall == "another user":
            os.chown(folder, NOBODY, NOBODY)
            settings |= _as_nobody()
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, **settings
        )
        return worker, ["docker", "kill", name] if self.wall == "docker" else []

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()


class _Run:
    """One process: it is watched step by step, and what comes of it is put into `answers` and `failed`.

    A step counts once, and only onward: what the worker says about itself is a stranger's word.
    """

    def __init__(
        self, sandbox: Sandbox, cells: list[Cell], asked: list[str], seeds, answers: Answers, failed: Failures
    ):
        self.sandbox, self.cells, self.asked, self.seeds = sandbox, cells, asked, seeds
        self.answers, self.failed = answers, failed
        self.steps = [*(("cell", cell.number) for cell in cells), *(("exercise", name) for name in asked), ("done", "")]
        self.at, self.outcomes, self.why, self.said = -1, {}, "", ""

    def watch(self, end: float) -> None:
        """From the start to the end of the process."""
        sandbox, messages, over = self.sandbox, queue.Queue(maxsize=4), threading.Event()
        folder = Path(tempfile.mkdtemp(dir=sandbox.folder))
        with tempfile.TemporaryFile(dir=sandbox.folder) as log:
            worker, kill = sandbox.start(folder, log)
            threading.Thread(target=_read, args=(worker.stdout, messages, over), daemon=True).start()
            try:
                self._tell(worker, sandbox.request(self.cells, self.asked, self.seeds))
                self._follow(worker, messages, end)
            finally:
                over.set()
                _end(worker, kill)
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
            self.said = log.read(500).decode("utf-8", "replace")
        self.code = worker.returncode
        shutil.rmtree(folder, ignore_errors=True)

    def _follow(self, worker, messages: queue.Queue, end: float) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.at < len(self.steps) - 1:
            try:
                message, content = messages.get(timeout=LOOK)
            except queue.Empty:
                self.why = ENDLESS if time.monotonic() > min(deadline, end) or self.sandbox.stopped else ""
                self.why = self.why or (CROWD if _tasks(worker.pid) > MAX_TASKS else "")
                if self.why:
                    return
                continue
            if message is None:
                return
            if self._takes(message, content, worker):
                deadline = time.monotonic() + self.sandbox.seconds

    def _takes(self, message: dict, content: bytes, worker) -> bool:
        """Whether the message is a step onward."""
        step = next(((kind, message[kind]) for kind in ("cell", "exercise", "done") if kind in message), None)
        if step in self.steps[self.at + 1 :]:
            self.at, self.outcomes = self.steps.index(step), {}
            return True
        if "failed" in message and isinstance(message["failed"], dict):
            numbers = {str(cell.number) for cell in self.cells}
            self.failed |= {n: str(why)[:1000] for n, why in message["failed"].items() if n in numbers}
        kind, name = self.steps[self.at] if self.at >= 0 else ("", "")
        if kind == "exercise" and name not in self.answers:
            self._answered(name, message, content)
            if name in self.answers:
                later = self.asked[self.asked.index(name) + 1 :]
                self._tell(worker, {"lent": self.sandbox.lent_until(later[0]) if later else {}})
        return False

    def _answered(self, name: str, message: dict, content: bytes) -> None:
        """Take the outcomes for one seed, or the sentence that says why there are none."""
        if "fault" in message:
            self.answers[name] = str(message["fault"])[:1000]
        elif message.get("seed") in self.seeds:
            self.outcomes[message["seed"]] = content
        if name not in self.answers and len(self.outcomes) == len(self.seeds):
            self.answers[name] = self._loaded(self.outcomes)

    def _loaded(self, contents: dict[int, bytes]) -> dict[int, list] | str:
        with tempfile.TemporaryDirectory(dir=self.sandbox.folder, ignore_cleanup_errors=True) as folder:
            try:
                return {seed: load_outcomes(_written(Path(folder, str(seed)), c)) for seed, c in contents.items()}
            except ValueError as error:
                return f"What it returned could not be taken over: {error}"[:400]

    def _tell(self, worker, request: dict) -> None:
        with suppress(OSError):  # it has ended
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()

    def blame(self) -> list[Cell]:
        """Where the process ended too early, charge the step that it was at. Returns the cells to run next time."""
        kind, what = self.steps[self.at] if self.at >= 0 else ("start", "")
        why = self.why or f"ended the whole process (exit code {self.code})"
        if kind == "cell":
            self.failed[str(what)] = why
            return [cell for cell in self.cells if cell.number != what]
        if kind == "exercise":
            self.answers.setdefault(what, f"It {why}.")
        elif not self.sandbox.stopped:
            lost = "No result came back from it."
            why = f"The process for this notebook did not start ({self.said.strip()[-300:]}): tell your teacher."
            self.answers.update({n: lost if kind == "done" else why for n in self.asked if n not in self.answers})
        return self.cells


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _read(stream, messages: queue.Queue, over: threading.Event) -> None:
    """Put what a worker says into the queue: a line of JSON, and as many bytes behind it as it announces."""
    message, content = {}, b""
    while message is not None and not over.is_set():
        try:
            line = stream.readline(MAX_LINE)
            message = json.loads(line) if line else None
            if message is not None:
                size = message.get("bytes", 0)
                content = stream.read(size) if type(size) is int and 0 < size <= MAX_FILE else b""
        except (ValueError, OSError, AttributeError, RecursionError):
            return  # nothing of it can be understood any more; its time will run out
        while not over.is_set():
            with suppress(queue.Full):
                messages.put((message, content), timeout=0.5)
                break


def _end(worker: subprocess.Popen, kill: list[str]) -> None:
    """The process, its group, and all that it ever started where it is alone in its name space or container."""
    if kill:
        subprocess.run(kill, capture_output=True)
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(worker.pid, 9)
        else:
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(worker.pid)], capture_output=True)
    worker.kill()
    worker.wait()
    for stream in (worker.stdin, worker.stdout):
        with suppress(OSError):
            stream.close()


def _tasks(process: int) -> int:
    """How many threads run in a process and below it; 0 where the system does not say."""
    tasks, waiting = 0, [process]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}/task")
        with suppress(OSError, ValueError):
            threads = os.listdir(folder)
            tasks += len(threads)
            waiting += [int(pid) for thread in threads for pid in (folder / thread / "children").read_text().split()]
    return tasks


def _bubblewrap(places: list, own: str, hidden: Iterable[Path] = ()) -> list[str]:
    """A root with nothing in it but these places, read-only, and an empty folder; no network, no other process."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for place in _SYSTEM:
        command += ["--ro-bind-try", place, place]
    for source, target in places:
        command += ["--ro-bind", str(source), str(target)]
    shown = [Path(place) for place in _SYSTEM] + [Path(source) for source, _ in places]
    for path in hidden:
        if path.is_dir() and any(path.is_relative_to(place) for place in shown):
            command += ["--tmpfs", str(path)]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(FILES), "--tmpfs", "/tmp", "--chdir", own]
    for name, value in _environment("/tmp").items():
        command += ["--setenv", name, value]
    return [*command, "--"]


def _docker(name: str, package: Path) -> list[str]:
    command = ["docker", "run", "--rm", "-i", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"]
    command += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(MAX_TASKS)]
    command += ["--memory", str(2 * MEMORY), "--tmpfs", f"/tmp:size={FILES},mode=1777", "--workdir", "/tmp"]
    command += ["--volume", f"{package}:/package:ro"]
    for key, value in _environment("/tmp", kept=()).items():
        command += ["--env", f"{key}={value}"]
    return [*command, IMAGE]


def _python(
    package: str, python: str = os.path.realpath(sys.executable), libraries: list[str] | None = None
) -> list[str]:
    """The command of a worker, with the stripped package on its path."""
    libraries = _libraries() if libraries is None else libraries
    code = f"import sys; sys.path[:0] = [{package!r}]; sys.path += {libraries!r}; "
    return [python, "-I", "-B", "-X", "utf8", "-c", f"{code}from grpo_lab.course.grading.worker import main; main()"]


def _libraries() -> list[str]:
    """Where torch and the others lie: not always below Python's own folder."""
    return sorted({str(Path(module.__file__).resolve().parents[1]) for module in (torch, einops, safetensors)})


def _places() -> list[tuple[str, str]]:
    """Python and its libraries, under their own names. The real package may lie among them: it is hidden."""
    found = {os.path.realpath(sys.base_prefix), *_libraries()}
    found |= {folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isdir(folder)}
    return [(place, place) for place in sorted(found) if not Path(place).is_relative_to("/usr")]


def private_places() -> list[Path]:
    """The real package and the home folder: hidden even where they lie in a place that is shown."""
    return [Path(grpo_lab.__file__).resolve().parent, Path.home().resolve()]


def _as_nobody() -> dict:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def _environment(folder: str, kept: Iterable[str] = _KEPT) -> dict[str, str]:
    """Nothing of the teacher's environment but what Python needs to start."""
    system = {name: os.environ[name] for name in kept if name in os.environ}
    own = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "HF_HOME"), folder)
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    rest = {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return system | own | one | rest | {"MPLBACKEND": "Agg", "GRPO_LAB_PROFILE": "fast", "LOGNAME": "student"}
