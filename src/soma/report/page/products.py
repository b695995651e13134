"""Finished tables and figures, read back from the files that the workflow wrote.

So the page needs no row and no run: what git stores of a campaign is enough.
"""

from __future__ import annotations

import csv
import html
import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from soma.catalogue import Product, Table
from soma.errors import SomaError
from soma.report.table import DITTO, LEGEND, Cell
from soma.report.table import Table as Cells

LARGEST = 400_000
"""Bytes of a drawing, at most; a larger one is shown as pixels."""
_SIZE = re.compile(rb'<svg[^>]*? width="([0-9.]+)pt" height="([0-9.]+)pt"')


@dataclass(frozen=True)
class Picture:
    """A figure with the words that stand for it where it cannot be seen."""

    address: str
    """The image itself, as a data URI."""
    alt: str
    width: int
    height: int
    """Pixels at the size that it was drawn for, 96 to the inch."""


def anchor(product: Product) -> str:
    """Return the name of a product's place in the page: `table4`, `figure-sizes`."""
    return place(product.kind, product.name)


def place(kind: str, name: str) -> str:
    """Return `anchor` of the product of a kind and name."""
    return name if name.startswith(kind) else f"{kind}-{name}"


def files(product: Product, results: Path) -> list[Path]:
    """Return the files of a product that the page shows."""
    suffixes = ("csv", "md") if isinstance(product, Table) else ("svg", "png")
    return [results / f"{product.kind}s" / f"{product.name}.{suffix}" for suffix in suffixes]


def read_table(product: Product, results: Path) -> Cells:
    """Return a table: its cells from the CSV file, the notes below it from the Markdown file."""
    cells, text = files(product, results)
    columns: dict[str, None] = {}
    rows: dict[str, list[Cell]] = {}
    with cells.open(newline="", encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            columns[entry["column"]] = None
            value, low, high = (_number(entry[name]) for name in ("value", "low", "high"))
            status = entry["status"]
            cell = Cell(entry["text"], status, value, low, high, entry["run"])  # type: ignore[arg-type]
            rows.setdefault(entry["row"], []).append(cell)
    notes = re.findall(r"^- (.+)$", text.read_text(encoding="utf-8"), re.M)
    return Cells(
        tuple(columns), tuple(tuple(row) for row in rows.values()), tuple(note for note in notes if note != LEGEND)
    )


def read_picture(product: Product, results: Path) -> Picture:
    """Return a figure, as a drawing if that is small and as pixels otherwise, with the description in its file."""
    drawing, pixels = files(product, results)
    svg = drawing.read_bytes()
    kind, data = ("svg+xml", svg) if len(svg) <= LARGEST else ("png", pixels.read_bytes())
    described = re.search(rb"<dc:description>(.*?)</dc:description>", svg, re.S)
    alt = html.unescape(described[1].decode()) if described else product.caption
    size = _SIZE.search(svg)
    if size is None:
        raise SomaError(f"{drawing} does not say its size; delete it and run the rule that makes it.")
    width, height = (round(float(points) * 96 / 72) for points in size.groups())
    return Picture(f"data:image/{kind};base64,{b64encode(data).decode()}", alt, width, height)


def spoken(rows: tuple[tuple[Cell, ...], ...]) -> list[list[str]]:
    """Return the texts of rows, each in full where the table only says that it is the one above."""
    out: list[list[str]] = []
    for row in rows:
        out.append([out[-1][i] if cell.text == DITTO and out else cell.text for i, cell in enumerate(row)])
    return out


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
