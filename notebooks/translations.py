"""Write the pages in Chinese from gettext catalogues, for `build.py --lang zh_CN`; no notebook is executed.

po/zh_CN/NAME.po has an entry for each Markdown block of a page, and for each caption, alternative text, prediction and
choice in its code. grpo_lab.po has the texts of the package, and prints.po the lines that lessons print, cell by cell.

A Chinese notebook has the code cells, ids and outputs of the English one. Only captions, alternative texts,
predictions, printed lines and figures are replaced in the outputs. A figure with Chinese labels (from figures.po) is
drawn while the English lesson is built, and the Chinese page keeps it until the English figure changes.
"""

import ast
import hashlib
import html
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
from babel.messages import Catalog, Message
from babel.messages.pofile import read_po, write_po

from grpo_lab.base.catalogues import PRINTS, blocks, confirmed_messages, translated
from grpo_lab.teaching.notebook import prints

LANG = "zh_CN"
NOTEBOOKS = Path(__file__).parent
ROOT = NOTEBOOKS.parent
PO = ROOT / "po"
DOCS = (
    "install",
    "commands",
    "own-task",
    "agents",
    "own-loop",
    "not-converging",
    "metrics",
    "card",
    "cluster",
    "serving",
    "stability",
    "tutorials",
)
PAGES = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
PAGES |= {f"assignment_{path.stem}": path for path in sorted(NOTEBOOKS.glob("assignments/*.ipynb"))}
PAGES |= {"README": ROOT / "README.md"} | {name: ROOT / "docs" / f"{name}.md" for name in ("glossary", *DOCS)}
PAGES |= {"TEACHING": NOTEBOOKS / "assignments" / "TEACHING.md"}
HEADER = f'msgid ""\nmsgstr ""\n"Language: {LANG}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
LIVE = "live"  # the kind of a message in prints.po that only other machines or profiles print
DRAWN_FROM = "drawn_from"  # key in the metadata of a Chinese figure, with the mark of the English figure
UNTRANSLATED = "*〔下面一段还没有译成中文〕*"

# Texts of the package that are translated: all sentences of the modules in SAYING; from the modules in DRAWING, the
# texts in _() and the values of arguments and variables whose names are in SHOWN.
PACKAGE = "grpo_lab"
VARIANTS = "variants"  # texts about a class's own formulas (docs/teaching/variants.yaml)
CHECKING = ("difference", "judging", "explanation", "case_parts", "mistakes", "relations", "signature", "session")
CHECKING += ("stand_ins", "verdict", "verdict_parts")
SAYING = (
    "teaching/notebook/predictions.py",
    "teaching/cell_errors.py",
    "doctor.py",
    *(f"course/checking/{name}.py" for name in CHECKING),
)
PAGES_OF_A_CLASS = ("course/grading/class_page.py", "course/grading/student_page.py")
DRAWING = (*PAGES_OF_A_CLASS, "course/variant.py", "teaching/notebook/beginning.py", "teaching/plots/**/*.py")
DRAWING += ("__main__.py",)
SHOWN = ("caption", "alt", "said", "usual", "choices", "LESSON_SAYS")  # names of arguments and variables
WORDS = ["The result:", "right", "wrong", "lower", "higher", "values", "gradients", "there", "loads"]
WORDS += ["packages", "machine", "sandbox", "allocator", "You said {0} to {1}: {2}."]
WORDS += ["equation", "code", "shape", "value", "in `{0}`:", "The result", "The gradient of {0}", "{0} ✓", "{0} ✗"]
WORDS += ["the gradient of {0}", "{0} after the call"]  # subjects of a line of values
WORDS += ["input", "where", "yours", "expected", "no gradient", "unchanged", "missing"]
WORDS += ["{0} lacks {1}.", "not right", "not begun"]
WORDS += [
    "prompts",
    "group",
    "reward",
    "advantage",
    "log-probs",
    "objective",
    "step",
]  # labels in the diagram of the loop
WORDS += ["a tensor", "a number", "a text", "a dictionary", "question", "before"]
WORDS += ["after 16 updates (seed 0)"]
WORDS += ["| trainer | settings", "token", "standardised", "a constant", "completions", "centred", "yes", "no"]
WORDS += [f"<details{o}><summary>Run {{0}}: {{1}}, in <code>{{2}}</code></summary>" for o in ("", " open")]
WORDS += [f"{{0}} {word}{s}" for word in ("case", "point", "range", "choice", "time", "student") for s in ("", "s")]

