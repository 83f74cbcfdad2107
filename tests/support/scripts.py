"""Load scripts that are not part of the package, such as `notebooks/build.py` and the recorders, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(path: str) -> ModuleType:
    """Execute the script at a path from the repository's root, and return it as a module outside `sys.modules`."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str((ROOT / path).parent))  # Python does the same when it starts a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
