"""Configure the web site, which `make site` builds from executed notebooks, the pages of docs/ and docstrings.

No notebook is executed. Sphinx's source folder is the root of the repository, so links between notebooks, pages and
files hold as they are.
"""

import gettext
import html
import inspect
import os
import re
import shutil
import textwrap
from pathlib import Path

import nbformat
import pydata_sphinx_theme
import sphinx
import sphinx_book_theme
from docutils import nodes

import grpo_lab
from docs import site_lean, site_search  # `python -m sphinx` runs in the root of the repository
from grpo_lab.formulas import read_equations
from grpo_lab.formulas.source import TAGGED
from grpo_lab.teaching.notebook.beginning import HIDE_OUTPUT

HERE = Path(__file__).parent
# The repository from which notebooks are opened, set on GitHub's runners. Without it a page only offers its file.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
BRANCH = "gh-pages"  # the site's branch, where each notebook begins by installing the package
INSTALL = """\
# Outside a checkout of the course, this cell fetches the course and installs the package.
from pathlib import Path

if not Path("{up}grpo_lab").exists():
    !git clone --depth 1 https://github.com/{repository} course
    %cd course/{folder}
    %pip install --quiet {up} matplotlib ipywidgets
"""

SEARCH = "search.zh-CN"
SENTENCE_LETTERS, DESCRIPTION_LETTERS = 20, 200  # least letters of a paragraph of prose; most of a page's description
# The catalogues of Chinese words in the theme and in Sphinx: package, folder, language and domain of each.
CATALOGUES = [
    (pydata_sphinx_theme, "locale", "zh", "sphinx"),
    (sphinx_book_theme, "theme/sphinx_book_theme/static/locales", "zh_CN", "booktheme"),
    (sphinx, "locale", "zh_CN", "sphinx"),
]
# ARIA labels that are removed, because a screen reader reads them instead of the visible text of the button.
REMOVED_LABELS = ("Toggle hidden content", "Search", "搜索")
CHINESE = re.compile(r"(^|/)zh/|\.zh-CN")
TRANSLATIONS = {
    "previous": "上一页",
    "next": "下一页",
    "Search": "搜索",
    "System Settings": "跟随系统",
    "Color mode": "配色",
    "Toggle primary sidebar": "课程目录",
    "Toggle secondary sidebar": "本页目录",
    "Link to this heading": "本节的链接",
    "Main": "课程",
    "Page": "本页",
    "All pages": "全部页面",
    "Pages of this one": "下级页面",
    "Code": "代码",
    "Code of this figure": "画图的代码",
    "Show the source": "打开代码",
    "Show the output": "打开结果",
    "Show the outputs": "打开结果",
    "Predict first, then open the source": "先预测，再打开代码",
    "Predict first, then open the output": "先预测，再打开结果",
    "Predict first, then open the outputs": "先预测，再打开结果",
}

