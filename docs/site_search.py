"""Write the search data of the site: the prose of its pages, one file per language, loaded by search.html alone."""

import json
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

Passage = tuple[str, str, str]  # the anchor, the heading, the text


def read_passages(doctree: nodes.document) -> list[Passage]:
    """Return the prose below each heading and of each documented function, without code and its output."""
    texts: dict[nodes.Node, list[str]] = {}
    for node in doctree.findall(lambda n: isinstance(n, (nodes.paragraph, nodes.title, addnodes.desc_signature))):
        container = node.parent
        while not isinstance(container, (nodes.section, addnodes.desc, nodes.document)):
            if "cell" in container.get("classes", ()):
                break
            container = container.parent
        else:
            paragraphs = texts.setdefault(container, [])
            if not isinstance(node, nodes.title):
                paragraphs.append(" ".join(node.astext().split()))
    return [(*heading(container), " ".join(paragraphs)) for container, paragraphs in texts.items()]


def heading(container: nodes.Node) -> tuple[str, str]:
    """Return the anchor and the heading of a section or of a function's description; "" of the whole page."""
    if isinstance(container, addnodes.desc):
        return container[0]["ids"][0], container[0]["fullname"]
    if isinstance(container, nodes.section):
        return container["ids"][0], container[0].astext()
    return "", ""


def write_pages(folder: Path, name: str, pages: list[tuple[str, str, list[Passage]]]) -> None:
    """Write the pages (address, title, passages) of a language as a script, which a browser also loads from a disk."""
    text = json.dumps(pages, ensure_ascii=False, separators=(",", ":"))
    text = re.sub(r"</", r"<\\/", text)
    (folder / f"{name}.js").write_text(f"window.PAGES = {text};\n", encoding="utf-8", newline="\n")
