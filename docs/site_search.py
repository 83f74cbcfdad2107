"""The search of the site: the prose of its pages, a file for each language, which only the page that searches loads."""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

Passage = tuple[str, str, str]  # the anchor, the heading, the text


def passages(doctree: nodes.document) -> list[Passage]:
    """Return the prose below each heading, and of each function, without code and without what code printed."""
    found: dict[nodes.Node, list[str]] = {}
    for node in doctree.findall(lambda n: isinstance(n, (nodes.paragraph, nodes.title, addnodes.desc_signature))):
        place = node.parent
        while not isinstance(place, (nodes.section, addnodes.desc, nodes.document)):
            if "cell" in place.get("classes", ()):
                break
            place = place.parent
        else:
            words = found.setdefault(place, [])
            if not isinstance(node, nodes.title):
                words.append(" ".join(node.astext().split()))
    return [(*heading(place), " ".join(words)) for place, words in found.items()]


def heading(place: nodes.Node) -> tuple[str, str]:
    if isinstance(place, addnodes.desc):
        return place[0]["ids"][0], place[0]["fullname"]
    if isinstance(place, nodes.section):
        return place["ids"][0], place[0].astext()
    return "", ""


def write(folder: Path, name: str, pages: list[tuple[str, str, list[Passage]]]) -> None:
    """Write the pages (address, title, passages) of a language as a script, which a browser reads from a disk too."""
    text = json.dumps(pages, ensure_ascii=False, separators=(",", ":"))
    text = re.sub(r"</", r"<\\/", text)
    (folder / f"{name}.js").write_text(f"window.PAGES = {text};\n", encoding="utf-8", newline="\n")
