"""The files of the lessons, which are in notebooks/ of a checkout and in grpo_lab/lessons of a wheel.

`setup.py` also uses this module.
"""

from pathlib import Path

PATTERNS = ("*.ipynb", "assignments/*.ipynb", "images/*", "runs/*.json", "zh/**/*.ipynb")
PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE / "lessons" if (PACKAGE / "lessons").is_dir() else PACKAGE.parent / "notebooks"


def lesson_files(folder: Path = FOLDER) -> list[Path]:
    """Return the paths of all files of the lessons, English and Chinese, relative to the folder."""
    files = [path for pattern in PATTERNS for path in sorted(folder.glob(pattern)) if path.is_file()]
    return [path.relative_to(folder) for path in files]
