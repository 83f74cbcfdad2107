"""A wheel carries the notebooks, too, as grpo_lab/lessons: `grpo-lab lessons DIR` copies them from there.

In a checkout they stay where they are, in notebooks/. All other metadata is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LESSONS = ("*.ipynb", "assignments/*.ipynb", "images/*", "runs/*.json")


class BuildWithLessons(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        notebooks = Path(__file__).parent / "notebooks"
        for file in sorted(file for pattern in LESSONS for file in notebooks.glob(pattern) if file.is_file()):
            target = Path(self.build_lib) / "grpo_lab" / "lessons" / file.relative_to(notebooks)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithLessons})
