"""A wheel carries the notebooks, too, as grpo_lab/lessons: `grpo-lab lessons DIR` copies them from there.

In a checkout and in an sdist (MANIFEST.in) they stay where they are, in notebooks/, and the translations in po/. All
other metadata is in pyproject.toml.
"""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Run as a file: importing it from the package would want the package's dependencies.
lesson_files = runpy.run_path(str(ROOT / "grpo_lab" / "base" / "lesson_files.py"))["lesson_files"]


class BuildWithLessons(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "grpo_lab"
        for name in lesson_files(ROOT / "notebooks"):
            copy(ROOT / "notebooks" / name, package / "lessons" / name)
        for path in sorted((ROOT / "po").glob("*/*.po")):
            if path.stem != "variants":  # what classes are asked for is in a checkout only, as docs/teaching is
                copy(path, package / path.relative_to(ROOT))


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


setup(cmdclass={"build_py": BuildWithLessons})
