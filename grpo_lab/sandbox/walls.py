"""The walls around a stranger's code: the commands that start Python behind them, and which of them this machine has.

bubblewrap on Linux, or a container of Docker. What a model wrote runs behind one of them or not at all. Grading may go
without (`--trust`): then a submission is an ordinary process with a clean environment and limits, and where the teacher
is root, it belongs to nobody.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import einops
import safetensors
import torch

import grpo_lab
from grpo_lab.base.checks import InputError

MEMORY, FILES, MAX_TASKS = 4 * 2**30, 256_000_000, 100  # bytes of memory beyond what is loaded, and of files; threads
SHARED = 16_000_000  # bytes of /dev/shm, where processes share memory
IMAGE = "grpo-lab-grade"  # of the Dockerfile at the root of the repository
NOBODY = 65534
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
STRONG = ("bubblewrap", "docker")
NO_WALL = (
    "there is no sandbox on this machine ({why}). Install bubblewrap (Linux) or build the image of the Dockerfile; or, "
    "if you trust those who handed in, give --trust: their code then runs as an ordinary process"
)
AS_ROOT = (
    "you are root, and what students wrote is never run as root: another user cannot run Python here ({why}). Install "
    "bubblewrap, or grade as an ordinary user"
)
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip
_PASSED_ON = ("SYSTEMROOT", "WINDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


def strongest_wall(trust: bool) -> str:
    """The strongest wall here: "bubblewrap" or "docker"; else, and only with `trust`, "another user" or "none".

    Raises:
        InputError: if there is no strong wall, and no trust; or for root, whom no other user could stand in for.
    """
    wall, why = strong_wall()
    if wall:
        return wall
    if not trust:
        raise InputError(NO_WALL.format(why=why))
    if not (hasattr(os, "geteuid") and os.geteuid() == 0):
        return "none"
    import_torch = f"import sys; sys.path += {_libraries()!r}; import torch"
    if fault := _fails([os.path.realpath(sys.executable), "-I", "-c", import_torch], **AS_NOBODY):
        raise InputError(AS_ROOT.format(why=fault))
    return "another user"


def strong_wall() -> tuple[str, str]:
    """The strong wall of this machine, "bubblewrap" or "docker", else ""; and why those before it cannot be used."""
    why: list[str] = []
    probes = {"bubblewrap": [*_bubblewrap([], "/"), "true"], "docker": ["docker", "image", "inspect", IMAGE]}
    for name, probe in probes.items():
        if not (fault := _fails(probe)):
            return name, "; ".join(why)
        why.append(f"{name}: {fault}")
    return "", "; ".join(why)


def _fails(command: list[str], **settings) -> str:
    """The reason why a command cannot be run; "" if it ends well."""
    try:
        process = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=60, **settings
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started ({type(error).__name__})"
    return "" if process.returncode == 0 else f"exit code {process.returncode} {process.stderr.strip()[-200:]}".strip()


def behind(
    wall: str,
    name: str,
    package: Path,
    code: str,
    folder: Path,
    hidden: Iterable[Path],
    options: Iterable[str] = ("-I",),
) -> tuple[list[str], dict]:
    """The command that starts Python behind this wall, and settings for `Popen`.

    Args:
        wall: as `strongest_wall` names it.
        name: of the container.
        package: a folder that can be read there, and whose modules are imported before others.
        code: what Python runs.
        folder: the process's own, where the wall gives it none.
        hidden: paths that are covered where they lie in a place that is shown.
        options: of Python.
    """
    if wall == "bubblewrap":
        mounts = [*_places(), (package, "/package")]
        # Its first process can be looked at from inside, so it gets none of this one's environment.
        command = _bubblewrap(mounts, "/tmp", hidden) + _python("/package", code, options)
        return [shutil.which(command[0]) or command[0], *command[1:]], {"env": {}}
    if wall == "docker":
        return _docker(name, package) + _python("/package", code, options, "python", []), {}
    settings = {"env": _environment(str(folder)), "cwd": folder}
    if wall == "another user":
        os.chown(folder, NOBODY, NOBODY)
        settings |= AS_NOBODY
    return _python(str(package), code, options), settings


def _bubblewrap(mounts: list, working_folder: str, hidden: Iterable[Path] = ()) -> list[str]:
    """A root with nothing in it but these mounts, read-only, and an empty folder; no network, no other process."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    # Before the places: where Python or its libraries lie below /tmp, they are bound into the new one.
    command += ["--size", str(FILES), "--tmpfs", "/tmp"]
    for system_path in _SYSTEM:
        command += ["--ro-bind-try", system_path, system_path]
    for source, target in mounts:
        command += ["--ro-bind", str(source), str(target)]
    mounted = [Path(system_path) for system_path in _SYSTEM] + [Path(source) for source, _ in mounts]
    for path in hidden:
        if path.is_dir() and any(path.is_relative_to(mount) for mount in mounted):
            command += ["--tmpfs", str(path), "--remount-ro", str(path)]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHARED), "--tmpfs", "/dev/shm"]
    # Folders in memory as well, without a size: nothing may be written to them.
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", working_folder]
    for name, value in _environment("/tmp").items():
        command += ["--setenv", name, value]
    return [*command, "--"]


