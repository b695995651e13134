"""Repository pages that quote the reference campaign, with no number written by hand.

`python -m soma.report.pages` writes them.

README.md opens with a figure and the verdicts of the campaign; docs/products.md lists its products.
docs/results.md is built from docs/results.template.md, in which `{{test loss/soma-n2}}` stands for a number of the
campaign's numbers.json and becomes a link to the table that contains it. Every paragraph there begins with a comment:
`<!-- method -->` if no measurement can make it false, or `<!-- holds: CONDITION; CONDITION -->` with what its words
say, such as `differences/C3/SOMA minus SPSA, equally tuned/speaks = for`. A page whose condition is false is not
written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from soma.catalogue import CLAIMS, FIGURES, Product
from soma.config.campaign import BASE, load
from soma.errors import SomaError
from soma.files.atomic import read_json, write_bytes
from soma.report.summary import BEGIN, END

CAMPAIGN = Path("results/small")
TABLES = {
    "test loss": "table4",
    "external loss": "table9",
    "references": "table4",
    "differences": "claims",
    "claims": "claims",
    "verdicts": "claims",
    "counts": "claims",
    "controls": "controls",
    "sizes": "sizes",
}
"""The table that contains each entry of numbers.json."""
MARKS = {"reproduced": "✓", "not reproduced": "✗", "inconclusive": "?"}
"""Marks of verdicts in lists; all others have a dash."""
PRODUCTS_BEGIN, PRODUCTS_END = "<!-- products: begin -->", "<!-- products: end -->"
"""Marks around the list of products in docs/products.md."""


def with_products(page: str, sections: Mapping[str, Sequence[Product]], folder: str) -> str:
    """Replace a page's list of products, with links relative to the page to those that the campaign has.

    Args:
        sections: the products of the campaign, by section of the report.
        folder: folder of the campaign, relative to the page.
    """
    lines = ["| section | tables and figures |", "| --- | --- |"]
    for section, products in sections.items():
        texts = [
            f"[{p.label}]({folder}/{_file(p)}): {p.subject}"
            if (CAMPAIGN / _file(p)).exists()
            else f"{p.label}: {p.subject} (not made yet)"
            for p in products
        ]
        lines.append(f"| {section} | {'; '.join(texts)} |")
    block = "\n".join([PRODUCTS_BEGIN, "", *lines, "", PRODUCTS_END])
    return page.replace(_inside(page, PRODUCTS_BEGIN, PRODUCTS_END).group(), block)


def _file(product: Product) -> str:
    return f"{product.kind}s/{product.name}.{'md' if product.kind == 'table' else 'png'}"


def opened(page: str, statuses: Mapping[str, str], folder: str) -> str:
    """Replace the part of a page between BEGIN and END by a figure beside one line for each claim of the paper.

    Args:
        statuses: verdict of every claim, with `superseded` behind it where a definition has changed.
        folder: folder of the campaign, relative to the page.
    """
    lines = []
    for claim in CLAIMS:
        mark = MARKS.get(statuses[claim.name].split(",")[0], "–") + (
            "°" if "superseded" in statuses[claim.name] else ""
        )
        if claim.short:
            lines.append([claim.name.rstrip("ab"), claim.short, mark])
        else:
            lines[-1][2] += f" {mark}"
    verdicts = "<br>\n".join(f"{marks} <b>{number}</b> {short}" for number, short, marks in lines)
    legend = "✓ reproduced · ✗ not reproduced · ? undecided"
    if any("superseded" in status for status in statuses.values()):
        legend += " · ° its definition has changed since"
    file = f"{folder}/figures/figure1.png"
    figure = f'<a href="{file}"><img src="{file}" alt="{FIGURES["figure1"].title}"></a>'
    block = [
        BEGIN,
        "<table><tr>",
        f'<td width="50%">{figure}</td>',
        f"<td><sub>{verdicts}</sub></td>",
        "</tr></table>",
        "",
        f"<sub>{legend}. [Every difference with its intervals]({folder}/tables/claims.md), "
        f"[what it means](docs/results.md).</sub>",
        END,
    ]
    return page.replace(_inside(page).group(), "\n".join(block))


def filled(template: str, metrics: Mapping[str, Any], folder: str) -> str:
    """Fill in a template's numbers as links; `{{…:+.3f}}` sets the format (default .3f; text is unchanged).

    Raises:
        SomaError: if numbers.json lacks a name, if a paragraph does not say what it rests on, or if that is not so.
    """
    page = "\n\n".join(checked(paragraph, metrics) for paragraph in template.split("\n\n"))
    return numbered(page, metrics, lambda path, _: f"{folder}/tables/{TABLES[path.split('/')[0]]}.md")


def numbered(text: str, metrics: Mapping[str, Any], target: Callable[[str, Any], str]) -> str:
    """Replace every name in double braces by its number, as a link.

    Args:
        target: returns where the link leads, given the number's name and value.
    """

    def number(match: re.Match[str]) -> str:
        value, form = _value(match["path"], metrics), match["form"] or ".3f"
        shown = value if isinstance(value, str) else format(value, form).replace("-", "−")
        return f"[{shown}]({target(match['path'], value)})"

    return re.sub(r"\{\{(?P<path>[^{}:]+(?:: [^{}:]+)*)(?::(?P<form>[^{} ]+))?\}\}", number, text)


def checked(paragraph: str, metrics: Mapping[str, Any]) -> str:
    """Return a paragraph without its comment, after checking what it rests on; a heading rests on nothing."""
    if paragraph.startswith("#"):
        return paragraph
    comment = re.match(r"\s*<!-- (?:method|holds: (?P<conditions>.+?)) -->\n", paragraph, re.S)
    if comment is None:
        raise SomaError(
            f"docs/results.template.md: the paragraph `{paragraph[:60]}…` begins with neither <!-- method --> nor "
            "<!-- holds: … -->; say what it rests on."
        )
    for condition in filter(None, (comment["conditions"] or "").replace("\n", " ").split("; ")):
        if not _holds(condition, metrics):
            raise SomaError(
                f"docs/results.template.md: `{condition}` is not so any more; rewrite the paragraph that rests on it, "
                f"`{paragraph[comment.end() :][:60]}…`."
            )
    return paragraph[comment.end() :]


def _holds(condition: str, metrics: Mapping[str, Any]) -> bool:
    """Evaluate `NAME < NAME`, `NAME > 0.1` or `NAME = text`, each name being one of numbers.json."""
    parts = re.fullmatch(r"(?P<left>.+) (?P<sign>[<>=]) (?P<right>.+)", condition.strip())
    if parts is None:
        raise SomaError(f"docs/results.template.md: `{condition}` is no comparison of the form NAME < VALUE.")
    left, right = _value(parts["left"], metrics), parts["right"]
    if isinstance(left, str):
        return parts["sign"] == "=" and left == right
    other = float(right) if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", right) else _value(right, metrics)
    return bool({"<": left < other, ">": left > other, "=": left == other}[parts["sign"]])


def _value(name: str, metrics: Mapping[str, Any]) -> Any:
    """Return the value of a name such as `test loss/soma-n2`."""
    value: Any = metrics
    for key in name.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            raise SomaError(f"docs/results.template.md: numbers.json has no `{name}`.")
        value = value[key]
    return value


def _inside(page: str, begin: str = BEGIN, end: str = END) -> re.Match[str]:
    marked = re.search(f"{begin}.*{end}", page, re.S)
    if marked is None:
        raise SomaError(f"a page lacks the marks {begin} and {end}.")
    return marked


def pages() -> dict[Path, str]:
    """Build every page from the campaign's files."""
    numbers, beside = read_json(CAMPAIGN / "numbers.json"), f"../{CAMPAIGN.as_posix()}"
    readme, products, results = Path("README.md"), Path("docs/products.md"), Path("docs/results.md")
    return {
        readme: opened(readme.read_text(), numbers["claims"], CAMPAIGN.as_posix()),
        products: with_products(products.read_text(), load(BASE).catalogue.sections, beside),
        results: filled(Path("docs/results.template.md").read_text(), numbers, beside),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        write_bytes(path, text.encode())
