"""What a submission may read: Python, its libraries and what these need of the system. All else is not there for it."""

import os
import sys
import sysconfig
from pathlib import Path

import einops
import safetensors
import torch

import grpo_lab

# Below the folders that Python is installed in, which may be /usr.
_OF_PYTHON = ("lib", "lib32", "lib64", "Lib", "DLLs", "Library", "pyvenv.cfg", "share/zoneinfo")
_OF_SYSTEM = (
    "/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/System/Library",
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip
_STORES = ("/nix/store", "/gnu/store")
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def library_folders() -> list[str]:
    """Where torch and the others lie: not always below Python's own folder."""
    return sorted({str(Path(module.__file__).resolve().parents[1]) for module in (torch, einops, safetensors)})


def readable_places() -> list[str]:
    """Files and folders, under the names by which they are asked for and under their real ones."""
    installed = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    found = {str(Path(folder, name)) for folder in installed for name in _OF_PYTHON} | set(_OF_SYSTEM)
    found |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {folder for name in _LOADER for folder in os.environ.get(name, "").split(os.pathsep) if folder}
    found |= {sys.executable, *library_folders()}
    found |= {store for store in _STORES if os.path.realpath(sys.executable).startswith(store)}
    found |= {os.path.realpath(place) for place in found}
    return sorted(place for place in found if os.path.isabs(place) and os.path.exists(place))


def under_all_names(hidden: list[str], readable: list[str]) -> list[str]:
    """What is hidden, and once more for each other name of a readable place (/lib for /usr/lib) that it lies in."""
    found = list(hidden)
    for place in readable:
        real = os.path.realpath(place)
        found += [place + one[len(real) :] for one in hidden if place != real and Path(one).is_relative_to(real)]
    return found


def private_places() -> list[Path]:
    """The real package, the rest of its checkout, and the home folder: hidden even if they lie in a readable place."""
    package = Path(grpo_lab.__file__).resolve().parent
    checkout = [package.parent] if (package.parent / "pyproject.toml").is_file() else []
    return [package, *checkout, Path.home().resolve()]
