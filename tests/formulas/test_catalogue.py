"""The map of all equations: complete, each tag once, nothing cited that does not exist."""

import inspect
import re
from pathlib import Path

import pytest

import grpo_lab
from grpo_lab.formulas import catalogue, formula_map
from grpo_lab.formulas.__main__ import main
from tests.support import formula_sample as sample
from tests.support.formula_sample import load

PACKAGE = Path(grpo_lab.__file__).parent


def sources(*left_out: str) -> list[tuple[Path, str]]:
    """All files of the package, but for some of its parts."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in left_out]
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def test_formula_map_refuses_a_tag_twice_or_outside_of_functions(tmp_path: Path):
    assert list(formula_map([sample])) == ["9.1", "9.2", "9.3", "9.4", "9.6", "9.7", "9.10"]
    sources = {
        "twice": inspect.getsource(sample),
        "outside": 'r"""\nx = y \\tag{1.1}\n"""\n',
    }
    modules = {name: load(tmp_path, source) for name, source in sources.items()}
    with pytest.raises(ValueError, match=r"tag \(9.1\) stands twice"):
        formula_map([sample, modules["twice"]])
    with pytest.raises(ValueError, match="only 0 of the 1 lines"):
        formula_map([modules["outside"]])


def test_every_equation_of_the_package_has_its_line(known, capsys):
    assert len(known) >= 110
    anchor = re.compile(r"\S.*#\s(?:(?:[A-Z0-9]\w*|scalar) )+\((?P<tag>\d+\.\d+)\)$")
    lines = [line for _, text in sources("course", "formulas") for line in text.splitlines()]
    anchors = [match["tag"] for line in lines if (match := anchor.search(line))]
    assert sorted(anchors, key=catalogue.tag_key) == list(known)
    assert main([]) == 0
    out = capsys.readouterr().out
    assert f"{len(known)} equations mapped" in out and len(out.splitlines()) == len(known) + 1


def test_every_equation_cited_in_the_package_exists(known):
    citation = re.compile(r"Eqs?\. (\(\d+\.\d+\)(?:(?:,|,? and|,? to) \(\d+\.\d+\))*)")
    cited = [
        (path.name, tag)
        for path, text in sources()
        for found in citation.findall(text)
        for tag in re.findall(r"\d+\.\d+", found)
    ]
    assert cited and [(name, tag) for name, tag in cited if tag not in known] == []
