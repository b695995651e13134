"""The page of a campaign, `results/<campaign>/index.html`: claims with their evidence, figures, tables, and the way
from every number to its runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from soma.analysis.verdict import RULE
from soma.catalogue import CONTROLS, TABLES, Claim, Product, Table
from soma.files.atomic import read_json
from soma.plan import Plan
from soma.report.labels import arm_label
from soma.report.page import story
from soma.report.page.products import Picture, anchor, files, read_picture, read_table, spoken
from soma.report.pages import TABLES as TABLE_OF
from soma.report.paper import PaperValues
from soma.report.table import Cell, significant
from soma.report.table import Table as Cells
from soma.runs import RunSpec

_FILES = ("page.html.jinja2", "page.css", "page.js")
"""The template, and the two files that it includes."""
_CLAIMS = "claims"
"""The table that the list of claims shows."""
STORIES = {
    "Equal size and budget": ("The comparison at equal total size",),
    "Controls of ours": ("What the paper's controls leave open", "Beyond the paper"),
    "Backpropagation and tuning": ("Against backpropagation",),
    "Gradient estimates": ("Gradients",),
    "Scaling and allocation": ("Experts, directions, sequences",),
    "Inference and averaging": ("Averaging and inference",),
}
"""Beginnings of the template's headings whose text opens a section of the catalogue."""
LIMITS = "Limits of this scale"
_LAST = "Settings and costs"
"""The section of the catalogue that the page shows after all others."""

_UPRIGHT = 140
"""Characters of a table's line on an upright page, at most."""

_markdown = MarkdownIt("commonmark", {"html": False})


@dataclass(frozen=True)
class Shown:
    """A product as the page shows it."""

    product: Product
    anchor: str
    file: str
    """The file to ask Snakemake for."""
    table: Cells | None = None
    picture: Picture | None = None
    open: bool = True
    """False to fold it: no claim has it as its main evidence, and it is not the table of controls."""

    @property
    def made(self) -> bool:
        return self.table is not None or self.picture is not None


@dataclass(frozen=True)
class Evidence:
    """A claim with the rows of the claims table that speak about it."""

    claim: Claim
    text: str
    paper: str
    verdict: str = "not judged yet"
    superseded: bool = False
    reason: str = ""
    rows: list[tuple[int, tuple[Cell, ...]]] = field(default_factory=list)
    """Each with its place in the claims table."""

    @property
    def kind(self) -> str:
        """Name of the verdict's look."""
        return self.verdict.replace(" ", "-")

    @property
    def scale(self) -> float:
        """Largest value of all differences and ends of intervals."""
        known = [abs(x) for _, row in self.rows for x in _ends(row) if x is not None]
        return max(known, default=0.0) or 1.0


_DIFFERENCE, _MEASURED, _SEEDS, _SPEAKS, _RULING = 3, 4, 5, 7, 8
"""Columns of the claims table."""


def _ends(row: tuple[Cell, ...]) -> tuple[float | None, ...]:
    """Return a difference, then the ends of its intervals over documents and over seeds."""
    measured, seeds = row[_MEASURED], row[_SEEDS]
    value = measured.value if isinstance(measured.value, float) else None
    return value, measured.low, measured.high, seeds.low, seeds.high


