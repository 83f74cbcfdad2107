"""docs/tutorials.md shows each mistake that it names by code; docs/glossary.md has each term once."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_each_statement_about_a_tutorial_is_shown_by_code():
    text = (DOCS / "tutorials.md").read_text(encoding="utf-8")
    head, *sections = re.split(r"(?m)^## ", text)
    assert len(sections) == 6
    namespace: dict = {}
    for section in (head, *sections):
        table, code = (re.findall(pattern, section, re.DOTALL) for pattern in (r"(?m)^\|.*?$", r"```python\n(.*?)```"))
        for block in code:
            exec(compile(block, "docs/tutorials.md", "exec"), namespace)
        named, shown = re.findall(r"\((\d)\)", "\n".join(table)), re.findall(r"# \((\d)\)", "\n".join(code))
        assert set(named) == set(shown), section[:80]


def test_a_term_stands_once_in_the_glossary_with_its_chinese_and_its_meaning():
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (.+?) \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"))
    terms = [row for row in rows if row[0] not in ("term", "symbol") and row[0][0] not in "-$"]
    assert len(terms) > 100 and len({term for term, _, _ in terms}) == len(terms)
    assert all(
        re.search(r"[\u4e00-\u9fff]", chinese)
        for term, chinese, _ in terms
        if term not in ("R1-Zero", "pass@1, pass@k", "REINFORCE")
    )
