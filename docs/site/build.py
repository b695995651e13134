"""Build the documentation as one folder of HTML: `python docs/site/build.py FOLDER`, or `make docs-site`.

The guides are README.md and every Markdown page that it leads to; other files that they link to are copied. pdoc makes
the reference from the docstrings, and lends the guides its style. Nothing is fetched, neither here nor by the pages.

Why pdoc: it reads our docstrings as they are, embeds all that its pages need, and is one small package that is kept up.
Generators of whole sites want the pages in a folder of their own, where the links that GitHub shows would lead nowhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pdoc
from pages import HTML_LINK, MARKDOWN, OUTSIDE, ROOT, Page, inner
from pydantic import BaseModel
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

FRONT = ROOT / "README.md"
_API = Path("api")
_LEFT_OUT = [
    r"!soma\.(.*\.)?__main__",
    r"!soma\..*\._[^.]*",  # compiled kernels
    *([] if find_spec("triton") else [r"!soma\.forward\.triton_.*"]),
]
"""Modules that the reference does not have."""


def build(output: Path) -> None:
    """Write the guides and the reference into a folder, which is made anew.

    Raises:
        SystemExit: if a link leads nowhere.
    """
    pages, files = _reached()
    if broken := [sentence for page in pages for sentence in page.broken()]:
        raise SystemExit("\n".join(broken))
    shutil.rmtree(output, ignore_errors=True)
    pdoc.render.configure(docformat="google", template_directory=Path(__file__).parent, show_source=False)
    BaseModel.__doc__ = (
        ""  # or pdoc would show it, with links into another site, for classes that have none of their own
    )
    pdoc.pdoc("soma", *_LEFT_OUT, output_directory=output / _API)
    MARKDOWN.options["highlight"] = _coloured
    front = Page(FRONT)
    direct = [FRONT, *map(front.file_of, front.targets())]
    menu = [page for page in pages if page.path in direct]
    for page in pages:
        _write(output / _place(page.path), _html(page, menu).encode())
    for file in files:
        _write(output / _place(file), file.read_bytes())


def _reached() -> tuple[list[Page], set[Path]]:
    """Return the pages that can be reached from the first one, and all other files that they link to."""
    pages, files = {FRONT: Page(FRONT)}, set()
    waiting = [FRONT]
    for path in waiting:
        for file in map(_shown, map(pages[path].file_of, pages[path].targets())):
            if file.suffix != ".md":
                files.add(file)
            elif file not in pages and file.exists():
                pages[file] = Page(file)
                waiting.append(file)
    return list(pages.values()), files


def _shown(file: Path) -> Path:
    """Return what stands for a file: a table of a campaign has its own HTML beside its Markdown."""
    own = file.with_suffix(".html")
    return own if file.suffix == ".md" and own.exists() else file


def _place(file: Path) -> Path:
    """Return where a file of the repository is in the site."""
    if file == FRONT:
        return Path("index.html")
    place = file.relative_to(ROOT)
    return place.with_suffix(".html") if place.suffix == ".md" else place


def _html(page: Page, menu: list[Page]) -> str:
    """Return a page as HTML, with links to other places of the site."""
    here = _place(page.path).parent

    def link(place: Path) -> str:
        return os.path.relpath(place, here)

    def led(target: str) -> str:
        if OUTSIDE.match(target) or target.startswith("#"):
            return target
        name, mark, heading = target.partition("#")
        return link(_place(_shown(page.file_of(name)))) + mark + heading

    for token in inner(page.tokens):
        for name in {"href", "src"} & token.attrs.keys():
            token.attrs[name] = led(str(token.attrs[name]))
        if token.type.startswith("html"):
            token.content = HTML_LINK.sub(lambda found: led(found[0]), token.content)
    body = MARKDOWN.renderer.render(page.tokens, MARKDOWN.options, {})
    entries = [(other.title, link(_place(other.path)), other is page) for other in menu]
    template = pdoc.render.env.get_template("page.html.jinja2")
    return template.render(title=page.title, menu=entries, api=link(_API / "soma.html"), body=body)


def _coloured(code: str, language: str, _: str) -> str:
    """Return a block of code with the classes of pdoc's colours; nothing for a language that pygments does not know."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return f'<pre class="pdoc-code codehilite">{highlight(code, lexer, HtmlFormatter(nowrap=True))}</pre>'


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="made anew, with all that it holds")
    build(parser.parse_args().folder)
