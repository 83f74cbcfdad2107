"""The list of all equations is complete, has each tag once, and contains every equation that is cited."""

import re

from tests.support.equations import formula_map, sources, tag_key


def test_every_equation_has_one_docstring_and_one_line():
    known = list(formula_map())
    assert len(known) >= 110
    anchor = re.compile(r"\S.*#\s(?:(?:[A-Z0-9]\w*|scalar) )+\((\d+\.\d+)\)$", re.MULTILINE)
    for pattern in (anchor, re.compile(r"^.*\\tag\{(\d+\.\d+)\}\s*$", re.MULTILINE)):
        tags = [tag for _, text in sources("course", "formulas") for tag in pattern.findall(text)]
        assert sorted(tags, key=tag_key) == known


def test_every_equation_cited_in_the_package_exists():
    citation = re.compile(r"Eqs?\. (\(\d+\.\d+\)(?:(?:,|,? and|,? to) \(\d+\.\d+\))*)")
    cited = [
        (path.name, tag)
        for path, text in sources()
        for tag_list in citation.findall(text)
        for tag in re.findall(r"\d+\.\d+", tag_list)
    ]
    assert cited and [(name, tag) for name, tag in cited if tag not in formula_map()] == []
