"""README.md as GitHub shows it: what a reader sees first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.project import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """README.md in a window of 1400 × 900 pixels, in a column as wide as GitHub's beside its sidebar."""
    body = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(README)
    style = (Path(__file__).parent / "github.css").read_text()
    file = tmp_path_factory.mktemp("readme") / "index.html"
    article = f'<article class="markdown-body" style="width: 832px; padding: 32px">{body}</article>'
    file.write_text(f'<!doctype html><base href="{ROOT.as_uri()}/"><style>{style}</style>{article}')
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(file.as_uri())
    yield page
    page.close()


def test_the_figure_and_the_verdicts_are_on_the_first_screen(page: Any) -> None:
    for selector in ("pre", "table img", "table td:nth-child(2)"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] < 900, selector
    assert page.evaluate("document.querySelector('table img').naturalWidth") > 0


def test_every_verdict_is_one_short_line(page: Any) -> None:
    lines = page.locator("table td:nth-child(2)").first.inner_text().splitlines()
    assert len(lines) == 16
    cell = page.locator("table td:nth-child(2) sub").first
    rows = cell.evaluate("e => new Set([...e.getClientRects()].map(r => Math.round(r.top))).size")
    assert rows == 16, "a line wraps"
