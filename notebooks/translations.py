"""Write the pages in Chinese from gettext catalogues, for `build.py --lang zh_CN`; no notebook is executed.

po/zh_CN/NAME.po has an entry for each Markdown block of a page, and for each caption, alternative text, prediction and
choice in its code. grpo_lab.po has the texts of the package, and prints.po the lines that lessons print, cell by cell.

A Chinese notebook has the code cells, ids and outputs of the English one. Only captions, alternative texts,
predictions, printed lines and figures are replaced in the outputs. A figure with Chinese labels (from figures.po) is
drawn while the English lesson is built, and the Chinese page keeps it until the English figure changes.
"""

import hashlib
import html
import inspect
import json
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

import nbformat
from babel.messages import Catalog, Message
from babel.messages.pofile import read_po, write_po
from shown_texts import MODULES_OF_CAPTIONS, MODULES_OF_SENTENCES, SHOWN_ARGUMENTS, WORDS, shown_texts

from grpo_lab.base.language import PRINTS, blocks, confirmed_messages, translate
from grpo_lab.teaching.messages import print_translations, printed_messages, translate_printed_text

LANGUAGE = "zh_CN"
NOTEBOOKS = Path(__file__).parent
ROOT = NOTEBOOKS.parent
PO = ROOT / "po"
PACKAGE = "grpo_lab"
VARIANTS = "variants"  # texts about a class's own formulas (docs/teaching/variants.yaml)
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
HEADER = f'msgid ""\nmsgstr ""\n"Language: {LANGUAGE}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
LIVE = "live"  # the kind of a message in prints.po that only other machines or profiles print
DRAWN_FROM = "drawn_from"  # key in the metadata of a Chinese figure, with the hash of the English figure
UNTRANSLATED = "*〔下面一段还没有译成中文〕*"

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
        for pattern in (*MODULES_OF_SENTENCES, *MODULES_OF_CAPTIONS):
            for path in sorted((ROOT / PACKAGE).glob(pattern)):
                texts = shown_texts(path.read_text(encoding="utf-8"), all_sentences=pattern in MODULES_OF_SENTENCES)
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
            kinds |= dict.fromkeys(shown_texts(cell.source, names=(*SHOWN_ARGUMENTS, *constants)), "shown")
    if name.startswith("assignment_"):
        from grpo_lab.course.exercises import all_exercises

        for exercise in (e for e in all_exercises().values() if e.notebook == name.split("_")[1]):
            kinds |= dict.fromkeys(exercise.hints, "hint")
            kinds |= dict.fromkeys([mistake.explanation for mistake in exercise.mistakes], "verdict")
            observed = (
                shown_texts(inspect.getsource(exercise.observations), all_sentences=True)
                if exercise.observations
                else ()
            )
            kinds |= dict.fromkeys(observed, "seen")
            kinds |= dict.fromkeys([case.label for case in exercise.cases if " " in case.label], "case")
    return kinds


def read_page(page: Path) -> nbformat.NotebookNode:
    """Read a page as a notebook; a Markdown file becomes a notebook with a single cell."""
    if page.suffix == ".ipynb":
        return nbformat.read(page, as_version=4)
    text = page.read_text(encoding="utf-8").strip()
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def update_catalogue(name: str, known: dict[str, str]) -> None:
    """Bring a catalogue in step with the English.

    Args:
        name: Name of the catalogue.
        known: Translations from other catalogues, which new entries take over. Other new entries are empty, and
            entries whose English has changed are marked fuzzy.
    """
    path = PO / LANGUAGE / f"{name}.po"
    template, catalog = Catalog(), read_po(path.read_bytes().splitlines() if path.exists() else [], LANGUAGE)
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


def printed_on(name: str) -> list[str]:
    """Return the cells of printed lines that an executed page shows, for prints.po."""
    outputs = (output for cell in read_page(PAGES[name]).cells for output in cell.get("outputs", []))
    texts = [output.text for output in outputs if output.output_type == "stream"]
    return list(dict.fromkeys(message for text in texts for message in printed_messages(text)))