class Page:
    """Everything that the template asks for."""

    def __init__(self, plan: Plan, paper: PaperValues, results: Path, template: Path | None) -> None:
        """Read what there is.

        Args:
            results: folder of the campaign.
            template: the template of the campaign's story, or None.
        """
        self.plan, self.paper, self.results = plan, paper, results
        self.campaign = plan.config.campaign
        self.rule, self.controls = RULE, CONTROLS
        self.catalogue = plan.config.catalogue
        self.products = {product: self._shown(product) for product in self.catalogue.products}
        self.missing = [shown for shown in self.products.values() if not shown.made]
        self.story = self._story(template)
        self._run_sets: dict[str, int] = {}
        self.sections = sorted(self.catalogue.sections, key=lambda section: section == _LAST)[1:]
        self.evidence = [self._evidence(claim) for claim in self.catalogue.claims]

    # ------------------------------------------------------------------------------------------------- the campaign

    @property
    def flags(self) -> str:
        """Return the options of Snakemake that name this campaign."""
        overlay = Path("config") / f"{self.campaign}.yaml"
        return "" if self.campaign == "small" else f" --configfile {overlay if overlay.exists() else 'YOURS.yaml'}"

    @property
    def size(self) -> dict[str, str]:
        run = self.plan.arm_runs[self.plan.config.products.fixed_size.soma][0]
        operations = significant(float(run.operations(run.updates)))
        return {"parameters": f"{run.parameters:,}", "operations": operations, "runs": f"{len(self.plan.runs):,}"}

    @property
    def counts(self) -> dict[str, list[Evidence]]:
        """Return the claims by verdict."""
        out: dict[str, list[Evidence]] = {}
        for each in sorted(self.evidence, key=lambda each: _ORDER.get(each.verdict, len(_ORDER))):
            out.setdefault(each.verdict, []).append(each)
        return out

    def command(self, *products: Shown) -> str:
        """Return the command that makes products."""
        return f"snakemake --cores all{self.flags} {' '.join(shown.file for shown in products)}"

    # ------------------------------------------------------------------------------------------------------ products

    def _shown(self, product: Product) -> Shown:
        main = {"controls", *(claim.shown[0] for claim in self.catalogue.claims)}
        there = files(product, self.results)
        shown = Shown(product, anchor(product), there[0].as_posix(), open=product.name in main)
        if not all(path.is_file() for path in there):
            return shown
        if isinstance(product, Table):
            return replace(shown, table=read_table(product, self.results))
        return replace(shown, picture=read_picture(product, self.results))

    def of_section(self, section: str) -> list[Shown]:
        """Return the products of a section, in the order of the catalogue."""
        return [self.products[product] for product in self.catalogue.sections[section]]

    def table(self, name: str) -> Cells | None:
        """Return a table, or None if it is not made or the campaign does not have it."""
        shown = self.products.get(TABLES[name])
        return shown.table if shown else None

    def spoken(self, table: Cells) -> list[list[str]]:
        return spoken(table.rows)

    def numeric(self, table: Cells) -> list[bool]:
        """Say of every column whether it holds bare numbers, which are set flush right."""
        columns = zip(*table.rows, strict=True) if table.rows else [() for _ in table.columns]
        return [
            all(re.fullmatch(r"[~+-]?[\d.,]+(e-?\d+)?|[–″]|not run", cell.text) for cell in column)
            for column in columns
        ]  # fmt: skip

    def wide(self, table: Cells) -> bool:
        """Say whether a table needs a page across when it is printed, by the longest words of its columns."""
        columns = zip(table.columns, *(map(typeset, (cell.text for cell in row)) for row in table.rows), strict=True)
        return sum(2 + max(len(word) for text in column for word in text.split(" ")) for column in columns) > _UPRIGHT

    def run_set(self, runs: str) -> int:
        """Return the number of a set of runs, which the page holds once."""
        return self._run_sets.setdefault(runs, len(self._run_sets))

    # -------------------------------------------------------------------------------------------------------- claims

    def _evidence(self, claim: Claim) -> Evidence:
        text, reported = self.paper.text(claim.text), self.paper.text(claim.paper)
        table = self.table(_CLAIMS)
        rows = [(i, row) for i, row in enumerate(table.rows) if row[0].text == claim.name] if table else []
        if not rows:
            return Evidence(claim, text, reported)
        status, _, reason = rows[0][1][_RULING].text.partition(": ")
        verdict, *marks = status.split(", ")
        measured = [row for row in rows if isinstance(row[1][_MEASURED].value, float)]
        return Evidence(claim, text, reported, verdict, "superseded" in marks, reason, measured)

    def notes(self, name: str) -> list[str]:
        """Return a table's notes without the rule of verdicts, which has a place of its own."""
        table = self.table(name)
        return [note for note in table.notes if note != RULE] if table else []

    def interval(self, each: Evidence, row: tuple[Cell, ...]) -> dict[str, Any]:
        """Return the places of a difference and its intervals on a scale from -100 to 100, zero being equality."""
        value, low, high, seed_low, seed_high = (None if x is None else 95 * x / each.scale for x in _ends(row))
        return {"value": value, "documents": (low, high), "seeds": (seed_low, seed_high), "speaks": row[_SPEAKS].text}

    def shown_by(self, claim: Claim) -> list[Shown]:
        """Return the products that show a claim; of a table and a figure of one name, the table."""
        by_name = {product.name: shown for product, shown in reversed(self.products.items())}
        return [by_name[name] for name in claim.shown]

    # --------------------------------------------------------------------------------------------------------- story

    def _story(self, template: Path | None) -> dict[str, str]:
        numbers = self.results / "numbers.json"
        if template is None or not numbers.is_file():
            return {}
        return story.sections(template.read_text(encoding="utf-8"), read_json(numbers), self._place)

    def text(self, section: str) -> str:
        """Return the story of a section as HTML."""
        starts = (LIMITS,) if section == LIMITS else STORIES.get(section, ())
        texts = [text for heading, text in self.story.items() for start in starts if heading.startswith(start)]
        return str(_markdown.render("\n\n".join(texts)))

    def inline(self, note: str) -> str:
        """Return a note of a table as HTML."""
        return str(_markdown.renderInline(note))

    def _place(self, name: str, value: Any) -> str:
        """Return the link to the cell that holds a number of numbers.json, or to the table that should."""
        kind, *path = name.split("/")
        if isinstance(value, str):
            return f"#{path[0]}" if kind == "claims" else "#claims"
        table = TABLES[TABLE_OF[kind]]
        cells = self.products[table].table
        if cells is None:
            return f"#{anchor(table)}"
        claim = path[0] if kind == "differences" else ""
        for i, row in enumerate(cells.rows):
            for j, cell in enumerate(row):
                holds = any(isinstance(x, float) and math.isclose(x, value, rel_tol=1e-9)
                            for x in (cell.value, cell.low, cell.high))  # fmt: skip
                if holds and row[0].text.startswith(claim):
                    return f"#{anchor(table)}-r{i}c{j}"
        return f"#{anchor(table)}"

    # ---------------------------------------------------------------------------------------------------------- runs

    def runs(self) -> str:
        """Return, as JSON for the page's script, every run that a cell names, and the sets in which cells name them."""
        named = dict.fromkeys(run for runs in self._run_sets for run in runs.split())
        known = {run: self._run(self.plan.runs[run]) for run in named if run in self.plan.runs}
        text = json.dumps({"sets": list(self._run_sets), "runs": known}, ensure_ascii=False, separators=(",", ":"))
        return text.replace("<", "\\u003c")

    def _run(self, run: RunSpec) -> dict[str, Any]:
        label = next(
            (arm_label(self.plan.arms[arm]) for arm, own in self.plan.arm_runs.items() if run in own), "seed run"
        )
        return {
            "label": f"{label}, seed {run.seed}",
            "settings": dict(_settings(run)),
            "parts": self.plan.folders(run),
            "record": self._record(run),
        }

    def _record(self, run: RunSpec) -> dict[str, str]:
        """Return what was recorded of a run when it was trained; nothing where its files are not here."""
        records = [self.results / "runs" / folder / "run.json" for folder in self.plan.folders(run)]
        if not all(path.is_file() for path in records):
            return {}
        record = read_json(records[0])
        names = ("commit", "device", "threads", "engine", "python", "torch", "weights_sha256")
        return {name.replace("_", " "): str(record[name]) for name in names if name in record}


