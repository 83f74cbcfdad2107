"""Where models are stored, and how a path is shown to a reader."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """For models that this package converts: GRPO_LAB_CACHE, else a folder in the system's place for caches."""
    if chosen := os.environ.get("GRPO_LAB_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "grpo_lab"


def readable(path: Path) -> str:
    """The path as a reader wants it: relative to the repository, the working directory or the home directory."""
    path = path.absolute()
    for root, prefix in ((Path(__file__).parents[2], ""), (Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(root):
            return prefix + path.relative_to(root).as_posix()
    return path.as_posix()