# Parts that a translation has to keep: formulas, code, links, HTML tags, placeholders of values, numbers.
UNCHANGED_PARTS = re.compile(
    r"\$\$.+?\$\$|\$[^$\n]+\$|```.*?```|`[^`]+`|\]\([^)\s]+\)|https?://[^\s)]+|</?\w[^>]*>|\{\w+\}|\d+(?:[.,:]\d+)*",
    re.DOTALL,
)
COMMENT = re.compile(r"(?<= # )[A-Za-z].+$", re.MULTILINE)  # a comment behind a command on a page
OPENED = re.compile(
    r"(?<=/_sources/)notebooks/[\w/]+\.ipynb(?=\))"
)  # a notebook that a link opens on Colab or the like
# Large numbers: English counts in millions and billions, Chinese in 亿 (a hundred million).
LARGE = re.compile(r"(\d+(?:\.\d+)?) (million|billion)")
IN_YI = {"million": 0.01, "billion": 10}


def in_chinese_units(english: str) -> str:
    """Return the text with large numbers in Chinese units: 494 million becomes 4.94 亿."""
    return LARGE.sub(lambda number: f"{float(number[1]) * IN_YI[number[2]]:g} 亿", english)


def is_prose(block: str) -> bool:
    return bool(re.search(r"[A-Za-z]{2}", UNCHANGED_PARTS.sub("", block)))


@cache
def messages(name: str) -> dict[str, str]:
    """Return the kind of each text to translate in the catalogue `name`, by the text, in the order of the page."""
    kinds = {}
    if name == PACKAGE:
        kinds |= dict.fromkeys(WORDS, "word")
        for pattern in (*SAYING, *DRAWING):
            for path in sorted((ROOT / PACKAGE).glob(pattern)):
                texts = shown(path.read_text(encoding="utf-8"), whole=pattern in SAYING)
                kinds = kinds | {text: path.relative_to(ROOT).as_posix() for text in texts if text not in kinds}
        rubric = json.loads((Path(__file__).parent / "assignments" / "rubric.json").read_text(encoding="utf-8"))
        return kinds | {criterion: "rubric" for criteria in rubric.values() for criterion in criteria}
    if name == VARIANTS:
        from grpo_lab.course.variant import read_variants

        for formula in (formula for formulas in read_variants().values() for formula in formulas):
            kinds |= {formula.says: "variant"} | dict.fromkeys(formula.hints, "hint")
        return kinds
    cells = read_page(PAGES[name]).cells
    # Constants that a page passes as `choices`.
    constants = re.findall(r"choices=([A-Z]+)\b", "\n".join(cell.source for cell in cells))
    for cell in cells:
        if cell.cell_type == "markdown":
            kinds |= {block: "block" for block in blocks(cell.source) if is_prose(block)}
            if PAGES[name].suffix == ".md":
                kinds |= dict.fromkeys(COMMENT.findall(cell.source), "comment")
        else:
            kinds |= dict.fromkeys(shown(cell.source, names=(*SHOWN, *constants)), "shown")
    if name.startswith("assignment_"):
        from grpo_lab.course.exercises import all_exercises

        for exercise in (e for e in all_exercises().values() if e.notebook == name.split("_")[1]):
            kinds |= dict.fromkeys(exercise.hints, "hint")
            kinds |= dict.fromkeys([mistake.explanation for mistake in exercise.mistakes], "verdict")
            observed = shown(inspect.getsource(exercise.observations), whole=True) if exercise.observations else ()
            kinds |= dict.fromkeys(observed, "seen")
            kinds |= dict.fromkeys([case.label for case in exercise.cases if " " in case.label], "case")
    return kinds


