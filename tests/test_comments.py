"""A description stands by itself: neither an argument of a docstring nor a trailing comment begins with a clause.

`seed: of the inputs` and `# of the inputs` are read only together with the name beside them. A description begins with
a noun phrase or a verb: `seed: Seed from which the inputs are drawn.`
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("grpo_lab", "tests", "notebooks", "docs", ".ci")
# Words with which a comment or a description begins that needs the name beside it.
IN_COMMENTS = ["of", "that", "those", "as", "whose", "by", "what", "which", "to", "how", "from", "its", "it", "until"]
IN_COMMENTS += ["such", "whatever"]
IN_DESCRIPTIONS = [*IN_COMMENTS, "where", "with", "in", "for", "each", "the same"]
NAMES = r"\*{0,2}[a-z_]\w*(?: \([^()]*\))?(?:, \*{0,2}[a-z_]\w*)*"
# A name or several, at the beginning of a line or of a sentence, a colon and the first word of the description.
DESCRIPTION = re.compile(rf"(?:^\s*|(?<=[.;] ))({NAMES}): (?:{'|'.join(IN_DESCRIPTIONS)})\b", re.MULTILINE)
COMMENT = re.compile(rf"#+ *(?:{'|'.join(IN_COMMENTS)})\b")
TRAILING_COMMENT = re.compile(rf"(?<=\S)[^\S\n]*{COMMENT.pattern}")  # without `.*`, which would try each pair of places
# A file, a beginning that is allowed there, and the reason.
PROMPT = "part of a prompt: with other words, the test that compares the gradients of two engines rounds otherwise"
EXCEPTIONS = {
    ("tests/support/tool_policy.py", "by: how far"): PROMPT,
    ("tests/support/tool_policy.py", "text: what"): PROMPT,
}


def descriptions(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each description in a docstring that begins with a clause."""
    documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            constant = node.body[0].value
            for match in DESCRIPTION.finditer(constant.value):
                line = constant.lineno + constant.value.count("\n", 0, match.start(1))
                yield line, constant.value[match.start(1) :].partition("\n")[0]


def trailing_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment behind code that begins with a clause."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        has_code = token.line[: token.start[1]].strip() != ""
        if token.type == tokenize.COMMENT and has_code and COMMENT.match(token.string):
            yield token.start[0], token.string


def leaning_texts(path: Path) -> list[tuple[str, int, str]]:
    """Return file, line and text of each description and trailing comment of a file that begins with a clause."""
    file, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    # A file is parsed only if the text of some line could be one: to parse all takes ten seconds.
    described = descriptions(source) if DESCRIPTION.search(source) else ()
    commented = trailing_comments(source) if TRAILING_COMMENT.search(source) else ()
    return [(file, line, text) for line, text in (*described, *commented)]


def exception_for(file: str, text: str) -> tuple[str, str] | None:
    return next((key for key in EXCEPTIONS if key[0] == file and text.startswith(key[1])), None)


@pytest.mark.parametrize("folder", FOLDERS)
def test_descriptions_and_trailing_comments_stand_by_themselves(folder):
    texts = [text for path in sorted((ROOT / folder).rglob("*.py")) for text in leaning_texts(path)]
    assert [f"{file}:{line} {text}" for file, line, text in texts if not exception_for(file, text)] == []


def test_exceptions_for_comments_are_needed():
    used = {exception_for(file, text) for name, _ in EXCEPTIONS for file, _, text in leaning_texts(ROOT / name)}
    assert EXCEPTIONS.keys() <= used


SOURCE = '''
"""A module.

files: of a run, which is no argument
"""

def draw(seed, steps, rows):
    """Draw inputs. seed: of the inputs. steps: Number of steps; rows: in each step.

    Args:
        seed: Seed from which the inputs are drawn.
        steps, rows: as they are in the table: of those, all
        **others (dict): whose values are drawn
    """
    count = steps  # of the steps
    text = "# of a text"  # number of steps
    # of a comment by itself
    return count


class Run:
    title: str  # which is shown
    """A text that is no docstring. title: of the run"""
'''


def test_check_of_comments_sees_each_kind_of_text():
    assert [(line, text.partition(":")[0]) for line, text in descriptions(SOURCE)] == [
        (8, "seed"),
        (8, "rows"),
        (12, "steps, rows"),
        (13, "**others (dict)"),
    ]
    assert list(trailing_comments(SOURCE)) == [(15, "# of the steps"), (22, "# which is shown")]
