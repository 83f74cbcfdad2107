"""Keep small what a page of the site loads: the parts of MathJax that it needs, a dozen icons, its styles."""

import hashlib
import html
import os
import re
import shutil
import struct
from importlib.metadata import distribution
from pathlib import Path

import pydata_sphinx_theme

MATHJAX = "sphinx-mathjax-offline"  # a package that carries MathJax
FONTS = "output/chtml/fonts"
EXTENSIONS = "input/tex/extensions"  # MathJax loads an extension, such as color, for a formula that needs it
# Typesetting of formulas, and their text for screen readers.
PARTS = ["startup", "core", "input/tex", "output/chtml", "a11y/assistive-mml"]
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
# Scripts that a page does not need: Fontawesome (1.6 MB), whose icons are drawn in place, and the search index.
UNUSED_SCRIPT = re.compile(
    r'<script[^>]*src="[^"]*/?(?:fontawesome|searchtools|language_data|searchindex)\.js[^"]*"></script>'
)
ICON = re.compile(r'<(i|span) class="([^"]*)\bfa-solid (fa-([\w-]+)[^"]*)"([^>]*)></\1>')
ICONS: dict[str, tuple[str, str, str]] = {}  # width, height, path
RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
WORD = re.compile(r"[A-Za-z_][\w-]*")
SHEET = re.compile(r'<link[^>]*rel="stylesheet"[^>]*>\s*')
HREF = re.compile(r'href="([^"?]+)')
OPTIONS = re.compile(r'<script[^>]*src="[^"]*documentation_options\.js[^"]*"></script>')
PRELOADED = re.compile(r'<link rel="preload" as="script"[^>]*>\s*')
FORMULA = re.compile(
    r'<(span|div) class="math notranslate nohighlight"([^>]*)>(\s*\\[(\[].*?\\[)\]]\s*)</\1>', re.DOTALL
)
COMMAND = re.compile(r"\\[A-Za-z]+|\\.")
INVISIBLE_COMMAND = re.compile(
    r"\\(?:tag|begin|end)\{[^}]*\}|\\(?:mathrm|text|operatorname|math[a-z]+|left|right|[bB]igg?[lr]?|limits|displaystyle|quad"
    r"|hat|bar|tilde|underbrace|color)(?![A-Za-z])|\\[,;!]"
)


def copy_mathjax(folder: Path) -> None:
    """Copy the parts of MathJax that set TeX with web fonts, in the places where its loader expects them."""
    source = Path(str(distribution(MATHJAX).locate_file(f"{MATHJAX}/static/mathjax")))
    for part in [*PARTS, f"{FONTS}/tex"]:
        (folder / f"{part}.js").parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / f"{part}.js", folder / f"{part}.js")
    for part in (f"{FONTS}/woff-v2", EXTENSIONS):
        shutil.copytree(source / part, folder / part, dirs_exist_ok=True)


def without_unused_scripts(page: str) -> str:
    """Return the page without the scripts that it does not need, its icons drawn in place."""
    return ICON.sub(lambda icon: icon_svg(icon[4], icon[2] + icon[3], icon[5]), UNUSED_SCRIPT.sub("", page))


def with_deferred_scripts(page: str) -> str:
    """Return the page with its own scripts deferred: they run in order after parsing, so the text is drawn first."""
    # documentation_options.js is not deferred, because an inline script reads the options.
    return re.sub(r'<script src="([^"]*_static/(?!documentation_options)[^"]+)">', r'<script defer src="\1">', page)


def with_picture_sizes(page: str, folder: Path) -> str:
    """Return the page with the size of each picture, and with all pictures but the first loaded on demand.

    The sizes keep the text in place while pictures load.

    Args:
        page: The page as HTML.
        folder: Folder of the page, to which the paths of pictures are relative.
    """
    pictures = 0

    def attributes(tag: re.Match) -> str:
        nonlocal pictures
        pictures += 1
        path = folder / tag[1]
        size = ""
        if path.suffix == ".png" and path.is_file() and " height=" not in tag[0]:
            width, height = struct.unpack(">II", path.read_bytes()[16:24])  # fields of IHDR, PNG's first chunk
            drawn = re.search(r' width="(\d+)', tag[0])
            size = "" if drawn else f' width="{width}"'
            size += f' height="{round(height * int(drawn[1]) / width) if drawn else height}"'
        return tag[0][:-1].rstrip("/ ") + size + (' loading="lazy"' if pictures > 1 else "") + "/>"

    return re.sub(r'<img\b[^>]*\bsrc="([^":]+)"[^>]*>', attributes, page)


def with_labels(page: str) -> str:
    """Return the page with labels for screen readers on the elements that the theme leaves without a label."""
    page = page.replace(
        '<summary><span class="toctree-toggle"', '<summary aria-label="Pages of this one"><span class="toctree-toggle"'
    )
    if 'class="bd-sidebar-secondary' in page:  # room is reserved, because the bar comes late in the page
        page = page.replace('<div class="bd-content">', '<div class="bd-content has-contents">', 1)
    page = page.replace(
        '<div id="pst-primary-sidebar"', '<div role="navigation" aria-label="All pages" id="pst-primary-sidebar"'
    )
    return re.sub(r'<th class="head[^"]*">(?:<p></p>)?</th>', "<td></td>", page)