def read_page(page: Path) -> nbformat.NotebookNode:
    """Read a page as a notebook; a Markdown file becomes a notebook with a single cell."""
    if page.suffix == ".ipynb":
        return nbformat.read(page, as_version=4)
    text = page.read_text(encoding="utf-8").strip()
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def shown(source: str, whole: bool = False, names: tuple[str, ...] = SHOWN) -> Iterator[str]:
    """Yield the texts that code shows to a reader.

    Args:
        source: The code.
        whole: Whether all sentences of the code are shown, and not only captions, alternative texts and predictions.
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
            pairs += [("caption", ast.Constant(summaries().get(function, ""))) for function in functions]
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
        yield from sentences(value, least=1)
    for text in sentences(tree, least=2) if whole else ():
        if not re.search(r"[<;]\w|  ", text):
            yield re.sub(
                r"^\{0\} (?=[A-Z])|(?<=\.) \{\w\}$", "", text
            )  # a value that is a sentence has an entry of its own


@cache
def summaries() -> dict[str, str]:
    """Return the first docstring line of each function, of all modules with equations, by the function's name."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / PACKAGE).rglob("*.py"))
    trees = [ast.parse(source) for source in sources if r"\tag{" in source]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {function.name: (ast.get_docstring(function) or "").partition("\n")[0] for function in functions}


def sentences(node: ast.AST, least: int) -> Iterator[str]:
    """Yield the texts below a node that have at least `least` words, with {0}, {1}, ... for the values of f-strings."""
    if isinstance(node, ast.JoinedStr):
        values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        text = "".join(f"{{{values.index(p)}}}" if p in values else p.value for p in node.values)
        if len(re.findall("[A-Za-z]", re.sub(r"\{\w+\}", "", text))) >= 5:
            yield text.strip(" ;,")
        for value in values:
            yield from sentences(value.value, least=2)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if len(re.findall(r"[A-Za-z]{2,}", node.value)) >= least and (least == 1 or " " in node.value):
            yield node.value.strip(" ;,")
    else:
        for child in ast.iter_child_nodes(node):
            yield from sentences(child, least)


def update(name: str, known: dict[str, str]) -> None:
    """Bring a catalogue in step with the English.

    Args:
        name: Name of the catalogue.
        known: Translations from other catalogues, which new entries take over. Other new entries are empty, and
            entries whose English has changed are marked fuzzy.
    """
    path = PO / LANG / f"{name}.po"
    template, catalog = Catalog(), read_po(path.read_bytes().splitlines() if path.exists() else [], LANG)
    for text, kind in messages(name).items():
        template.add(text, auto_comments=[kind])
    catalog.update(template)
    for message in catalog:
        message.string = message.string or known.get(message.id, "")
        message.flags &= {"fuzzy"}
        if not message.flags:
            message.user_comments.clear()  # the previous English after `#|`, which read_po takes for comments
    with path.open("wb") as file:
        file.write(HEADER.encode())
        write_po(file, catalog, width=None, ignore_obsolete=True, include_previous=True, omit_header=True)


def printed(name: str) -> list[str]:
    """Return the cells of printed lines that an executed page shows, for prints.po."""
    outputs = (output for cell in read_page(PAGES[name]).cells for output in cell.get("outputs", []))
    texts = [output.text for output in outputs if output.output_type == "stream"]
    return list(dict.fromkeys(message for text in texts for message in prints.cells(text)))


def renew_prints() -> None:
    """Drop the entries of prints.po that no page prints, and order the others as on the pages."""
    path = PO / LANG / PRINTS
    known = {message.id: message for message in confirmed_messages(path)}
    on_pages = dict.fromkeys(message for name in PAGES for message in printed(name))
    live = [message for message in known if LIVE in known[message].auto_comments]
    catalog = Catalog()
    for message in dict.fromkeys([*(message for message in on_pages if message in known), *live]):
        catalog.add(message, known[message].string, auto_comments=known[message].auto_comments)
    with path.open("wb") as file:
        file.write(HEADER.encode())
        write_po(file, catalog, width=None, omit_header=True)


def done(name: str) -> list[Message]:
    """Return the translations of a catalogue that are not marked fuzzy."""
    return confirmed_messages(PO / LANG / f"{name}.po")


def missing(name: str) -> list[str]:
    """Return the texts of a catalogue that have no confirmed translation."""
    translated_texts = {message.id for message in done(name)}
    return [text for text in messages(name) if text not in translated_texts]


