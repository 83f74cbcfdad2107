"""Scripts beside the package, as modules: `notebooks/build.py` and the recorders are no part of it."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script(path: str) -> ModuleType:
    """The script at this path from the repository's root; it is run anew, and under no name that can be imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