_ORDER = {"reproduced": 0, "not reproduced": 1, "inconclusive": 2}


def _settings(run: RunSpec) -> Iterator[tuple[str, str]]:
    own = run.settings
    yield "method", {"spsa": "SPSA", "bptt": "backpropagation", "eggroll": "EGGROLL"}.get(own.method, own.method)
    yield "experts N", str(own.experts)
    yield "width", str(own.width)
    if own.method == "spsa":
        yield "directions n_pert", str(own.n_pert)
    yield "sequences B", str(own.batch)
    yield "crop (bytes)", str(own.crop)
    yield "learning rate", f"{own.lr:g}"
    if own.method == "spsa":
        yield "ε", f"{own.eps:g}"
    yield "updates", f"{run.updates:,}"
    yield "operations", significant(float(run.operations(run.updates)))
    yield "parameters", f"{run.parameters:,}"
    yield "shards", run.shards
    if run.start:
        yield "starts from", run.start


def typeset(text: str) -> str:
    """Return a cell's text with minus signs, and with spaces that do not break inside intervals and counts."""
    text = re.sub(r"(?<![\w.)])-(?=\d)", "−", text)
    return re.sub(r"\[[^\]]*\d\]|± \d|\(\d+ seeds?\)", lambda match: match[0].replace(" ", "\u00a0"), text)


def render(page: Page, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        facts: `cost` and `where`, as the first page of a campaign has them (soma.report.summary), or nothing.
    """
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"significant": significant, "set": typeset}
    return environment.get_template(_FILES[0]).render(page=page, facts=facts) + "\n"