def faults(name: str) -> list[str]:
    """Return a line for each translation that loses or adds formulas, code, links, values or numbers.

    Translations of the package may leave out a value, such as "was".
    """
    lines = []
    for message in done(name):
        string = message.string.replace(f".{LANG.replace('_', '-')}.png)", ".png)")  # a picture with Chinese labels
        english, ours = (Counter(UNCHANGED_PARTS.findall(text)) for text in (in_chinese_units(message.id), string))
        differing = [mark for mark in english | ours if english[mark] != ours[mark]]
        if name == PACKAGE and ours <= english:
            differing = [mark for mark in differing if not mark.startswith("{")]
        if differing:
            lines.append(f"{message.id[:60]!r}: not as often as in English: {', '.join(differing)}")
        bold = re.findall(r"\*\*([^*]+)\*\*(\w?)", message.string)
        # Markdown does not close bold type between punctuation and a letter.
        if unclosed := [text for text, after in bold if after and re.search(r"[^\w`$]$", text)]:
            lines.append(f"{message.id[:60]!r}: punctuation stands inside of bold type: {unclosed[0][-20:]}")
    return lines


def twin(page: Path) -> Path:
    """Return the path of the Chinese page that belongs to an English page."""
    if page.suffix == ".ipynb":
        return NOTEBOOKS / "zh" / page.relative_to(NOTEBOOKS)
    return page.with_name(f"{page.stem}.zh-CN.md")


def chinese(name: str, figures: dict[str, str] | None = None) -> str:
    """Return the Chinese page, made from the English page and the translations.

    Args:
        name: Name of the page in `PAGES`.
        figures: Figures with Chinese labels, as `take_figures` returns them; None keeps those of the Chinese page.
    """
    page, known = PAGES[name], {message.id: message.string for message in done(name)}
    notebook, figures = read_page(page), figures or figures_of(twin(page))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = translated_markdown(cell.source, page, known)
        for output in cell.get("outputs", []):
            translate_output(output, figures)
    return (nbformat.writes(notebook) if page.suffix == ".ipynb" else notebook.cells[0].source) + "\n"


def translated_markdown(markdown: str, page: Path, known: dict[str, str]) -> str:
    translated_blocks = []
    for block in blocks(markdown):
        if block.startswith("```"):
            block = COMMENT.sub(lambda comment: known.get(comment[0], comment[0]), block)
        if block in known or not is_prose(block):
            translated_blocks.append(known.get(block, block))
        else:
            translated_blocks += [UNTRANSLATED, block]
    link = r"(?<=\]\()(?!\w+:)([^)#\s]*)((?:#[^)]+)?)"
    text = re.sub(link, lambda link: relinked(link[1], link[2], page, known), "\n\n".join(translated_blocks))
    return re.sub(OPENED, lambda opened: opened_twin(opened[0]), text)


def opened_twin(notebook: str) -> str:
    """Return the Chinese twin of a notebook that a link opens on a hosted service, or the notebook if it has none."""
    path = twin(ROOT / notebook)
    return path.relative_to(ROOT).as_posix() if path.exists() else notebook


def anchor(heading: str, page: Path) -> str:
    """Return the anchor of a heading: JupyterLab's for a notebook, GitHub's for a Markdown file."""
    name = heading.lstrip("# ").replace(" ", "-")
    return name if page.suffix == ".ipynb" else re.sub(r"[^\w-]", "", name.lower())


def relinked(link: str, fragment: str, page: Path, known: dict[str, str]) -> str:
    """Return a link of the Chinese page, which leads to a Chinese page and heading if they exist.

    Args:
        link: Path of the link on the English page; "" for a link within the page.
        fragment: Anchor of the link with its "#", or "".
        page: The English page.
        known: Translations of the page, by their English.
    """
    goal = Path(os.path.normpath(page.parent / link)) if link else page
    for name in [name for name, path in PAGES.items() if path == goal and (path == page or twin(path).exists())]:
        headings = known if goal == page else {message.id: message.string for message in done(name)}
        anchors = {anchor(text, goal): anchor(ours, goal) for text, ours in headings.items() if text.startswith("#")}
        link = link and Path(os.path.relpath(twin(goal), twin(page).parent)).as_posix()
        return link + fragment[:1] + anchors.get(fragment[1:], fragment[1:])
    goal = twin(goal) if goal.suffix == ".md" and twin(goal).exists() else goal  # a page that is written in Chinese
    return (link and Path(os.path.relpath(goal, twin(page).parent)).as_posix()) + fragment


