"""The site's links have targets, all formulas are typeset, pictures are described, and nothing is loaded from hosts."""

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
LESSON_MB = 1.5  # the most that a lesson may load, without its figures
AXE_PAGES = [
    "index",
    "search",
    "notebooks/05_grpo_objective",
    "notebooks/zh/05b_the_family_of_losses",
    "notebooks/assignments/02_baselines_and_advantages",
    "docs/api/objective",
    "docs/commands",
]
MATH = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
CODE = re.compile(r"^```.*?^```|<code>.*?</code>|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "doctrees")]
    environment = os.environ | {"GITHUB_REPOSITORY": "somebody/grpo_lab"}
    process = subprocess.run(
        [*command, "-c", "docs", ".", str(folder / "html")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return folder / "html"


def pages(site: Path) -> dict[Path, "bs4.BeautifulSoup"]:
    parsed = {path: bs4.BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in site.rglob("*.html")}
    return {path: page for path, page in parsed.items() if "_static" not in path.parts}


def notebooks() -> list[Path]:
    return [path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]


def test_links_lead_somewhere_and_pictures_and_folds_say_what_they_hold(site):
    parsed = pages(site)
    ids = {path.resolve(): {tag["id"] for tag in page.find_all(id=True)} for path, page in parsed.items()}
    for path, page in parsed.items():
        for tag in page.find_all(["a", "img", "link", "script"]):
            address = urlsplit(tag.get("href") or tag.get("src") or "")
            assert tag.name == "a" or address.scheme in ("", "data"), f"{path}: {address.geturl()[:80]}"
            if address.scheme or not (address.path or address.fragment):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path.resolve()
            assert target.exists(), f"{path}: {address.geturl()}"
            assert not address.fragment or unquote(address.fragment) in ids.get(target, ()), f"{path}: {tag}"
        assert all(image.get("alt", "").strip() for image in page.find_all("img")), path
        # A screen reader reads the label instead of the summary's text, so a summary needs exactly one of the two.
        assert all(bool(fold.get("aria-label")) != bool(fold.text.strip()) for fold in page.find_all("summary")), path
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < LIMIT_MB * 1e6


def formulas(notebook: dict) -> int:
    """Count the formulas in the text and in the Markdown outputs of a notebook."""
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
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "docs" / "api").glob("*.html"))
    assert set(re.findall(r"\\tag\{([\d.]+)\}", text)) == set(formula_map())


def test_a_lesson_loads_little_and_nothing_of_the_search(site):
    parts = (site / "_static" / "mathjax").rglob("*.js")
    mathjax = sum(file.stat().st_size for file in parts if "extensions" not in file.parts)  # extensions load on demand
    fonts = [
        site / "_static/mathjax/output/chtml/fonts/woff-v2" / f"MathJax_{font}-Regular.woff" for font in ("Main", "AMS")
    ]
    for path in (site / "notebooks").rglob("[01]*.html"):
        page = bs4.BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        loaded = [tag.get("src") or tag.get("href") for tag in page.select("script[src], link[rel=stylesheet]")]
        assert not [address for address in loaded if "search" in address or "fontawesome" in address]
        files = {(path.parent / urlsplit(address).path).resolve() for address in loaded if "mathjax" not in address}
        picture_bytes = sum(len(image["src"]) for image in page.select("img[src^=data]"))
        size = path.stat().st_size - picture_bytes + mathjax + sum(file.stat().st_size for file in [*files, *fonts])
        assert size < LESSON_MB * 1e6, (path, size)


def test_a_page_waits_for_one_style_sheet_and_for_no_script(site):
    for path, page in pages(site).items():
        assert len(page.select("link[rel=stylesheet]")) == 1, path
        assert all(script.has_attr("defer") for script in page.select("script[src]")), path
        assert not page.select("link[rel=preload]"), path


@pytest.fixture
def phone(site, chromium):
    """Yield a page in a browser of a phone's width, and check that it requests nothing from the network."""
    addresses = []
    with pytest.importorskip("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.set_default_timeout(1000 * TYPESET_SECONDS)
        page.on("request", lambda request: addresses.append(request.url))
        yield page
        browser.close()
    assert not [address for address in addresses if urlsplit(address).scheme not in ("file", "data", "about")]


def show_all_formulas(page) -> None:
    """Typeset all formulas, as for printing, but keep the folds. On a screen, only formulas near the view are set."""
    page.evaluate(
        """async () => {
            await window.MathJax?.startup?.promise;
            const folds = document.querySelectorAll("details:not([open])");
            dispatchEvent(new Event("beforeprint"));
            folds.forEach(fold => (fold.open = false));
        }"""
    )


@pytest.mark.browser
def test_formulas_are_set_near_the_view_all_of_them_on_paper_and_a_copy_has_their_tex(site, phone):
    phone.goto((site / "notebooks" / "05_grpo_objective.html").as_uri())
    phone.wait_for_selector(".math mjx-container")
    phone.wait_for_timeout(3000)
    formulas = phone.locator("article .math")
    set_at_first = phone.locator("article .math:has(mjx-container)").count()
    assert 0 < set_at_first < formulas.count() / 3
    last = formulas.nth(formulas.count() - 1)
    assert not last.locator("mjx-container").count()
    phone.evaluate("document.querySelectorAll('details').forEach(fold => (fold.open = true))")
    last.scroll_into_view_if_needed()
    last.locator("mjx-container").wait_for()
    assert last.locator("mjx-assistive-mml").count() == 1
    assert phone.locator("article .math:has(mjx-container)").count() < formulas.count()
    show_all_formulas(phone)
    assert phone.locator("article .math:has(mjx-container)").count() == formulas.count()
    copied = phone.evaluate(
        """() => {
            const range = document.createRange();
            range.selectNodeContents(document.querySelector("article div.math"));
            getSelection().addRange(range);
            const event = new ClipboardEvent("copy", { clipboardData: new DataTransfer(), cancelable: true });
            dispatchEvent(event);
            return event.clipboardData.getData("text/plain");
        }"""
    )
    assert copied.startswith(r"\[") and r"\tag{5.1}" in copied


@pytest.mark.browser
def test_on_a_phone_formulas_are_set_and_nothing_is_cut(site, phone):
    for path in pages(site):
        phone.goto(path.as_uri())
        formulas = len(phone.query_selector_all(".math"))
        show_all_formulas(phone)
        phone.wait_for_function(f"document.querySelectorAll('.math mjx-container').length === {formulas}")
        assert not phone.query_selector_all("mjx-merror"), path
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390, path
        hidden = "e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'hidden'"
        assert not phone.evaluate(f"[...document.querySelectorAll('article :is(table, td, div)')].some(e => {hidden})")


@pytest.mark.browser
def test_page_text_does_not_move_when_formulas_are_typeset(site, phone):
    """The text does not move when formulas are typeset; without MathJax a formula is shown as TeX."""
    height = "document.querySelector('article').offsetHeight"
    for name in ("05_grpo_objective", "zh/02_baselines_and_advantages"):
        address = (site / "notebooks" / f"{name}.html").as_uri()
        phone.route("**/mathjax/**", lambda route: route.abort())
        phone.goto(address)
        phone.wait_for_function("document.documentElement.classList.contains('formulas-as-written')")
        color = "getComputedStyle(document.querySelector('.math')).color"
        assert phone.evaluate(color) != "rgba(0, 0, 0, 0)"
        phone.evaluate("document.documentElement.classList.remove('formulas-as-written')")
        assert phone.evaluate(color) == "rgba(0, 0, 0, 0)"
        reserved = phone.evaluate(height)
        phone.unroute("**/mathjax/**")
        phone.goto(address)
        show_all_formulas(phone)
        phone.wait_for_function(
            "document.querySelectorAll('.math mjx-container').length === document.querySelectorAll('.math').length"
        )
        assert phone.evaluate(height) == pytest.approx(reserved, rel=0.02), name


def axe_script() -> str:
    package = Path(pytest.importorskip("axe_playwright_python").__file__).parent
    return (package / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_have_no_accessibility_violations(site, phone, theme, width):
    """On a page of each kind, axe checks contrast, labels of controls, order of headings and ninety other rules."""
    phone.route("**/mathjax/**", lambda route: route.abort())
    phone.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
    phone.set_viewport_size({"width": width, "height": 900})
    for name in AXE_PAGES:
        phone.goto((site / f"{name}.html").as_uri())
        phone.evaluate(axe_script())
        violations = phone.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
        assert not [(rule["id"], rule["nodes"][0]["html"]) for rule in violations], name


def test_pages_are_described_and_pictures_have_their_size(site):
    """A page has a description for search engines; pictures have sizes, and all but the first are loaded on demand."""
    for path, page in pages(site).items():
        if path.parent.name == "notebooks" or path.stem in ("index", "README"):
            assert len(page.select_one("meta[name=description]")["content"]) > 20, path
        pictures = [image for image in page.select("article img") if not image["src"].startswith("data:")]
        for position, image in enumerate(pictures):
            assert image["src"].endswith(".svg") or {"width", "height"} <= image.attrs.keys(), (path, image)
            assert position == 0 or image["loading"] == "lazy", (path, image)


@pytest.mark.browser
@pytest.mark.parametrize("language", ["", ".zh-CN"])
def test_the_search_is_in_the_language_of_the_page(site, phone, language):
    for word in ("clipped_surrogate", *(("优势", "优") if language else ("importance ratio", "Ratios"))):
        phone.goto(f"{(site / f'search{language}.html').as_uri()}?q={word}")
        phone.wait_for_selector("#search-results li a")
        links = phone.eval_on_selector_all("#search-results a", "links => links.map(link => link.href)")
        assert all((site / unquote(urlsplit(link).path)).exists() for link in links)
        assert language or not any("/zh/" in link or "zh-CN" in link for link in links)
        assert phone.locator("#search-results mark").count() >= len(links)
    phone.goto(f"{(site / f'search{language}.html').as_uri()}?q=zzzz")
    phone.get_by_text("没有匹配" if language else "did not match").wait_for()


@pytest.mark.browser
def test_a_prediction_is_answered_without_a_kernel_and_kept(site, phone):
    phone.goto((site / "notebooks" / "00_start_here.html").as_uri())
    phone.get_by_label("from", exact=True).first.focus()
    for _ in range(20):
        phone.keyboard.press("ArrowRight")
    phone.get_by_label("the right sum plus 7").click()
    phone.get_by_text("Show the result").last.click()
    phone.reload()
    assert phone.get_by_label("from", exact=True).first.input_value() == "0.2"
    assert phone.locator(".said").first.inner_text().startswith("Kept on this device.")
    phone.get_by_text("Show the result").first.click()
    verdicts = phone.get_by_text("Truth: 0.237. You said 0.2 to 1: that holds it.")
    assert verdicts.count() == 2  # one below the answer, one in the fold
    phone.get_by_text("中文", exact=True).click()
    assert phone.get_by_label("正确答案加 7").is_checked()
    phone.get_by_text("看结果").last.click()
    phone.get_by_text("6 个预测你答了 1 个。1 道选择题里答对 1 道。").wait_for()
    phone.get_by_text("重新预测").click()
    phone.wait_for_function("!document.querySelector(':checked')")


@pytest.mark.browser
def test_every_prediction_on_the_site_shows_its_truth_in_both_languages(site, phone):
    phone.route("**/mathjax/**", lambda route: route.abort())
    for path in sorted((site / "notebooks").rglob("[01]*.html")):
        phone.goto(path.as_uri())
        phone.evaluate("document.querySelectorAll('details').forEach(fold => (fold.open = true))")
        phone.evaluate("document.querySelectorAll('.predict input').forEach(input => input.onchange())")
        predictions = len(re.findall(r"(Predict\.|预测。)</strong>", path.read_text(encoding="utf-8")))
        assert phone.locator(".said > strong").count() == predictions, path
        assert phone.evaluate(
            """[...document.querySelectorAll('.predict')].every(p => {
                const told = p.nextElementSibling.firstChild.textContent.replace(/^.*?[:：] ?|[.。]$/g, '');
                const at = p.querySelector('.track')?.style.getPropertyValue('--at');
                const choices = [...p.querySelectorAll('label')].map(label => label.textContent.trim());
                return choices.includes(told) || (at >= 0 && at <= 1);
            })"""
        ), path


@pytest.mark.browser
def test_a_figure_fills_a_phone_and_a_tap_enlarges_it(site, phone):
    phone.goto((site / "notebooks" / "02_baselines_and_advantages.html").as_uri())
    figure = phone.locator(".enlarge > img").first
    box = figure.bounding_box()
    assert box["width"] > 350
    pixels = figure.evaluate("image => [image.naturalWidth, image.naturalHeight]")
    assert box["width"] / box["height"] == pytest.approx(pixels[0] / pixels[1], rel=0.02)
    figure.click()
    assert phone.locator("dialog.enlarged img").bounding_box()["width"] > 800
    phone.keyboard.press("Escape")
    phone.locator("dialog.enlarged").wait_for(state="hidden")


@pytest.mark.browser
def test_a_row_of_a_table_names_its_columns_on_a_phone(site, phone):
    phone.goto((site / "index.html").as_uri())
    row = phone.locator("tr", has=phone.get_by_role("link", name="Policy gradient", exact=True))
    heads = row.locator("td").evaluate_all("cells => cells.map(cell => cell.dataset.head)")
    assert heads == ["", "notebook", "you learn", "reading", "to run"]


@pytest.mark.browser
def test_the_link_to_the_other_language_keeps_the_section(site, phone):
    phone.route("**/mathjax/**", lambda route: route.abort())
    phone.goto((site / "notebooks" / "02_baselines_and_advantages.html").as_uri() + "#exercises")
    phone.get_by_text("中文", exact=True).click()
    phone.wait_for_url("**/zh/**#*")
    phone.wait_for_function("!location.hash.startsWith('#section-')")
    heading = phone.locator(":target > h2")
    assert heading.inner_text().startswith("练习")


@pytest.mark.browser
def test_an_animation_stops_and_steps(site, phone):
    phone.goto((site / "notebooks" / "further.html").as_uri())
    phone.get_by_text("▶ Play").first.click()
    phone.get_by_text("Pause").click()
    slider = phone.get_by_label("frame", exact=True)
    frame, count = int(slider.input_value()), int(slider.get_attribute("max")) + 1
    phone.get_by_label("one frame on").click()
    assert int(slider.input_value()) == (frame + 1) % count
