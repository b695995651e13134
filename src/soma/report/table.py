"""Tables as Markdown, CSV and HTML, whose cells carry a status and runs."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from soma.files.atomic import write_bytes

Status = Literal["measured", "paper", "set", "interpolated", "not run"]


@dataclass(frozen=True)
class Cell:
    """A value with its status: measured here, reported by the paper, set by the configuration, or not run."""

    text: str
    status: Status = "set"
    value: float | int | str | None = None
    low: float | None = None
    high: float | None = None
    run: str = ""
    """The run or runs behind the value, separated by spaces."""


NOT_RUN = Cell("not run", "not run")
NONE = Cell("–")
"""An empty cell, for example where a base would be compared with itself."""


def number(value: float | int | None, status: Status, digits: int = 4, run: str = "") -> Cell:
    """Return a cell with a number; a measured None is `not run`."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOT_RUN if status == "measured" else Cell("–", status)
    return Cell(significant(value) if digits < 0 else f"{value:,.{digits}f}", status, value, run=run)


def with_interval(value: float, low: float, high: float, run: str, digits: int = 4) -> Cell:
    """Return a cell with a measured loss or difference and its 95 % interval."""
    text = f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    return Cell(text, "measured", value, low, high, run)


def interpolated(cell: Cell, between: bool = True) -> Cell:
    """Mark a measured cell if its value lies between two milestones (or two sizes)."""
    return replace(cell, text=f"~{cell.text}", status="interpolated") if between else cell


def significant(value: float | int) -> str:
    """Format integers with thousands separators, others to three significant digits, with an exponent far from 1."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e7):
        return f"{int(value):,}"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    rounded = f"{value:.3g}"
    return f"{float(rounded):,.0f}" if abs(value) >= 1000 else rounded


def span(values: Iterable[Any], text: Callable[[Any], str] = "{:,}".format) -> str:
    """Return the range of values, as in `15 to 63`, or the only one if the ends read the same."""
    known = list(values)
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} to {high}"


def seed_counts(values: Iterable[int]) -> str:
    """Return the numbers of seeds behind what is drawn, as in `n = 2 or 3`."""
    return "n = " + " or ".join(str(n) for n in sorted(set(values)))


DITTO = "″"
"""Text of a cell that says the same as the one above it."""
LEGEND = (
    "Upright: measured or set here. *Italics*: reported by the paper, or not run. `~`: interpolated between two "
    "milestones or sizes. `–`: nothing to show, or not reported."
)


@dataclass(frozen=True)
class Table:
    """A table of cells; its `notes` and the runs behind its cells are printed below it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells for {len(self.columns)} columns: {row[0].text}")

    def markdown(self, title: str) -> str:
        lines = [f"# {title}", ""]
        lines += _markdown_row([_literal(column) for column in self.columns])
        lines += _markdown_row(["---"] * len(self.columns))
        for row in self.rows:
            lines += _markdown_row([_marked(cell) for cell in row])
        lines += [""] + [f"- {note}" for note in (*self.notes, LEGEND)]
        lines += ["", "\n".join(textwrap.wrap(self._runs(), 120, break_on_hyphens=False))]
        return "\n".join(lines).rstrip() + "\n"

    def csv(self) -> str:
        """Return one line per cell with its value, interval, status and run, for programs to read."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["row", "column", "text", "value", "low", "high", "status", "run"])
        for i, row in enumerate(self.rows):
            for column, cell in zip(self.columns, row, strict=True):
                value, low, high = ("" if x is None else x for x in (cell.value, cell.low, cell.high))
                writer.writerow([i, column, cell.text, value, low, high, cell.status, cell.run])
        return out.getvalue()

    def html(self, title: str) -> str:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in self.columns)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td class="{cell.status.replace(" ", "-")}" title="{html.escape(cell.run or cell.status)}">'
                f"{html.escape(cell.text)}</td>"
                for cell in row
            )
            + "</tr>\n"
            for row in self.rows
        )
        notes = "".join(f"<li>{_inline(note)}</li>" for note in (*self.notes, LEGEND, "Point at a cell for its run."))
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
            f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
            f"<ul>{notes}</ul>{self._runs()}</body></html>\n"
        )

    def _runs(self) -> str:
        """Return a folded paragraph with every run, as HTML, which Markdown may contain."""
        names = sorted({run for row in self.rows for cell in row for run in cell.run.split()})
        if not names:
            return ""
        where = "settings, engine, code version and hashes are in runs/RUN/PART/run.json, which come with dvc pull runs"
        return f"<details><summary>Runs: {len(names)}</summary>{where}: {', '.join(names)}</details>"

    def write(self, directory: Path, name: str, title: str) -> None:
        """Write name.md, name.csv and name.html to a directory."""
        for suffix, text in (("md", self.markdown(title)), ("csv", self.csv()), ("html", self.html(title))):
            write_bytes(directory / f"{name}.{suffix}", text.encode())


def _inline(note: str) -> str:
    """Convert the two marks used in notes, `code` and *emphasis*, to HTML."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(note))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def _markdown_row(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]


def _literal(text: str) -> str:
    """Escape what Markdown would take as markup, such as a label's; underscores inside words are none."""
    return re.sub(r"[\\|*`<]|(?<!\w)_|_(?!\w)|\](?=\()|&(?=[#\w]+;)", r"\\\g<0>", text)


def _marked(cell: Cell) -> str:
    text = _literal(cell.text)
    return f"*{text}*" if cell.status in ("paper", "not run") and text else text


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.25rem;font-weight:600} table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem .8rem;border-bottom:1px solid #ddd;vertical-align:top}
th{border-bottom:2px solid #333}
td.paper,td.not-run{color:#777;font-style:italic} li,details{color:#555;font-size:.9rem}
"""
