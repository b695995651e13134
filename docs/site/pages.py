"""The Markdown pages of the repository: what they link to, and which headings a link can name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]

MARKDOWN = MarkdownIt("gfm-like", {"html": True, "linkify": False})
HTML_LINK = re.compile(r'(?<=href=")[^"]+|(?<=src=")[^"]+')
"""A link or picture in HTML, of a page or within Markdown."""
OUTSIDE = re.compile(r"[a-z]+:|//")
"""The beginning of an address of the web, or of data in place."""


class Page:
    """A page, read as GitHub reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def tokens(self) -> list[Token]:
        """What the page consists of; headings have the anchors that GitHub gives them."""
        tokens = MARKDOWN.parse(self.path.read_text())
        names: dict[str, int] = {}
        for heading, inside in pairwise(tokens):
            if heading.type == "heading_open":
                name = re.sub(r"[^\w -]", "", _words(inside).lower()).replace(" ", "-")
                seen = names[name] = names.get(name, -1) + 1
                heading.attrSet("id", f"{name}-{seen}" if seen else name)
        return tokens

    @property
    def title(self) -> str:
        """The first heading."""
        first = next(i for i, token in enumerate(self.tokens) if token.type == "heading_open")
        return _words(self.tokens[first + 1])

    @property
    def anchors(self) -> set[str]:
        return {str(token.attrs["id"]) for token in self.tokens if token.type == "heading_open"}

    def targets(self) -> Iterator[str]:
        """Yield every link and picture that leads to the repository, in order."""
        for token in inner(self.tokens):
            found = [str(token.attrs[name]) for name in ("href", "src") if name in token.attrs]
            found += HTML_LINK.findall(token.content) if token.type.startswith("html") else []
            yield from (target for target in found if not OUTSIDE.match(target))

    def file_of(self, target: str) -> Path:
        """Return the file that a link of this page names; a link to a heading alone names the page."""
        name = unquote(target.partition("#")[0])
        return (self.path.parent / name).resolve() if name else self.path

    def broken(self) -> list[str]:
        """Return a sentence for every link that leads to no file or heading of the repository."""
        here = self.path.relative_to(ROOT)
        sentences = []
        for target in self.targets():
            file, heading = self.file_of(target), target.partition("#")[2]
            if not file.is_relative_to(ROOT) or not file.exists():
                sentences.append(f"{here} links to {target}, which does not exist.")
            elif heading and file.suffix == ".md" and heading not in Page(file).anchors:
                sentences.append(f"{here} links to {target}, but {file.relative_to(ROOT)} has no such heading.")
        return sentences


def _words(heading: Token) -> str:
    return "".join(t.content for t in heading.children or () if t.type in ("text", "code_inline"))


def inner(tokens: list[Token]) -> Iterator[Token]:
    """Yield tokens, each before those inside it."""
    for token in tokens:
        yield token
        yield from token.children or ()
