"""Number the equations of each chapter in the order in which its pages show them, and renumber all references.

    python notebooks/number_equations.py            print what would be renumbered
    python notebooks/number_equations.py --write    renumber
    python notebooks/number_equations.py --check    exit 1 if a page shows its equations out of order

The equations of chapter 5 are numbered in this order: those on the pages of lessons 05 and 05b, those on other pages in
the pages' order (`further` comes last), and those that no page shows. A page shows an equation by `\\tag{5.7}` in its
text or by the first row (5.7) in an output of `show` or `trace`.

A reference is recognised by its form: `\\tag{5.7}`, "Eq. (5.7)", "Eqs. (5.7) and (5.8)", "式 (5.7)", the anchor
`# B T (5.7)` on a line of code, the address "5.7" of a line in an exercise or a test, a planted mistake
`{"5.7": "ratio = 1"}` in a lesson, and a table cell `| (5.7) |`. A bare number such as "(5.17)" is not changed.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAG = r"\d+\.(?:\d+|[a-z])"
SHOWN = re.compile(rf"\\tag\{{({TAG})\}}|^\| \(({TAG})\) \|", re.MULTILINE)
LINK = r"(?:, | and | to |, and | or |和|、|至|到|与| 和 | 至 | 到 | 与 |–)"
CITED = re.compile(rf"(?:Eqs?\.|式)(?:\s|\n#? *|\\n\"\n\")*\({TAG}\)(?:{LINK}\({TAG}\))*")
CELL = re.compile(rf"(?:(?<=\| )|(?<=\"\| ))\({TAG}\)(?:{LINK}\({TAG}\))*(?=,? ?[^|]*\|)")
AT_LINE_START = re.compile(rf"(?:(?<=^)|(?<=\")|(?<=\\n)) *\({TAG}\)(?=  )", re.MULTILINE)
PLANTED = re.compile(rf"(\{{\\*\")({TAG})(?=\\*\": \\*\"\w+ =)")
ANCHOR = re.compile(rf"(?:(?:[A-Z]\w*|\d+|scalar)\s+)+\({TAG}\)$|\({TAG}\)$")
ADDRESSES = ("grpo_lab/course/exercises/", "grpo_lab/teaching/", "tests/mutants/", "tests/formulas/test_views.py")
SKIPPED = ("CHANGELOG.md", "notebooks/number_equations.py", "tests/formulas/test_source.py")
ENDINGS = (".py", ".md", ".po", ".ipynb", ".yaml", ".txt")


def tracked_files() -> list[str]:
    """Return the text files that may cite an equation, as paths from the repository's root."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if name.endswith(ENDINGS) and not name.startswith(SKIPPED)]


def shown_on(notebook: Path) -> list[str]:
    """Return the distinct tags that a built page shows, in order."""
    tags: dict[str, None] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        texts = ["".join(cell["source"])] if cell["cell_type"] == "markdown" else []
        for output in cell.get("outputs", ()):
            texts.append("".join(output.get("data", {}).get("text/markdown", "")))
        for text in texts:
            tags |= dict.fromkeys(first or second for first, second in SHOWN.findall(text))
    return list(tags)


def defined(names: list[str]) -> set[str]:
    """Return all tags that the package or a lesson defines."""
    sources = [name for name in names if name.startswith(("grpo_lab/", "notebooks/text/"))]
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in sources if name.endswith((".py", ".md")))
    return {tag for text in texts for tag in re.findall(rf"\\tag\{{({TAG})\}}", text)}


def new_numbers(names: list[str]) -> dict[str, str]:
    """Return the new number of each tag that changes."""
    pages = sorted((ROOT / "notebooks").glob("*.ipynb"))
    existing = defined(names)
    order = [tag for page in pages for tag in shown_on(page) if tag in existing]
    unseen = sorted(existing - {*order}, key=lambda tag: [part.zfill(3) for part in tag.split(".")])
    numbers: dict[str, str] = {}
    for chapter in sorted({tag.split(".")[0] for tag in existing}, key=int):
        chapter_pages = [page for page in pages if page.name.startswith(chapter.zfill(2))]
        ordered = [tag for page in chapter_pages for tag in shown_on(page)] + order + unseen
        chapter_tags = dict.fromkeys(tag for tag in ordered if tag in existing and tag.split(".")[0] == chapter)
        numbers |= {tag: f"{chapter}.{number}" for number, tag in enumerate(chapter_tags, 1)}
    return {old: new for old, new in numbers.items() if old != new}


