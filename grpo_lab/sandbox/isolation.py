"""Isolate code written by others: find the sandbox of this machine, and make the commands that start Python in it.

A sandbox is bubblewrap on Linux, or a Docker container. Code that a model wrote runs in a sandbox or not at all.
Grading can run without one (`--trust`): a submission is then an ordinary process with a clean environment and limits,
and belongs to the user "nobody" if the teacher is root.
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

MAX_MEMORY = 4 * 2**30  # bytes that a process may use in addition to what it uses at its start
MAX_TMP_BYTES = 256_000_000  # size of all files below /tmp
MAX_TASKS = 100  # number of processes and threads
MAX_SHARED_BYTES = 16_000_000  # size of /dev/shm, through which processes share memory
IMAGE = "grpo-lab-grade"  # the image that the Dockerfile at the root of the repository builds
NOBODY = 65534
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
SANDBOXES = ("bubblewrap", "docker")
NO_SANDBOX_FOR_GRADING = (
    "there is no sandbox on this machine ({why}). Install bubblewrap (Linux) or build the image of the Dockerfile; or, "
    "if you trust those who handed in, give --trust: their code then runs as an ordinary process"
)
AS_ROOT = (
    "you are root, and what students wrote is never run as root: another user cannot run Python here ({why}). Install "
    "bubblewrap, or grade as an ordinary user"
)
SYSTEM_PATHS = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip
_PASSED_ON_VARIABLES = ("SYSTEMROOT", "WINDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


def strongest_isolation(trust: bool) -> str:
    """Return the strongest isolation on this machine: a sandbox, else "another user" for root, else "none".

    trust: Whether the last two are allowed.

    Raises:
        InputError: if there is neither bubblewrap nor Docker and `trust` is False; or if this process runs as root, and
            another user cannot run Python.
    """
    sandbox, why_missing = available_sandbox()
    if sandbox:
        return sandbox
    if not trust:
        raise InputError(NO_SANDBOX_FOR_GRADING.format(why=why_missing))
    if not (hasattr(os, "geteuid") and os.geteuid() == 0):
        return "none"
    import_torch = f"import sys; sys.path += {_libraries()!r}; import torch"
    if fault := reason_of_failure([os.path.realpath(sys.executable), "-I", "-c", import_torch], **AS_NOBODY):
        raise InputError(AS_ROOT.format(why=fault))
    return "another user"


def available_sandbox() -> tuple[str, str]:
    """Find the sandbox of this machine.

    Returns:
        "bubblewrap" or "docker", or "" if there is none; and the reasons why those tried before it cannot be used.
    """
    reasons: list[str] = []
    probes = {"bubblewrap": [*bubblewrap_command([], "/"), "true"], "docker": ["docker", "image", "inspect", IMAGE]}
    for name, probe in probes.items():
        if not (fault := reason_of_failure(probe)):
            return name, "; ".join(reasons)
        reasons.append(f"{name}: {fault}")
    return "", "; ".join(reasons)


def reason_of_failure(command: list[str], **settings) -> str:
    """Return the reason why a command fails; "" if it succeeds."""
    try:
        process = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=60, **settings
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started ({type(error).__name__})"
    return "" if process.returncode == 0 else f"exit code {process.returncode} {process.stderr.strip()[-200:]}".strip()


def isolated_command(
    isolation: str,
    name: str,
    import_folder: Path,
    code: str,
    working_folder: Path,
    hidden_folders: Iterable[Path],
    options: Iterable[str] = ("-I",),
) -> tuple[list[str], dict]:
    """Return the command that starts Python in isolation, and the settings for `Popen`.

    Args:
        isolation: The kind of isolation, as `strongest_isolation` returns it.
        name: The name of the Docker container.
        import_folder: A folder that the process can read. It is the first entry of Python's path.
        code: The Python code to run.
        working_folder: The folder in which the process starts; in a sandbox it starts in /tmp instead.
        hidden_folders: Folders that the process must not see. In bubblewrap, those below a mount are replaced by empty
            ones.
        options: The command-line options of Python.
    """
    if isolation == "bubblewrap":
        mounts = [*python_mounts(), (import_folder, "/package")]
        # The sandboxed code can read the environment of bubblewrap's own process, so that environment is empty.
        command = bubblewrap_command(mounts, "/tmp", hidden_folders) + _python_command("/package", code, options)
        return [shutil.which(command[0]) or command[0], *command[1:]], {"env": {}}
    if isolation == "docker":
        return docker_command(name, import_folder) + _python_command("/package", code, options, "python", []), {}
    settings = {"env": _environment(str(working_folder)), "cwd": working_folder}
    if isolation == "another user":
        os.chown(working_folder, NOBODY, NOBODY)
        settings |= AS_NOBODY
    return _python_command(str(import_folder), code, options), settings


def bubblewrap_command(mounts: list, working_folder: str, hidden_folders: Iterable[Path] = ()) -> list[str]:
    """Return the bubblewrap command for a sandbox without network and without access to other processes.

    Its file system contains system folders and the mounts, read-only, and an empty writable /tmp.

    Args:
        mounts: Pairs of a path and the path at which the sandbox sees it.
        working_folder: The folder in which the command starts.
        hidden_folders: Paths that are hidden by an empty folder if they lie below a mount.
    """
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    # /tmp comes before the mounts, because Python or its libraries may lie below /tmp and are mounted into the new one.
    command += ["--size", str(MAX_TMP_BYTES), "--tmpfs", "/tmp"]
    for system_path in SYSTEM_PATHS:
        command += ["--ro-bind-try", system_path, system_path]
    for source, target in mounts:
        command += ["--ro-bind", str(source), str(target)]
    mounted = [Path(system_path) for system_path in SYSTEM_PATHS] + [Path(source) for source, _ in mounts]
    for path in hidden_folders:
        if path.is_dir() and any(path.is_relative_to(mount) for mount in mounted):
            command += ["--tmpfs", str(path), "--remount-ro", str(path)]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(MAX_SHARED_BYTES), "--tmpfs", "/dev/shm"]
    # These folders lie in memory, too, and have no size limit. They are read-only, so nothing can fill them.
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", working_folder]
    for name, value in _environment("/tmp").items():
        command += ["--setenv", name, value]
    return [*command, "--"]


def docker_command(name: str, import_folder: Path) -> list[str]:
    """Return the Docker command for a container without network, which sees the folder read-only as /package."""
    command = ["docker", "run", "--rm", "-i", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"]
    command += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}", "--pids-limit", str(MAX_TASKS)]
    command += ["--memory", str(2 * MAX_MEMORY), "--tmpfs", f"/tmp:size={MAX_TMP_BYTES},mode=1777", "--workdir", "/tmp"]
    command += ["--volume", f"{import_folder}:/package:ro"]
    for key, value in _environment("/tmp", passed_on=()).items():
        command += ["--env", f"{key}={value}"]
    return [*command, IMAGE]


def _python_command(
    import_folder: str,
    code: str,
    options: Iterable[str],
    python: str = os.path.realpath(sys.executable),
    libraries: list[str] | None = None,
) -> list[str]:
    """Return the command that runs Python code, with `import_folder` first on Python's path."""
    libraries = _libraries() if libraries is None else libraries
    set_path = f"import sys; sys.path[:0] = [{import_folder!r}]; sys.path += {libraries!r}; "
    return [python, *options, "-B", "-X", "utf8", "-c", set_path + code]


