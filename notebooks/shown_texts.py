"""Find the texts that code shows to a reader: those of the package, and those of a cell of a lesson."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from grpo_lab.teaching.plots.diagrams import STAGES

PACKAGE_FOLDER = Path(__file__).parents[1] / "grpo_lab"

# Texts of the package that are translated: all sentences of the modules in MODULES_OF_SENTENCES; from the modules in
# MODULES_OF_CAPTIONS, the texts in _() and the values of arguments and variables whose names are in SHOWN_ARGUMENTS.
CHECKING_MODULES = (
    "cell_history", "difference", "judging", "mistakes", "signature", "session", "stand_ins", "verdict",
)  # fmt: skip
MODULES_OF_SENTENCES = (
    "teaching/notebook/predictions.py",
    "doctor.py",
    *(f"course/checking/{name}.py" for name in CHECKING_MODULES),
)
MODULES_OF_CAPTIONS = (
    "course/grading/pages.py",
    "course/variant.py",
    "teaching/kernel_start.py",
    "teaching/notebook/beginning.py",
    "teaching/plots/**/*.py",
    "__main__.py",
)
SHOWN_ARGUMENTS = ("caption", "alt", "said", "usual", "choices", "LESSON_SAYS")  # names of arguments and variables
# Words and short texts of the package that are translated, although they stand in none of these places.
WORDS = ["The result:", "right", "wrong", "lower", "higher", "values", "gradients", "there", "loads"]
WORDS += ["packages", "machine", "sandbox", "allocator", "You said {0} to {1}: {2}."]
WORDS += ["equation", "code", "shape", "value", "in `{0}`:", "The result", "The gradient of {0}", "{0} ✓", "{0} ✗"]
WORDS += ["the result", "the gradient of {0}", "{0} after the call"]  # subjects of a line of values
WORDS += ["input", "where", "yours", "expected", "no gradient", "unchanged", "missing"]
WORDS += ["{0} lacks {1}.", "not right", "not begun"]
WORDS += STAGES  # labels in the diagram of the loop
WORDS += ["a tensor", "a number", "a text", "a dictionary", "question", "before"]
WORDS += ["after 16 updates (seed 0)"]
WORDS += ["| trainer | settings", "token", "standardised", "a constant", "completions", "centred", "yes", "no"]
WORDS += [f"<details{o}><summary>Run {{0}}: {{1}}, in <code>{{2}}</code></summary>" for o in ("", " open")]
WORDS += [f"{{0}} {word}{s}" for word in ("case", "point", "range", "choice", "time", "student") for s in ("", "s")]


def shown_texts(source: str, all_sentences: bool = False, names: tuple[str, ...] = SHOWN_ARGUMENTS) -> Iterator[str]:
    """Yield the texts that code shows to a reader.

    Args:
        source: The code.
        all_sentences: Whether all sentences of the code are shown, not only captions, alternative texts, predictions.
        names: Names of the arguments and variables whose texts are shown.
    """
    tree, pairs = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            pairs.append((node.arg, node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("predict", "_", "fill"):
            message_arguments = node.args[:1] if node.func.id == "fill" else node.args  # for `fill`, without the values
            pairs += [("caption", argument) for argument in message_arguments]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("show", "trace"):
            functions = [getattr(argument, "id", getattr(argument, "attr", "")) for argument in node.args]
            pairs += [("caption", ast.Constant(docstring_summaries().get(function, ""))) for function in functions]
        elif isinstance(node, ast.Assign | ast.AugAssign) and not isinstance(node.value, ast.List | ast.ListComp):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            targets = getattr(target, "elts", [target])
            values = [node.value] if target in targets else getattr(node.value, "elts", [node.value])
            pairs += [(getattr(name, "id", ""), value) for name, value in zip(targets, values, strict=False)]
        elif isinstance(node, ast.Raise):
            node.exc = None  # errors stay English
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None  # docstrings
    for _, value in (pair for pair in pairs if pair[0] in names):
        yield from sentences(value, min_words=1)
    for text in sentences(tree, min_words=2) if all_sentences else ():
        if not re.search(r"[<;]\w|  ", text):
            # A value that is a sentence has an entry of its own.
            yield re.sub(r"^\{0\} (?=[A-Z])|(?<=\.) \{\w\}$", "", text)


@cache
def docstring_summaries() -> dict[str, str]:
    """Return the first docstring line of each function, of all modules with equations, by the function's name."""
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE_FOLDER.rglob("*.py"))
    trees = [ast.parse(source) for source in sources if r"\tag{" in source]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {function.name: (ast.get_docstring(function) or "").partition("\n")[0] for function in functions}


def sentences(node: ast.AST, min_words: int) -> Iterator[str]:
    """Yield the texts below a node with at least `min_words` words, with {0}, {1}, ... for the values of f-strings."""
    if isinstance(node, ast.JoinedStr):
        values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        text = "".join(f"{{{values.index(p)}}}" if p in values else p.value for p in node.values)
        if len(re.findall("[A-Za-z]", re.sub(r"\{\w+\}", "", text))) >= 5:
            yield text.strip(" ;,")
        for value in values:
            yield from sentences(value.value, min_words=2)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if len(re.findall(r"[A-Za-z]{2,}", node.value)) >= min_words and (min_words == 1 or " " in node.value):
            yield node.value.strip(" ;,")
    else:
        for child in ast.iter_child_nodes(node):
            yield from sentences(child, min_words)
