"""Scripts beside the package, as modules: `notebooks/build.py` and the recorders are no part of it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(path: str) -> ModuleType:
    """The script at this path from the repository's root; it is run anew, and under no name that can be imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str((ROOT / path).parent))  # as Python has it for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