def _libraries() -> list[str]:
    """Return the folders of torch and other libraries, which need not lie below Python's own folder."""
    return sorted({str(Path(str(module.__file__)).resolve().parents[1]) for module in (torch, einops, safetensors)})


def python_mounts() -> list[tuple[str, str]]:
    """Return the mounts of Python and its libraries, each at its own path.

    grpo_lab may lie in one of them, so `private_folders` has to be hidden.
    """
    folders = {os.path.realpath(sys.base_prefix), *_libraries()}
    folders |= {folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isdir(folder)}
    return [(path, path) for path in sorted(folders) if not Path(path).is_relative_to("/usr")]


def private_folders() -> list[Path]:
    """Return the folder of grpo_lab and the home folder, which must be hidden even if they lie in a mounted folder."""
    return [Path(grpo_lab.__file__).resolve().parent, Path.home().resolve()]


def _environment(folder: str, passed_on: Iterable[str] = _PASSED_ON_VARIABLES) -> dict[str, str]:
    """Return the environment variables of a sandboxed process.

    Args:
        folder: The folder for home, temporary files and caches.
        passed_on: Names of variables that are copied from this process, because Python may need them to start.
    """
    system = {name: os.environ[name] for name in passed_on if name in os.environ}
    folders = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "HF_HOME"), folder)
    single_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    fixed = {"PYTHONHASHSEED": "0"}  # gives sets of strings the same order in each run, unless Python starts with -I
    fixed |= {"PATH": os.defpath, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    fixed |= {"MPLBACKEND": "Agg", "GRPO_LAB_PROFILE": "fast", "LOGNAME": "student"}
    return system | folders | single_thread | fixed


def container_kill_command(isolation: str, name: str) -> list[str]:
    """Return the command that ends the container `name`; an empty list if a signal is enough."""
    return ["docker", "kill", name] if isolation == "docker" else []


def end_worker(worker: subprocess.Popen, kill_command: list[str]) -> None:
    """Kill a worker with `kill_worker`, and close its streams.

    kill_command: The command that `container_kill_command` returns.
    """
    kill_worker(worker, kill_command)
    for stream in (worker.stdin, worker.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()


def kill_worker(worker: subprocess.Popen, kill_command: list[str]) -> None:
    """Kill a worker and its process group, and all processes in its container or namespace if it has one.

    What it wrote can still be read.

    kill_command: The command that `container_kill_command` returns.
    """
    if kill_command:
        subprocess.run(kill_command, capture_output=True)
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(worker.pid, 9)
        else:
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(worker.pid)], capture_output=True)
    worker.kill()
    worker.wait()


def count_tasks(pid: int) -> int:
    """Return the number of threads of a process and its descendants; 0 if the system has no /proc."""
    return sum(len(threads) for _, threads in _process_tree(pid))


def measure_memory(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants use; 0 if the system has no /proc."""
    pages = 0
    for member, _ in _process_tree(pid):
        with suppress(OSError, ValueError, IndexError):
            pages += int(Path(f"/proc/{member}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _process_tree(pid: int) -> Iterator[tuple[int, list[str]]]:
    """Yield a process and its descendants, each as its id and the ids of its threads."""
    remaining = [pid]
    while remaining:
        member = remaining.pop()
        folder = Path(f"/proc/{member}/task")
        with suppress(OSError, ValueError):
            threads = os.listdir(folder)
            yield member, threads
            remaining += [
                int(child) for thread in threads for child in (folder / thread / "children").read_text().split()
            ]