def update_prints() -> None:
    """Drop the entries of prints.po that no page prints, and order the others as on the pages."""
    path = PO / LANGUAGE / PRINTS
    known = {message.id: message for message in confirmed_messages(path)}
    on_pages = dict.fromkeys(message for name in PAGES for message in printed_on(name))
    live = [message for message in known if LIVE in known[message].auto_comments]
    catalog = Catalog()
    for message in dict.fromkeys([*(message for message in on_pages if message in known), *live]):
        catalog.add(message, known[message].string, auto_comments=known[message].auto_comments)
    with path.open("wb") as file:
        file.write(HEADER.encode())
        write_po(file, catalog, width=None, omit_header=True)


def confirmed_translations(name: str) -> list[Message]:
    """Return the translations of a catalogue that are not marked fuzzy."""
    return confirmed_messages(PO / LANGUAGE / f"{name}.po")


def untranslated(name: str) -> list[str]:
    """Return the texts of a catalogue that have no confirmed translation."""
    translated_texts = {message.id for message in confirmed_translations(name)}
    return [text for text in messages(name) if text not in translated_texts]


def translation_faults(name: str) -> list[str]:
    """Return a line for each translation that loses or adds formulas, code, links, values or numbers.

    Translations of the package may leave out a value, such as "was".
    """
    lines = []
    for message in confirmed_translations(name):
        string = message.string.replace(f".{LANGUAGE.replace('_', '-')}.png)", ".png)")  # a picture with Chinese labels
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


def chinese_path(page: Path) -> Path:
    """Return the path of the Chinese page that belongs to an English page."""
    if page.suffix == ".ipynb":
        return NOTEBOOKS / "zh" / page.relative_to(NOTEBOOKS)
    return page.with_name(f"{page.stem}.zh-CN.md")


def chinese_page(name: str, figures: dict[str, str] | None = None) -> str:
    """Return the Chinese page, made from the English page and the translations.

    Args:
        name: Name of the page in `PAGES`.
        figures: Figures with Chinese labels, as `take_figures` returns them; None keeps those of the Chinese page.
    """
    page, known = PAGES[name], {message.id: message.string for message in confirmed_translations(name)}
    notebook, figures = read_page(page), figures or figures_of_chinese_page(chinese_path(page))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = translate_markdown(cell.source, page, known)
        for output in cell.get("outputs", []):
            translate_output(output, figures)
    return (nbformat.writes(notebook) if page.suffix == ".ipynb" else notebook.cells[0].source) + "\n"


def translate_markdown(markdown: str, page: Path, known: dict[str, str]) -> str:
    """Return the Markdown of a page in Chinese; a block without a translation stays English and is marked."""
    translated_blocks = []
    for block in blocks(markdown):
        if block.startswith("```"):
            block = COMMENT.sub(lambda comment: known.get(comment[0], comment[0]), block)
        if block in known or not is_prose(block):
            translated_blocks.append(known.get(block, block))
        else:
            translated_blocks += [UNTRANSLATED, block]
    link = r"(?<=\]\()(?!\w+:)([^)#\s]*)((?:#[^)]+)?)"
    text = re.sub(link, lambda link: relink(link[1], link[2], page, known), "\n\n".join(translated_blocks))
    return re.sub(OPENED, lambda opened: chinese_notebook(opened[0]), text)


def chinese_notebook(notebook: str) -> str:
    """Return the Chinese twin of a notebook that a link opens on a hosted service, or the notebook if it has none."""
    path = chinese_path(ROOT / notebook)
    return path.relative_to(ROOT).as_posix() if path.exists() else notebook


def anchor(heading: str, page: Path) -> str:
    """Return the anchor of a heading: JupyterLab's for a notebook, GitHub's for a Markdown file."""
    name = heading.lstrip("# ").replace(" ", "-")
    return name if page.suffix == ".ipynb" else re.sub(r"[^\w-]", "", name.lower())


def relink(link: str, fragment: str, page: Path, known: dict[str, str]) -> str:
    """Return a link of the Chinese page, which leads to a Chinese page and heading if they exist.

    Args:
        link: Path of the link on the English page; "" for a link within the page.
        fragment: Anchor of the link with its "#", or "".
        page: The English page.
        known: Translations of the page, by their English.
    """
    target = Path(os.path.normpath(page.parent / link)) if link else page
    name = next((name for name, path in PAGES.items() if path == target), None)
    if name is not None and (target == page or chinese_path(target).exists()):
        headings = known if target == page else {message.id: message.string for message in confirmed_translations(name)}
        anchors = {
            anchor(english, target): anchor(ours, target)
            for english, ours in headings.items()
            if english.startswith("#")
        }
        fragment = fragment[:1] + anchors.get(fragment[1:], fragment[1:])
        target = chinese_path(target)
    elif target.suffix == ".md" and chinese_path(target).exists():  # a page that is written in Chinese
        target = chinese_path(target)
    return (link and Path(os.path.relpath(target, chinese_path(page).parent)).as_posix()) + fragment


