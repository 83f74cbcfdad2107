"""A wheel carries the notebooks, too, as grpo_lab/lessons: `grpo-lab lessons DIR` copies them from there.

In a checkout and in an sdist (MANIFEST.in) they stay where they are, in notebooks/, and the translations in po/. The
description that an index of packages shows is README.md with whole addresses. All other metadata is in pyproject.toml.
"""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Run as a file: importing it from the package would want the package's dependencies.
lesson_files = runpy.run_path(str(ROOT / "grpo_lab" / "base" / "files.py"))["lesson_files"]


class BuildWithLessons(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "grpo_lab"
        for name in lesson_files(ROOT / "notebooks"):
            copy(ROOT / "notebooks" / name, package / "lessons" / name)
        for path in sorted((ROOT / "po").glob("*/*.po")):
            if path.stem != "variants":  # texts for docs/teaching, which is part of a checkout only
                copy(path, package / path.relative_to(ROOT))


def readme_for_an_index() -> str:
    """README.md with its images and links as whole addresses, since an index has none of the files beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Homepage"]

    def whole(link: re.Match) -> str:
        return f"{link['text']}({repository}/{'raw' if link['text'].startswith('!') else 'blob'}/main/{link['path']})"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(?P<text>!?\[[^\]]*\])\((?!https?:|#)(?P<path>[^)\s]+)\)", whole, readme)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithLessons},
        long_description=readme_for_an_index(),
        long_description_content_type="text/markdown",
    )
