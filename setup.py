"""A wheel carries the notebooks, too, as grpo_lab/lessons: `grpo-lab lessons DIR` copies them from there.

In a checkout they stay where they are, in notebooks/, and the translations in po/. All other metadata is in
pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LESSONS = ("*.ipynb", "assignments/*.ipynb", "images/*", "runs/*.json", "zh/**/*.ipynb")
CARRIED = {"lessons": ("notebooks", LESSONS), "po": ("po", ("*/*.po",))}


class BuildWithLessons(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for place, (name, patterns) in CARRIED.items():
            folder = Path(__file__).parent / name
            for file in sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file()):
                target = Path(self.build_lib) / "grpo_lab" / place / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(cmdclass={"build_py": BuildWithLessons})