def _docker(name: str, package: Path) -> list[str]:
    command = ["docker", "run", "--rm", "-i", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"]
    command += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(MAX_TASKS)]
    command += ["--memory", str(2 * MEMORY), "--tmpfs", f"/tmp:size={FILES},mode=1777", "--workdir", "/tmp"]
    command += ["--volume", f"{package}:/package:ro"]
    for key, value in _environment("/tmp", passed_on=()).items():
        command += ["--env", f"{key}={value}"]
    return [*command, IMAGE]


def _python(
    package: str,
    code: str,
    options: Iterable[str],
    python: str = os.path.realpath(sys.executable),
    libraries: list[str] | None = None,
) -> list[str]:
    """The command that runs the code, with this package first on the path of Python."""
    libraries = _libraries() if libraries is None else libraries
    paths = f"import sys; sys.path[:0] = [{package!r}]; sys.path += {libraries!r}; "
    return [python, *options, "-B", "-X", "utf8", "-c", paths + code]


def _libraries() -> list[str]:
    """The folders of torch and other libraries: not always below Python's own folder."""
    return sorted({str(Path(str(module.__file__)).resolve().parents[1]) for module in (torch, einops, safetensors)})


def _places() -> list[tuple[str, str]]:
    """Python and its libraries, under their own names. The real package may lie among them: it is hidden."""
    folders = {os.path.realpath(sys.base_prefix), *_libraries()}
    folders |= {folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isdir(folder)}
    return [(path, path) for path in sorted(folders) if not Path(path).is_relative_to("/usr")]


def private_places() -> list[Path]:
    """The real package and the home folder: hidden even where they lie in a place that is shown."""
    return [Path(grpo_lab.__file__).resolve().parent, Path.home().resolve()]


def _environment(folder: str, passed_on: Iterable[str] = _PASSED_ON) -> dict[str, str]:
    """The environment of a process: nothing of one's own but what Python needs to start."""
    system = {name: os.environ[name] for name in passed_on if name in os.environ}
    folders = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "HF_HOME"), folder)
    single_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    fixed = {"PYTHONHASHSEED": "0"}  # sets of texts have one order, where Python is not started with -I
    fixed |= {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return (
        system
        | folders
        | single_thread
        | fixed
        | {"MPLBACKEND": "Agg", "GRPO_LAB_PROFILE": "fast", "LOGNAME": "student"}
    )


def kill_command(wall: str, name: str) -> list[str]:
    """The command that ends a container of this name; none for a wall where a signal is enough."""
    return ["docker", "kill", name] if wall == "docker" else []


def end_worker(worker: subprocess.Popen, kill: list[str]) -> None:
    """End a worker, its process group, and all that it started where it is alone in its name space or container."""
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
            if stream is not None:
                stream.close()


def tasks_of(process: int) -> int:
    """The number of threads in a process and below it; 0 where the system does not say."""
    return sum(len(threads) for _, threads in _family(process))


def memory_of(process: int) -> int:
    """The bytes that a process and those below it have in memory; 0 where the system does not say."""
    pages = 0
    for pid, _ in _family(process):
        with suppress(OSError, ValueError, IndexError):
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _family(process: int) -> Iterator[tuple[int, list[str]]]:
    """A process and those below it, each with its threads."""
    waiting = [process]
    while waiting:
        pid = waiting.pop()
        folder = Path(f"/proc/{pid}/task")
        with suppress(OSError, ValueError):
            threads = os.listdir(folder)
            yield pid, threads
            waiting += [
                int(child) for thread in threads for child in (folder / thread / "children").read_text().split()
            ]