def take_figures(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Remove the figures with Chinese labels from an executed lesson; return them by the hash of the English figure."""
    figures = {}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if ours := output.get("metadata", {}).get("image/png", {}).pop(LANGUAGE, ""):
            figures[figure_hash(output.data["image/png"])] = ours
    return figures


def figures_of_chinese_page(path: Path) -> dict[str, str]:
    """Return the figures with Chinese labels of a Chinese page, by the hash of the English figure."""
    if path.suffix != ".ipynb" or not path.exists():
        return {}
    outputs = (o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", []))
    drawn = [(o.get("metadata", {}).get("image/png", {}).get(DRAWN_FROM), o) for o in outputs]
    return {key: output.data["image/png"] for key, output in drawn if key}


def figure_hash(picture: str) -> str:
    """Return a hash of a picture in base64, by which a Chinese figure knows its English one."""
    return hashlib.sha256(picture.encode()).hexdigest()[:16]


def translate_output(output: nbformat.NotebookNode, figures: dict[str, str]) -> None:
    """Translate an output in place: captions, alternative texts, predictions, figures and printed lines."""
    data, picture = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
    if output.output_type == "stream":
        output.text = translate_printed_text(output.text, LANGUAGE)
    if "text/markdown" in data:
        data["text/markdown"] = translate(data["text/markdown"], LANGUAGE)
    if key := "image/png" in data and figure_hash(data["image/png"]):
        picture.pop("labels", None)
        if key in figures:
            data["image/png"], picture[DRAWN_FROM] = figures[key], key
    if "alt" in picture:
        picture["alt"] = data["text/plain"] = translate(" ".join(picture["alt"].split()), LANGUAGE)
    if "text/html" in data:
        text_in_html = r'(?<= alt=")[^"]*|(?<=<summary>)[^<]*|value:(?= <code)'
        translate_match = lambda text: html.escape(translate(html.unescape(text[0]), LANGUAGE))  # noqa: E731
        data["text/html"] = re.sub(text_in_html, translate_match, data["text/html"])


def write_chinese_page(name: str, figures: dict[str, str] | None = None) -> None:
    """Write the Chinese page; the arguments are those of `chinese_page`."""
    path = chinese_path(PAGES[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chinese_page(name, figures), encoding="utf-8")


def pages_with_chinese() -> list[str]:
    """Return the names of the pages that have a Chinese twin."""
    return [name for name, page in PAGES.items() if chinese_path(page).exists()]


def differences(name: str) -> list[str]:
    """Return a line for each fault in the translations of a page, and one if its Chinese twin is out of date."""
    stale = name in pages_with_chinese() and chinese_path(PAGES[name]).read_text(encoding="utf-8") != chinese_page(name)
    return (
        translation_faults(name) + ["the Chinese page is not in step: python notebooks/build.py --lang zh_CN"] * stale
    )


def update_all(beginnings: list[str], check: bool) -> bool:
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
            message.id: message.string for path in (PO / LANGUAGE).glob("*.po") for message in confirmed_messages(path)
        }
        for name in names:
            update_catalogue(name, known)
        update_prints()
        for name in [name for name in names if name in (PAGES if beginnings else pages_with_chinese())]:
            write_chinese_page(name)
    wrong = {name: differences(name) for name in names}
    for name in names:
        left = untranslated(name)
        print(f"{name}: {len(left)} of {len(messages(name))} to translate")
        for line in (*(repr(text[:100]) for text in left if beginnings), *wrong[name]):
            print(f"    {line}")
        printed_on_page = printed_on(name) if name in PAGES else []
        as_in_english = [text for text in printed_on_page if text not in print_translations(LANGUAGE)]
        if as_in_english:
            print(f"    {len(as_in_english)} printed cells stay as in English")
        for text in as_in_english if beginnings else ():
            print(f"        {text[:100]!r}")
    return any(wrong.values())
