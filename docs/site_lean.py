"""What a page of the site loads, kept small: the parts of MathJax that it needs, a dozen icons, its styles."""

import re
import shutil
import struct
from importlib.metadata import distribution
from pathlib import Path

import pydata_sphinx_theme

MATHJAX = "sphinx-mathjax-offline"  # a package that carries MathJax
FONTS = "output/chtml/fonts"
EXTENSIONS = "input/tex/extensions"  # MathJax loads one where a formula needs it: of a colour, for example
PARTS = ["startup", "core", "input/tex", "output/chtml", "a11y/assistive-mml"]  # formulas, and how they are read aloud
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
# Fontawesome's 1.6 MB draw the icons; the index is loaded by the page that searches (search.html).
UNWANTED = re.compile(
    r'<script[^>]*src="[^"]*/?(?:fontawesome|searchtools|language_data|searchindex)\.js[^"]*"></script>'
)
ICON = re.compile(r'<(i|span) class="([^"]*)\bfa-solid (fa-([\w-]+)[^"]*)"([^>]*)></\1>')
ICONS: dict[str, tuple[str, str, str]] = {}  # width, height, path
RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
WORD = re.compile(r"[A-Za-z_][\w-]*")


def copy_mathjax(folder: Path) -> None:
    """Copy the parts of MathJax that set TeX with web fonts, in the places where its loader expects them."""
    source = Path(str(distribution(MATHJAX).locate_file(f"{MATHJAX}/static/mathjax")))
    for part in [*PARTS, f"{FONTS}/tex"]:
        (folder / f"{part}.js").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / f"{part}.js", folder / f"{part}.js")
    for part in (f"{FONTS}/woff-v2", EXTENSIONS):
        shutil.copytree(source / part, folder / part, dirs_exist_ok=True)


def lean(page: str) -> str:
    """Return the page without the scripts that it does not need, its icons drawn in place."""
    return ICON.sub(lambda icon: svg(icon[4], icon[2] + icon[3], icon[5]), UNWANTED.sub("", page))


def deferred(page: str) -> str:
    """Return the page whose own scripts wait, in their order, until it is read, so that its text is drawn first."""
    # But for the options, which a script in the page sets.
    return re.sub(r'<script src="([^"]*_static/(?!documentation_options)[^"]+)">', r'<script defer src="\1">', page)


def sized(page: str, folder: Path) -> str:
    """Return the page with the size of each picture, so that nothing moves when it comes, and the later ones on demand.

    `folder` is where the page stands, from which the pictures are named.
    """
    pictures = 0

    def attributes(tag: re.Match) -> str:
        nonlocal pictures
        pictures += 1
        path = folder / tag[1]
        size = ""
        if path.suffix == ".png" and path.is_file() and " height=" not in tag[0]:
            width, height = struct.unpack(">II", path.read_bytes()[16:24])  # of PNG's first chunk
            drawn = re.search(r' width="(\d+)', tag[0])
            size = "" if drawn else f' width="{width}"'
            size += f' height="{round(height * int(drawn[1]) / width) if drawn else height}"'
        return tag[0][:-1].rstrip("/ ") + size + (' loading="lazy"' if pictures > 1 else "") + "/>"

    return re.sub(r'<img\b[^>]*\bsrc="([^":]+)"[^>]*>', attributes, page)


def named(page: str) -> str:
    """Return the page with names, for a screen reader, of what the theme leaves without one."""
    page = page.replace(
        '<summary><span class="toctree-toggle"', '<summary aria-label="Pages of this one"><span class="toctree-toggle"'
    )
    page = page.replace(
        '<div id="pst-primary-sidebar"', '<div role="navigation" aria-label="All pages" id="pst-primary-sidebar"'
    )
    return re.sub(r'<th class="head[^"]*">(?:<p></p>)?</th>', "<td></td>", page)


def svg(name: str, classes: str, attributes: str) -> str:
    """Return an icon of Fontawesome as a drawing in the page."""
    if name not in ICONS:
        script = (THEME / "scripts" / "fontawesome.js").read_text(encoding="utf-8")
        # In the three styles, of which the last one is the solid one.
        ICONS[name] = re.findall(rf'[{{,]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"[^"]*","([^"]*)"', script)[-1]
    width, height, path = ICONS[name]
    box = f'viewBox="0 0 {width} {height}" aria-hidden="true"'
    return f'<svg class="{classes} svg-inline--fa" {box}{attributes}><path fill="currentColor" d="{path}"/></svg>'


def purge_styles(site: Path) -> None:
    """Drop the rules of the style sheets whose classes no page and no script names."""
    files = [*site.rglob("*.html"), *(site / "_static").rglob("*.js")]
    used = set().union(*(WORD.findall(file.read_text(encoding="utf-8")) for file in files))

    def applies(rule: re.Match) -> bool:
        selectors = re.sub(r":not\([^()]*\)", "", rule[1])
        return any(used.issuperset(re.findall(r"\.([A-Za-z_][\w-]*)", s)) for s in selectors.split(","))

    for sheet in (site / "_static").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        sheet.write_text(RULE.sub(lambda rule: rule[0] if applies(rule) else "", text), encoding="utf-8", newline="\n")
