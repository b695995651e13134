"""Links of the Markdown pages and of the site that is built of them lead to files and headings that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.examples import module_at
from tests.project import ROOT

PAGES = module_at(ROOT / "docs/site/pages.py")
HERE = [ROOT, *(ROOT / name for name in ("config", "docs", "results", "results/small", "store"))]
MARKDOWN = sorted(page for folder in HERE for page in folder.glob("*.md") if "template" not in page.name)


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_and_headings(path):
    assert PAGES.Page(path).broken() == []


def test_a_link_that_leads_nowhere_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(PAGES, "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# A `b` & c\n\n## Twice\n\n## Twice\n")
    good = "[1](b.md#a-b--c) [2](b.md#twice-1) [3](https://x.y) [4](#one) ![5](b.md) <img src='no' alt=''>"
    (tmp_path / "a.md").write_text(f'# One\n\n{good}\n\n[6](b.md#thrice) [7](c.md) [8](../d) <a href="e">9</a>\n')
    page = PAGES.Page(tmp_path / "a.md")
    assert page.broken() == [
        "a.md links to b.md#thrice, but b.md has no such heading.",
        "a.md links to c.md, which does not exist.",
        "a.md links to ../d, which does not exist.",
        "a.md links to e, which does not exist.",
    ]


class Parsed(HTMLParser):
    """Links and anchors of a page, and what it would fetch by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        else:
            self.fetched += [given[name] for name in ("href", "src") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("pdoc", reason="pdoc is not installed: make docs-tools")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, str(ROOT / "docs/site/build.py"), str(folder)], check=True)
    return folder


def test_links_of_the_site_lead_to_its_files_and_anchors(site):
    pages = {path: Parsed(path.read_text()) for path in sorted(site.rglob("*.html"))}
    names = {str(path.relative_to(site)) for path in pages}
    assert {"index.html", "docs/tutorial.html", "results/small/tables/table4.html"} <= names
    assert {"api/soma/inference.html", "api/soma/training/module.html"} <= names
    wrong = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            if PAGES.OUTSIDE.match(link):
                continue
            name, _, anchor = link.partition("#")
            file = (path.parent / unquote(name)).resolve() if name else path
            if not file.is_file() or (anchor and file in pages and unquote(anchor) not in pages[file].anchors):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_no_page_of_the_site_fetches_anything(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        fetched = [link for link in Parsed(text).fetched if not link.startswith("data:")]
        assert [link for link in fetched if PAGES.OUTSIDE.match(link)] == [], path
        assert not re.search(r"url\((?![\"']?(?:data:|#))|@import", text), path