project, author, release = "grpo_lab", "The grpo_lab authors", grpo_lab.__version__
root_doc = "README"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.githubpages"]
napoleon_use_ivar = True  # the fields of a class are listed once, in its docstring
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/api/*.md",
    "docs/teaching/*.md",
    "notebooks/**.ipynb",
    "notebooks/assignments/*.md",
    "grpo_lab/models/*.md",
]
exclude_patterns = [".*", "build", "docs/index.md", "notebooks/text", "notebooks/runs", "docs/teaching/slides"]

nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
default_role = "literal"
autodoc_member_order = "bysource"
add_module_names = False

html_theme = "sphinx_book_theme"
html_title = "grpo_lab"
html_static_path = ["site.css", "site.js", "search.js"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "icon.svg"
templates_path = ["."]
html_additional_pages = {"search": "search.html", SEARCH: "search.html"}
mathjax_path = "mathjax/startup.js"
mathjax3_config = {"loader": {"load": site_lean.PARTS[1:]}, "startup": {"typeset": False}}  # site.js typesets in parts
html_use_index = html_domain_indices = False  # functions are found by the search
html_context = {"default_mode": "auto"}
html_theme_options = {"use_download_button": False, "use_fullscreen_button": False, "navbar_persistent": []}
html_theme_options["article_header_end"] = ["language.html", "article-header-buttons.html"]
if REPOSITORY:
    html_theme_options |= {"repository_url": f"https://github.com/{REPOSITORY}", "use_repository_button": True}


def complete_source(app, docname: str, source: list[str]) -> None:
    """Add the site's contents to the front page, and to a notebook its folds, links and tables."""
    if docname == root_doc:
        source[0] += (HERE / "index.md").read_text(encoding="utf-8")
    if docname.startswith("docs/map"):
        source[0] += lesson_table(app.env.found_docs, CHINESE.search(docname) is not None)
    if app.env.doc2path(docname).suffix == ".ipynb":
        notebook = nbformat.reads(source[0], as_version=4)
        for cell in notebook.cells:
            label_fold(cell) if cell.cell_type == "code" else adapt_anchors(cell)
        head = f"\n\n{opening_links(docname)}\n{function_table(notebook, docname)}"
        notebook.cells[0].source = notebook.cells[0].source.replace("\n", head, 1)
        source[0] = nbformat.writes(notebook)


def label_fold(cell) -> None:
    """Label what a fold of the cell hides, and give its picture the alternative text and the width."""
    tags = cell.metadata.get("tags", [])
    if HIDE_OUTPUT not in tags:
        prompt = "Code of this figure" if "caption=" in cell.source else "Code"
    else:
        prompt = "Predict first, then open the {type}" if ".truth(" in cell.source else "Show the {type}"
    cell.metadata["mystnb"] = {"code_prompt_show": prompt, "code_prompt_hide": prompt}
    for output in cell.outputs:
        picture = output.get("metadata", {}).get("image/png", {})
        if "alt" in picture:
            # Half the picture's pixels, so that it is sharp.
            width = {"width": f"{picture['width']}px"} if "width" in picture else {}
            cell.metadata["mystnb"]["image"] = {"alt": picture["alt"]} | width


def adapt_anchors(cell) -> None:
    """Replace JupyterLab's anchors (`#A-heading:-with-a-colon`) by the site's."""
    dropped = r"[^\w-]"  # characters that MyST drops from the anchor of a heading
    cell.source = re.sub(
        r"(\]\([^)\s]*\.ipynb#|\]\(#)(.+?)\)", lambda m: f"{m[1]}{re.sub(dropped, '', m[2].lower())})", cell.source
    )


def opening_links(docname: str) -> str:
    """Return the links that open a notebook in JupyterLab and on hosted services, as HTML."""
    words = ("Open in ", "your JupyterLab", " (upload the file)")
    if CHINESE.search(docname):
        words = ("打开方式：", "自己的 JupyterLab", "（上传文件）")
    up = "../" * docname.count("/")
    page = "install.zh-CN.html#jupyterlab" if CHINESE.search(docname) else "install.html#in-your-own-jupyterlab"
    links = [f'<a href="{up}docs/{page}">{words[1]}</a>']  # links to a page, because a lesson needs the runs
    if REPOSITORY:  # then the file itself fetches the course
        links = [f'<a download href="{up}_sources/{docname}.ipynb">{words[1]}</a>']
        file = f"github.com/{REPOSITORY}/blob/{BRANCH}/_sources/{docname}.ipynb"
        links += [
            f'<a href="https://colab.research.google.com/{file.replace(".com", "", 1)}">Colab</a>',
            f'<a href="https://www.kaggle.com/kernels/welcome?src=https://{file}">Kaggle</a>',
            f'<a href="https://modelscope.cn/my/mynotebook">ModelScope</a>{words[2]}',
        ]
    return f'<p class="places">{words[0]}{" · ".join(links)}</p>'


def lesson_table(docs: set[str], chinese: bool) -> str:
    """Return a table of the lessons: the head of each lesson, and the exercises of lesson and assignment."""
    head, exercises = "| lesson | question | needs | to read | to run | exercises | assignment |", "{} ({} min)"
    if chinese:
        head, exercises = "| 课 | 问题 | 先修 | 阅读 | 运行 | 练习 | 作业 |", "{} 道（{} 分钟）"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for name in sorted(doc.removeprefix("notebooks/") for doc in docs if re.match(r"notebooks/\d", doc)):

        def page(part: str = "", name: str = name) -> str:
            return f"zh/{part}{name}" if chinese and f"notebooks/zh/{part}{name}" in docs else f"{part}{name}"

        text = "\n\n".join(cell_sources(page()))
        title, question, budget = re.search(r"^# (.+)\n+\*\*(.+)\*\*\n+\*(.+)\*", text).groups()
        run, reading, needs = (words.partition(" ")[2] for words in budget.split(" · "))
        minutes = [int(m) for m in re.findall(r"^\*\*\d+\. .+\*\* · .+? · (\d+) ", text, re.MULTILINE)]
        row = [f"[{title}](../notebooks/{page()}.ipynb)", question, needs, reading, run]
        row.append(exercises.format(len(minutes), sum(minutes)))
        if f"notebooks/assignments/{name}" in docs:
            below = cell_sources(page("assignments/"))[0].partition("\n")[2]
            work = re.search(r"(?m)^(.*\d.*)[,，]", below)[1]  # the line without the points at its end
            row.append(f"[{work}](../notebooks/{page('assignments/')}.ipynb)")
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def cell_sources(name: str) -> list[str]:
    return [cell.source for cell in nbformat.read(HERE.parent / f"notebooks/{name}.ipynb", as_version=4).cells]


def function_table(notebook, docname: str) -> str:
    """Return a table of the functions that a page of exercises asks for, narrow enough for a phone."""
    tasks = [cell.source for cell in notebook.cells if cell.metadata.get("grpo_lab", {}).get("role") == "task"]
    headings = [re.match(r"## (\d+)\. `(\w+)`\s+\*(.+?) · (.+?) · (.+?) ·", task) for task in tasks]
    number = re.compile(r"[\d.]+")
    rows = [
        f"| [`{m[2]}`](#{m[1]}-{m[2]}) | {number.search(m[3])[0]} | {number.search(m[4])[0]} | {m[5]} |"
        for m in headings
        if m
    ]
    heads = (
        ("函数", "分数", "分钟", "难度") if CHINESE.search(docname) else ("function", "points", "minutes", "difficulty")
    )
    head = f"| {' | '.join(heads)} |"
    return "\n".join(["", head, "|---|---|---|---|", *rows, ""]) if rows else ""


def set_formulas_beside_code(app, kind, name: str, function, options, lines: list[str]) -> None:
    """Replace each equation of a docstring by a row with the equation and the line of code that computes it."""
    code = {e.tag: e for e in read_equations(function)} if inspect.isfunction(inspect.unwrap(function)) else {}
    rows = []
    for line in lines:
        match = TAGGED.fullmatch(line.strip())
        if match is None or match["tag"] not in code:
            rows.append(re.sub(r"([\\|])", r"\\\1", line))  # a backslash and a bar mean something to Sphinx
            continue
        e = code[match["tag"]]
        rows += ["", ".. container:: formula", "", "   .. math::", "", f"      {line.strip()}", ""]
        rows += ["   .. code-block:: python", "", *(f"      {c}" for c in f"{e.code}  # {e.shape}".splitlines()), ""]
    # The text below Returns is prose. Napoleon would read its words before a colon as a type.
    text = re.sub(
        r"(?m)^Returns:\n((?: {4}.*\n)+)", lambda m: f"Returns:\n    : {' '.join(m[1].split())}\n", "\n".join(rows)
    )
    lines[:] = text.split("\n")


def keep_display(app, doctree) -> None:
    """Set each formula in plain display mode: the environment that Sphinx adds to several lines allows no tag."""
    for node in doctree.findall(nodes.math_block):
        if not node.get("nowrap"):
            node["nowrap"] = node["no-wrap"] = True
            node.children = [nodes.Text(rf"\[{node.astext()}\]")]


def translate_frame(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Translate the frame of a Chinese page, and link previous and next pages only within one language."""
    chinese = CHINESE.search(pagename) is not None
    _, *neighbours = app.builder.relations.get(pagename, (None, None, None))
    for direction, neighbour in zip(("prev", "next"), neighbours, strict=True):
        if neighbour and chinese != (CHINESE.search(neighbour) is not None):
            context[direction] = None
    if chinese:
        catalogues = gettext.NullTranslations()
        for package, folder, language, domain in CATALOGUES:
            catalogues.add_fallback(gettext.translation(domain, Path(package.__file__).parent / folder, [language]))
        pathto = context["pathto"]
        translate = lambda word: TRANSLATIONS.get(word) or catalogues.gettext(word)  # noqa: E731
        context |= dict.fromkeys(("_", "gettext", "translate"), translate)
        context |= {"language": "zh-CN", "theme_search_bar_text": TRANSLATIONS["Search"]}
        context["pathto"] = lambda to, *args, **options: pathto(SEARCH if to == "search" else to, *args, **options)
    if pagename == SEARCH:
        context["pagename"] = "search"
    if doctree is not None:
        texts = [node.astext() for node in doctree.findall(nodes.paragraph)]
        paragraphs = [text for text in texts if len(text) > SENTENCE_LETTERS]
        if paragraphs:  # search engines show the description below the title
            text = html.escape(textwrap.shorten(paragraphs[0], DESCRIPTION_LETTERS, placeholder=" ..."))
            context["metatags"] += f'<meta name="description" content="{text}">'
        page = (f"{pagename}.html", doctree.next_node(nodes.title).astext(), site_search.read_passages(doctree))
        app.env.pages_to_search[pagename] = page


def finish_pages(app, error) -> None:
    """Make each page smaller, copy README to index.html, and let notebooks begin by installing the package."""
    if error:
        return
    write_search(app)
    for path in app.outdir.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        page = site_lean.with_labels(site_lean.without_unused_scripts(page))
        page = site_lean.with_picture_sizes(site_lean.with_formula_sizes(page), path.parent)
        page = site_lean.with_deferred_scripts(page)
        for label in REMOVED_LABELS:
            page = page.replace(f' aria-label="{label}"', "")
        if CHINESE.search(path.relative_to(app.outdir).as_posix()):
            label_text = r'(admonition-title">| title="| aria-label=")([^<"]+)'
            page = re.sub(label_text, lambda text: text[1] + TRANSLATIONS.get(text[2], text[2]), page)
        path.write_text(page, encoding="utf-8", newline="\n")
    shutil.copy(app.outdir / "README.html", app.outdir / "index.html")
    site_lean.purge_styles(app.outdir)
    site_lean.bundle_styles(app.outdir)
    for path in (app.outdir / "_sources").rglob("*.ipynb") if REPOSITORY else ():
        folder = path.parent.relative_to(app.outdir / "_sources")
        notebook = nbformat.read(path, as_version=4)
        install = INSTALL.format(up="../" * len(folder.parts), folder=folder.as_posix(), repository=REPOSITORY)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(install, id="install"))
        nbformat.write(notebook, path)


def prepare_build(app) -> None:
    """Switch Sphinx's search off, in favour of `site_search`, and copy MathJax to where its loader looks."""
    shutil.rmtree(app.outdir / "_static", ignore_errors=True)  # left by the previous build, which dropped styles
    app.builder.search = False
    app.env.pages_to_search = {}
    site_lean.copy_mathjax(app.outdir / "_static" / "mathjax")


def write_search(app) -> None:
    """Write the search files of both languages; the Chinese one includes pages that exist in English only."""
    pages = app.env.pages_to_search
    chinese = {name for name in pages if CHINESE.search(name)}
    twins = {name.replace("/zh/", "/").replace(".zh-CN", "") for name in chinese}
    for language, names in {"en": pages.keys() - chinese, "zh-CN": pages.keys() - twins}.items():
        site_search.write_pages(app.outdir / "_static", f"search-{language}", [pages[name] for name in sorted(names)])


def setup(app) -> None:
    app.connect("builder-inited", prepare_build, priority=100)  # before MyST-NB writes its styles
    app.connect("source-read", complete_source)
    app.connect("autodoc-process-docstring", set_formulas_beside_code, priority=400)
    app.connect("doctree-read", keep_display)
    app.connect("html-page-context", translate_frame, priority=900)
    app.connect("build-finished", finish_pages, priority=900)  # after the theme has written the colours of code
