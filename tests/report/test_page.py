"""The page to read, made from the reference campaign's products as git has them, and looked at in a browser."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from soma.catalogue import CLAIMS, TABLES
from soma.config.campaign import BASE, load
from soma.plan import make_plan
from soma.report.page.page import LIMITS, STORIES, Page, render, typeset
from soma.report.page.products import anchor, files, read_table, spoken
from soma.report.paper import PaperValues
from tests.project import ROOT

SMALL, TEMPLATE = ROOT / "results/small", ROOT / "docs/results.template.md"
PLAN, PAPER = make_plan(load(ROOT / BASE)), PaperValues(ROOT / "config/paper_values.yaml")
PRODUCTS = PLAN.config.catalogue.products
SIZES = ((1400, 900), (1920, 1080), (390, 844))
MADE = [product for product in PRODUCTS if all(path.is_file() for path in files(product, SMALL))]


def page_of(results: Path, template: Path | None = TEMPLATE) -> str:
    return render(Page(PLAN, PAPER, results, template), {})


class Places(HTMLParser):
    """The names of places in a page, the places that its links lead to, and the sources of its images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str]]) -> None:
        known = dict(attrs)
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known["href"]] if "href" in known else []
        self.images += [known] if tag == "img" else []


@pytest.fixture(scope="module")
def text() -> str:
    return page_of(SMALL)


@pytest.fixture(scope="module")
def address(text, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(text)
    return path.as_uri()


def test_the_models_page_is_linked_beside_the_command_that_writes_it(text):
    assert Places(text).links.count("demo.html") == 1
    assert re.search(r"<code>soma demo --campaign (\S+) --output \1/demo.html</code>", text)


def test_every_claim_and_product_has_its_place_and_every_link_leads_to_one(text):
    places = Places(text)
    assert len(places.ids) == len(set(places.ids))
    assert {anchor(product) for product in PRODUCTS} | {claim.name for claim in CLAIMS} <= set(places.ids)
    assert [link for link in places.links if link.startswith("#") and link[1:] not in places.ids] == []
    assert [link for link in places.links if not link.startswith("#") and link != "demo.html"] == [
        "https://arxiv.org/abs/2609.37899v1"
    ]
    assert len(text) < 6_000_000


def test_every_figure_has_words_for_those_who_cannot_see_it(text):
    images = Places(text).images
    assert len(images) == sum(product.kind == "figure" for product in MADE)
    assert all(image["src"].startswith("data:image/") and len(image["alt"]) > 40 for image in images)


def test_every_number_of_the_story_leads_to_the_cell_that_holds_it():
    page = Page(PLAN, PAPER, SMALL, TEMPLATE)
    numbers = re.findall(r"\[([−+]?\d[\d.]*)\]\(#([a-z0-9-]+)\)", "".join(page.story.values()))
    assert len(numbers) > 50
    tables = {anchor(TABLES[name]): page.table(name) for name in TABLES}
    for number, place in numbers:
        table, row, column = re.fullmatch(r"(.+)-r(\d+)c(\d+)", place).groups()
        cell = tables[table].rows[int(row)][int(column)]
        digits = len(number.partition(".")[2])
        held = {f"{x:.{digits}f}" for x in (cell.value, cell.low, cell.high) if isinstance(x, float)}
        assert number.replace("−", "-").lstrip("+") in held, place


def test_all_of_the_template_is_told_once():
    headings = [line.lstrip("# ") for line in TEMPLATE.read_text().splitlines() if line.startswith("## ")]
    starts = [start for own in STORIES.values() for start in own] + [LIMITS]
    assert sorted(starts) == sorted(start for h in headings for start in starts if h.startswith(start))
    assert len(starts) == len(headings)


def test_a_paragraph_that_the_rows_do_not_support_is_left_out_and_the_page_says_so(tmp_path):
    template = tmp_path / "template.md"
    template.write_text(
        "# Title\n\n## Gradients\n\n<!-- holds: claims/C4 = not run -->\nNothing ran.\n\n<!-- method -->\nAll else.\n"
    )
    page = page_of(SMALL, template)
    assert "Nothing ran" not in page.replace("`Nothing ran.", "").replace("<code>Nothing ran.", "")
    assert "A paragraph is left out here" in page
    assert "All else." in page


def test_an_unfinished_campaign_says_what_is_missing_and_how_to_make_it(tmp_path):
    for folder in ("tables", "figures"):
        shutil.copytree(SMALL / folder, tmp_path / folder)
    gone = ("tables/claims.csv", "tables/table12.csv", "figures/figure1.svg")
    for name in gone:
        (tmp_path / name).unlink()
    page = page_of(tmp_path)
    missing = len(PRODUCTS) - len(MADE) + len(gone)
    assert f"{missing} of {len(PRODUCTS)} tables and figures are missing" in page
    for name in gone[1:]:
        assert f"<p>Not made yet. To make it: <code>snakemake --cores all {tmp_path / name}</code>" in page
    assert page.count("not judged yet") >= len(CLAIMS)
    assert "Places of numbers" not in page
    assert {claim.name for claim in CLAIMS} <= set(Places(page).ids)


def test_a_table_is_read_back_as_it_was_written():
    for product in MADE:
        if product.kind == "table":
            table = read_table(product, SMALL)
            columns = (SMALL / f"tables/{product.name}.md").read_text().splitlines()[2]
            assert columns.count(" | ") == len(table.columns) - 1
            assert "″" not in {text for row in spoken(table.rows) for text in row}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-0.0300 [-0.0349, -0.0252]", "−0.0300 [−0.0349,\u00a0−0.0252]"),
        ("± 0.0075 (3 seeds)", "±\u00a00.0075 (3\u00a0seeds)"),
        ("5e-05 of soma-n2-s0, -94 %", "5e-05 of soma-n2-s0, −94 %"),
    ],
)
def test_numbers_are_set_with_minus_signs_and_do_not_break(text, expected):
    assert typeset(text) == expected


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture
def tab(browser, address):
    """Return the page in a new window of 1400 pixels; nothing may be asked of a network, and no script may fail."""
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    wrong: list[str] = []
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url))
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto(address)
    yield tab
    tab.close()
    assert wrong == []


