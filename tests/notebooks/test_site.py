"""The site: links lead somewhere, every formula is set, a picture says what it shows, and nothing comes from a host."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.equations import formula_map

bs4 = pytest.importorskip("bs4")
pytest.importorskip("myst_nb")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_MB, TYPESET_SECONDS = 40, 180
MATH = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
CODE = re.compile(r"^```.*?^```|<code>.*?</code>|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "doctrees")]
    environment = os.environ | {"GITHUB_REPOSITORY": "somebody/grpo_lab"}
    done = subprocess.run(
        [*command, "-c", "docs", ".", str(folder / "html")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def pages(site: Path) -> dict[Path, "bs4.BeautifulSoup"]:
    found = {path: bs4.BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in site.rglob("*.html")}
    return {path: page for path, page in found.items() if "_static" not in path.parts}


def notebooks() -> list[Path]:
    return [path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]


def test_links_lead_somewhere_and_pictures_and_folds_say_what_they_hold(site):
    found = pages(site)
    ids = {path.resolve(): {tag["id"] for tag in page.find_all(id=True)} for path, page in found.items()}
    for path, page in found.items():
        for tag in page.find_all(["a", "img", "link", "script"]):
            address = urlsplit(tag.get("href") or tag.get("src") or "")
            assert tag.name == "a" or address.scheme in ("", "data"), f"{path}: {address.geturl()[:80]}"
            if address.scheme or not (address.path or address.fragment):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path.resolve()
            assert target.exists(), f"{path}: {address.geturl()}"
            assert not address.fragment or unquote(address.fragment) in ids.get(target, ()), f"{path}: {tag}"
        assert all(image.get("alt", "").strip() for image in page.find_all("img")), path
        assert not page.find_all("summary", attrs={"aria-label": True}), path
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < LIMIT_MB * 1e6


def formulas(notebook: dict) -> int:
    """Those of the text, and those that outputs of Markdown show."""
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    texts = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    texts += [data["text/markdown"] for data in outputs if "text/markdown" in data and "text/html" not in data]
    return sum(len(MATH.findall(CODE.sub("", "".join(text)))) for text in texts)


def test_every_formula_and_fold_of_a_notebook_is_on_its_page(site):
    for path in notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        page = bs4.BeautifulSoup((site / path.relative_to(ROOT).with_suffix(".html")).read_text("utf-8"), "html.parser")
        assert len(page.select("article .math")) == formulas(notebook), path
        tags = [
            tag for cell in notebook["cells"] for tag in cell["metadata"].get("tags", []) if tag.startswith("hide-")
        ]
        assert len(page.select("details.hide")) == len(tags), path
        copy = json.loads((site / "_sources" / path.relative_to(ROOT)).read_text(encoding="utf-8"))
        assert copy["cells"][1:] == notebook["cells"] and "%pip install" in "".join(copy["cells"][0]["source"]), path


def test_every_equation_of_the_package_is_on_the_page_of_functions(site):
    page = (site / "docs" / "api.html").read_text(encoding="utf-8")
    assert set(re.findall(r"\\tag\{([\d.]+)\}", page)) == set(formula_map())


@pytest.mark.browser
def test_in_a_browser_without_a_network_formulas_are_set_and_nothing_is_wider_than_a_phone(site, chromium):
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    asked = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.set_default_timeout(1000 * TYPESET_SECONDS)
        page.on("request", lambda request: asked.append(request.url))
        for path in pages(site):
            page.goto(path.as_uri())
            wanted = len(page.query_selector_all(".math"))
            page.wait_for_function(f"document.querySelectorAll('.math mjx-container').length === {wanted}")
            assert not page.query_selector_all("[data-mml-node=merror]"), path
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        for word in ("clipped_surrogate", "优势"):
            page.goto(f"{(site / 'search.html').as_uri()}?q={word}")
            page.wait_for_selector("#search-results li a")
        browser.close()
    assert not [address for address in asked if urlsplit(address).scheme not in ("file", "data")]