def renamed(text: str, numbers: dict[str, str], name: str) -> str:
    """Return the text of the file `name` with the new numbers."""
    if name.endswith(".py"):
        return _renamed_code(text, numbers, name)
    text = _renamed_prose(text, numbers)
    if name.endswith(".yaml"):  # the formulas of a class
        text = re.sub(rf'(?<=equation: ")({TAG})(?=")', lambda match: numbers.get(match[1], match[1]), text)
    if name.endswith((".ipynb", ".txt")):
        text = AT_LINE_START.sub(lambda match: _swap(match[0], numbers), text)
        text = re.sub(rf"^ \({TAG}\) ", lambda match: _swap(match[0], numbers), text, flags=re.MULTILINE)
        text = re.sub(rf"^({TAG})(?=: )", lambda match: numbers.get(match[1], match[1]), text, flags=re.MULTILINE)
    if name.endswith((".ipynb", ".md", ".po")):  # anchors of code in cells
        text = re.sub(
            rf"#[ \w]* \({TAG}\)(?=\\?[n\"]|$)", lambda match: _swap(match[0], numbers), text, flags=re.MULTILINE
        )
    return text


def _renamed_prose(text: str, numbers: dict[str, str]) -> str:
    text = re.sub(rf"\\tag\{{({TAG})\}}", lambda match: rf"\tag{{{numbers.get(match[1], match[1])}}}", text)
    text = PLANTED.sub(lambda match: match[1] + numbers.get(match[2], match[2]), text)
    for pattern in (CITED, CELL):
        text = pattern.sub(lambda match: _swap(match[0], numbers), text)
    return text


def _renamed_code(text: str, numbers: dict[str, str], name: str) -> str:
    """Return the source with new numbers in its comments and strings; other tokens are not changed."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.STRING):
            continue
        start, stop = (starts[row - 1] + column for row, column in (token.start, token.end))
        pieces += [text[end:start], _renamed_token(token, numbers, name)]
        end = stop
    return "".join([*pieces, text[end:]])


def _renamed_token(token: tokenize.TokenInfo, numbers: dict[str, str], name: str) -> str:
    bare = token.string.strip("\"'")
    if token.type == tokenize.STRING and bare in numbers and name.startswith(ADDRESSES):
        return token.string.replace(bare, numbers[bare])
    text = _renamed_prose(token.string, numbers)
    if token.type == tokenize.COMMENT:
        return ANCHOR.sub(lambda match: _swap(match[0], numbers), text)
    # A string may contain code with an anchor, such as a planted mistake.
    return re.sub(rf"# [ \w]*\({TAG}\)$", lambda match: _swap(match[0], numbers), text, flags=re.MULTILINE)


def _swap(text: str, numbers: dict[str, str]) -> str:
    return re.sub(rf"\(({TAG})\)", lambda match: f"({numbers.get(match[1], match[1])})", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="rename")
    action.add_argument("--check", action="store_true", help="exit 1 if an equation would be renamed")
    arguments = parser.parse_args()
    names = tracked_files()
    numbers = new_numbers(names)
    for old, new in numbers.items():
        print(f"({old}) -> ({new})")
    if arguments.check:
        return int(bool(numbers))
    for name in names if numbers else ():
        before = (ROOT / name).read_bytes().decode("utf-8")
        after = renamed(before, numbers, name)
        if after != before:
            print(f"{name}: {sum(a != b for a, b in zip(before.splitlines(), after.splitlines(), strict=True))} lines")
            if arguments.write:
                (ROOT / name).write_bytes(after.encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