def with_formula_sizes(page: str) -> str:
    """Return the page with an estimated size for each formula, so that little moves when MathJax typesets them."""

    def sized_formula(formula: re.Match) -> str:
        tag, attributes, tex = formula.groups()
        size = (
            f"--h:{height_in_em(html.unescape(tex)):g}em"
            if tag == "div"
            else f"--w:{width_in_em(html.unescape(tex)):g}em"
        )
        return f'<{tag} class="math notranslate nohighlight"{attributes} style="{size}">{tex}</{tag}>'

    return FORMULA.sub(sized_formula, page)


def width_in_em(tex: str) -> float:
    """Estimate the width of an inline formula; the fit to 198 formulas of two lessons is off by 0.4 em on average."""
    tex = INVISIBLE_COMMAND.sub("", tex.strip()[2:-2])
    letters = len(re.sub(r"[{}_^&\s]", "", COMMAND.sub("x", tex)))
    small = sum(
        len(re.sub(r"[{}\s]", "", COMMAND.sub("x", part)))
        for part in re.findall(r"[_^](\{[^{}]*\}|\\[A-Za-z]+|.)", tex)
    )
    relations = len(re.findall(r"[-+=<>]|\\(?:le|ge|in|approx|sim|to|cdot|mid)\b", tex))
    return round(max(0.65 * letters - 0.23 * small + 0.66 * relations + 0.25, 0.5), 1)


def height_in_em(tex: str) -> float:
    """Estimate the height of a displayed formula, including the space above and below it."""
    rows = re.split(r"\\\\", re.sub(r"\\begin\{(cases|[a-z]*matrix)\}.*?\\end", "", tex, flags=re.DOTALL))
    heights = [3.4 if re.search(r"\\(?:[dt]?frac|sum|prod|int)", row) else 1.65 for row in rows]
    return round(sum(heights) + 1.9 * (r"\underbrace" in tex) + 2.55, 1)


def bundle_styles(site: Path) -> None:
    """Replace the seven style sheets of each page by one bundle, loaded first, and delete the bundled sheets."""
    bundled: set[Path] = set()
    options = (site / "_static" / "documentation_options.js").read_text(encoding="utf-8")
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        links = SHEET.findall(page)
        if not links or "_static" in path.relative_to(site).parts:  # _static holds a template of the theme
            continue
        sheets = [(path.parent / HREF.search(link)[1]).resolve() for link in links]  # type: ignore[index]
        bundled.update(sheets)
        name = bundle(sheets, site.resolve() / "_static" / "styles")
        root = "../" * (len(path.relative_to(site).parts) - 1)
        first = page.index(links[0])
        page = SHEET.sub("", page)
        page = f'{page[:first]}<link rel="stylesheet" href="{root}_static/styles/{name}" />\n{page[first:]}'
        page = PRELOADED.sub("", OPTIONS.sub(lambda _: f"<script>{options}</script>", page))
        path.write_text(page, encoding="utf-8", newline="\n")
    for sheet in bundled:
        sheet.unlink()


def bundle(sheets: list[Path], folder: Path) -> str:
    """Write the sheets and their imports, in order, into one file of the folder, and return its name."""

    def with_imports(sheet: Path) -> str:
        text = sheet.read_text(encoding="utf-8")
        text = re.sub(
            r"""@import (?:url\()?["']?([^"')?;]+)[^;]*;""",
            lambda m: with_imports((sheet.parent / m[1]).resolve()),
            text,
        )
        # Relative addresses are rewritten, because the bundle lies in another folder than the sheet.
        return re.sub(
            r"url\((?![\"']?(?:data:|#))[\"']?([^)\"']+)[\"']?\)",
            lambda m: f"url({os.path.relpath((sheet.parent / m[1]).resolve(), folder)})",
            text,
        )

    text = "\n".join(map(with_imports, sheets))
    name = f"site-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.css"
    (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return name


def icon_svg(name: str, classes: str, attributes: str) -> str:
    """Return an icon of Fontawesome as a drawing in the page."""
    if name not in ICONS:
        script = (THEME / "scripts" / "fontawesome.js").read_text(encoding="utf-8")
        # The script defines each icon in three styles; the last one is the solid style.
        ICONS[name] = re.findall(rf'[{{,]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"[^"]*","([^"]*)"', script)[-1]
    width, height, path = ICONS[name]
    box = f'viewBox="0 0 {width} {height}" aria-hidden="true"'
    return f'<svg class="{classes} svg-inline--fa" {box}{attributes}><path fill="currentColor" d="{path}"/></svg>'


def purge_styles(site: Path) -> None:
    """Drop the rules of the style sheets whose classes occur in no page and no script."""
    files = [*site.rglob("*.html"), *(site / "_static").rglob("*.js")]
    used = set().union(*(WORD.findall(file.read_text(encoding="utf-8")) for file in files))

    def applies(rule: re.Match) -> bool:
        selectors = re.sub(r":not\([^()]*\)", "", rule[1])
        return any(used.issuperset(re.findall(r"\.([A-Za-z_][\w-]*)", s)) for s in selectors.split(","))

    for sheet in (site / "_static").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", sheet.read_text(encoding="utf-8"), flags=re.DOTALL)
        sheet.write_text(RULE.sub(lambda rule: rule[0] if applies(rule) else "", text), encoding="utf-8", newline="\n")