def test_the_page_fits_every_window_in_light_and_dark(tab):
    colours = set()
    for width, height in SIZES:
        tab.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            top = tab.locator("h1").bounding_box()
            assert 0 < top["y"] < height / 4
            assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert len(colours) == 2
    tab.set_viewport_size({"width": 1400, "height": 900})
    assert tab.locator(".verdicts").bounding_box()["y"] < 700  # the verdicts are on the first screen


def test_a_verdict_opens_its_evidence_and_a_number_its_runs(tab):
    tab.click("a.chip[href='#C8']")
    tab.locator("#C8[open] .evidence").wait_for()
    number = tab.locator(".story a[href^='#table4-r0']").first
    place = number.get_attribute("href")
    number.click()
    tab.locator(f"{place}.here").wait_for()
    origin = tab.locator("#origin").inner_text()
    assert "Table 4 · SOMA N=2" in origin
    assert "soma replay" in origin
    assert "soma-n2-s0" in origin
    assert "/tables/table4.csv" in origin
    tab.keyboard.press("Escape")
    tab.locator("#origin").wait_for(state="hidden")


def test_a_folded_table_opens_where_a_link_leads_into_it(tab):
    table = tab.locator("#table-costs")
    assert table.get_attribute("open") is None
    cell = tab.locator("#table-costs td[data-r]").first.get_attribute("id")
    tab.evaluate(f"location.hash = '{cell}'")
    tab.locator("#table-costs[open]").wait_for()
    assert tab.locator(f"#{cell}").is_visible()


def test_tables_are_sorted_by_any_column_and_back(tab):
    head = tab.locator("#table4 th", has_text="test loss").first
    column = head.evaluate("head => head.cellIndex")

    def losses() -> list[float]:
        cells = tab.locator("#table4 tbody tr").evaluate_all(
            "(rows, column) => rows.map(row => row.cells[column].dataset.v)", column
        )
        return [float(cell) for cell in cells]

    before = losses()
    for expected in (sorted(before), sorted(before, reverse=True), before):
        head.locator("button").click()
        assert losses() == expected
    assert before != sorted(before)


def test_the_contents_follow_the_reader(tab):
    for place in ("table4", "check", "claims"):
        tab.evaluate(f"document.getElementById('{place}').scrollIntoView()")
        tab.locator(f"nav a[href='#{place}'][aria-current]").wait_for()


def test_on_paper_everything_is_open_and_no_table_is_cut(tab):
    pages = tab.pdf(prefer_css_page_size=True).count(b"/Type /Page\n")
    assert pages > 10
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("main details:not([open])").count() == 0
    assert tab.locator("nav").is_hidden()
    # The width of A4, upright and across, less its margins.
    for tables, width in (("div:not(.wide) > table.data", 688), (".wide > table.data", 1017)):
        tab.set_viewport_size({"width": width, "height": 1000})
        widths = tab.locator(tables).evaluate_all("all => all.map(table => [table.dataset.label, table.scrollWidth])")
        assert [label for label, own in widths if own > width] == []