def take_figures(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Remove the figures with Chinese labels from an executed lesson; return them by the mark of the English figure."""
    figures = {}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if ours := output.get("metadata", {}).get("image/png", {}).pop(LANG, ""):
            figures[mark_of(output.data["image/png"])] = ours
    return figures


def figures_of(path: Path) -> dict[str, str]:
    """Return the figures with Chinese labels of a Chinese page, by the mark of the English figure."""
    if path.suffix != ".ipynb" or not path.exists():
        return {}
    outputs = (o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", []))
    drawn = [(o.get("metadata", {}).get("image/png", {}).get(DRAWN_FROM), o) for o in outputs]
    return {mark: output.data["image/png"] for mark, output in drawn if mark}


def mark_of(picture: str) -> str:
    return hashlib.sha256(picture.encode()).hexdigest()[:16]


def translate_output(output: nbformat.NotebookNode, figures: dict[str, str]) -> None:
    """Translate an output in place: captions, alternative texts, predictions, figures and printed lines."""
    data, picture = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
    if output.output_type == "stream":
        output.text = prints.translated_print(output.text, LANG)
    if "text/markdown" in data:
        data["text/markdown"] = translated(data["text/markdown"], LANG)
    if mark := "image/png" in data and mark_of(data["image/png"]):
        picture.pop("labels", None)
        if mark in figures:
            data["image/png"], picture[DRAWN_FROM] = figures[mark], mark
    if "alt" in picture:
        picture["alt"] = data["text/plain"] = translated(" ".join(picture["alt"].split()), LANG)
    if "text/html" in data:
        text_in_html = r'(?<= alt=")[^"]*|(?<=<summary>)[^<]*|value:(?= <code)'
        translate = lambda text: html.escape(translated(html.unescape(text[0]), LANG))  # noqa: E731
        data["text/html"] = re.sub(text_in_html, translate, data["text/html"])


def write(name: str, figures: dict[str, str] | None = None) -> None:
    path = twin(PAGES[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chinese(name, figures), encoding="utf-8")


def written() -> list[str]:
    """Return the names of the pages that have a Chinese twin."""
    return [name for name, page in PAGES.items() if twin(page).exists()]


def differences(name: str) -> list[str]:
    """Return a line for each fault in the translations of a page, and one if its Chinese twin is out of date."""
    stale = name in written() and twin(PAGES[name]).read_text(encoding="utf-8") != chinese(name)
    return faults(name) + ["the Chinese page is not in step: python notebooks/build.py --lang zh_CN"] * stale


def renew(beginnings: list[str], check: bool) -> bool:
    """Bring catalogues and Chinese pages in step with the English, for `build.py --lang`, and print what is missing.

    Args:
        beginnings: Beginnings of the names of pages to write. An empty list writes the pages with a Chinese twin.
        check: Whether files stay as they are, so that differences are printed only.

    Returns:
        Whether translations or pages are faulty.
    """
    every_name = (*PAGES, PACKAGE, VARIANTS)
    names = [name for name in every_name if not beginnings or any(name.startswith(start) for start in beginnings)]
    if not check:
        known = {
            message.id: message.string for path in (PO / LANG).glob("*.po") for message in confirmed_messages(path)
        }
        for name in names:
            update(name, known)
        renew_prints()
        for name in [name for name in names if name in (PAGES if beginnings else written())]:
            write(name)
    wrong = {name: differences(name) for name in names}
    for name in names:
        left = missing(name)
        print(f"{name}: {len(left)} of {len(messages(name))} to translate")
        for line in (*(repr(text[:100]) for text in left if beginnings), *wrong[name]):
            print(f"    {line}")
        as_in_english = [text for text in printed(name) if text not in prints.catalogue(LANG)] if name in PAGES else []
        if as_in_english:
            print(f"    {len(as_in_english)} printed cells stay as in English")
        for text in as_in_english if beginnings else ():
            print(f"        {text[:100]!r}")
    return any(wrong.values())
