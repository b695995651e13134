"""Every table on invented rows, at the sizes that no test can run: no empty cell, what was not run says so."""

import csv
import html
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from soma.analysis import reading
from soma.analysis.claims import Judged, verdicts
from soma.analysis.costs import campaign_totals
from soma.analysis.verdict import Difference
from soma.catalogue import CLAIMS, CONTROLS, FIGURES, PRODUCTS, SUMMARIES, TABLES, IfGiven, Losses
from soma.config.campaign import load
from soma.evaluation.rows import NGRAMS
from soma.plan import Plan, make_plan
from soma.report import summary
from soma.report.labels import agreement, difference_cells, named, over_runs
from soma.report.paper import PaperValues
from soma.report.table import Cell, Table, significant
from soma.report.tables.controls import precision_finding, size_finding
from soma.report.tables.costs import table3
from soma.report.tables.gradients import table8
from soma.steps import table as step
from tests.analysis import invented
from tests.project import ROOT, Project
from tests.report import fabricated

CONFIG = ROOT / "config"
STATUSES = {"measured", "paper", "set", "interpolated", "not run"}


PAPER = PaperValues(CONFIG / "paper_values.yaml")

TELL = """
import json

include: "Snakefile"

LABELS = [(category(p), *labels(p).values()) for p in CATALOGUE.products]
Path("told.json").write_text(json.dumps({"labels": LABELS, "made": rules.all.input}))
"""


@pytest.fixture(scope="module")
def workflow(tmp_path_factory) -> dict:
    """Ask Snakemake for the products of `small`: their labels in the report, and the files that `all` makes."""
    project = Project(tmp_path_factory.mktemp("workflow"))
    (project.folder / "tell.smk").write_text(TELL)
    project.snakemake("--snakefile", "tell.smk", "--list-rules", config="")
    return json.loads((project.folder / "told.json").read_text())


@cache
def plan_of(campaign: str) -> Plan:
    plan = make_plan(load(CONFIG / "config.yaml", *([CONFIG / f"{campaign}.yaml"] if campaign != "small" else [])))
    return replace(plan, config=plan.config.model_copy(update={"bootstrap_draws": 5}))


def advantage(arm, run, update, iterate, k):
    """Losses that fall with the logarithm of the operations; averaged iterates and more experts are a little better."""
    return 0.02 * len(str(run.operations(update))) + 0.01 * (iterate == "average") + 0.005 * k + 0.001 * run.seed


class Rows(fabricated.Rows):
    """Rows that the catalogue's summaries compute from invented losses; of measurements, invented rows."""

    FABRICATED = (
        "ablation-curves", "paired", "best-counts", "estimators", "active-losses", "active-differences", "per-expert",
        "charged",
    )  # fmt: skip

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.made: dict[str, pd.DataFrame] = {}

    def __call__(self, kind: str) -> pd.DataFrame:
        if kind not in self.made:
            computed = kind in SUMMARIES and kind not in self.FABRICATED
            self.made[kind] = self.summary(kind) if computed else super().__call__(kind)
        return self.made[kind]

    def summary(self, name: str) -> pd.DataFrame:
        module, function = SUMMARIES[name].function.split(".")
        named = [read.rows if isinstance(read, IfGiven) else read for read in SUMMARIES[name].reads]
        inputs = [self.scored(read) if isinstance(read, Losses) else self(read) for read in named]
        return getattr(import_module(f"soma.analysis.{module}"), function)(self.plan, *inputs)

    def scored(self, read: Losses) -> pd.DataFrame:
        arms = [arm for product in read.products for arm in self.plan.product_arms(product)]
        return pd.concat([invented.losses(self.plan, arms, advantage, set_) for set_ in read.sets])

    def ngram_losses(self):
        rows = self.scored(Losses(("fixed_size",), ("test", "external")))
        rows = rows.drop_duplicates(["set", "split", "document"])
        same = {"update": 0, "iterate": "last", "k": 1}
        return pd.concat([rows.assign(run=model, **same) for model in NGRAMS], ignore_index=True)

    def costs(self):
        return invented.costs(self.plan)

    def tuning_test(self):
        return self.scored(Losses(("tuning",), ("test",)))

    def reference(self):
        rows = super().reference()
        return rows.assign(cosine_distance=0.01 + 0.1 * (rows["experts"] > 2), reference_sequences=512)

    def inference(self):
        facts = {"k": 4, "requests": 64, "seconds": 0.1, "latency_seconds": 0.01, "routing_share": 0.1, "repeats": 7}
        where = {"peak_bytes": 1 << 24, "peak_kind": "process", "engine": "cpu", "device": "cpu", "threads": 1}
        return super().inference().assign(**facts, **where)

    def estimators(self):
        facts = {"n_pert": 16, "updates": 9, "cosine": 0.04, "cosine_se": 0.01, "repeats": 8, "measured_on": "r"}
        return super().estimators().assign(**facts)

    def active_differences(self):
        row = fabricated.interval("difference", -0.02, 0.01, 3)
        return pd.DataFrame([{"arm": "soma-n8", "experts": 8, "k": "k=4", "against": "k=1", "run": "r"} | row])


@cache
def rows_of(campaign: str) -> Rows:
    return Rows(plan_of(campaign))


def write(campaign: str, name: str, folder: Path, monkeypatch) -> list[dict[str, str]]:
    """Cells of a table that the workflow's step writes."""
    plan = plan_of(campaign)
    monkeypatch.setattr(step, "load_plan", lambda _: plan)
    monkeypatch.setattr(reading, "read_rows", lambda path: rows_of(campaign)(path.stem))
    kept = {"kept": 9}
    cluster = {"cluster": 0, "assigned": 5, "balanced": 5, "terms": ["word"]}
    facts = {"windows": 10, "prefix": 8, "prefix_agreement": 0.5, "prefix_agreement_windows": 10}
    files = {f"sets/{role}.json": {"windows": kept, "documents": kept} for role in ("validation", "test")}
    for n in plan.expert_counts:
        files[f"routing/clusters-n{n}.json"] = facts | {"experts": n, "clusters": [cluster, cluster | {"cluster": 1}]}
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(content))
    step.table(name, Path(), folder, CONFIG / "paper_values.yaml", folder)
    with (folder / f"{name}.csv").open() as f:
        return list(csv.DictReader(f))


def column(cells, name: str) -> list[dict[str, str]]:
    found = [cell for cell in cells if cell["column"] == name]
    assert found, name
    return found


def campaigns(name: str) -> tuple[str, ...]:
    """Return the campaigns of which a table is tried; a study beyond the paper has its own."""
    return ("frontier",) if "frontier" in name else ("mechanism",) if name == "study" else ("small", "paper")


@pytest.mark.parametrize(
    ("campaign", "name"),
    [(campaign, name) for name in TABLES for campaign in campaigns(name)],
)
def test_every_cell_says_something_and_every_row_its_own(campaign, name, tmp_path, monkeypatch):
    cells = write(campaign, name, tmp_path, monkeypatch)
    assert [cell for cell in cells if not cell["text"].strip() or cell["text"] == "nan"] == []
    assert {cell["status"] for cell in cells} <= STATUSES
    rows = Counter(row["row"] for row in cells)
    assert len(set(rows.values())) == 1
    texts = Counter(tuple(c["text"] for c in cells if c["row"] == row) for row in rows)
    assert max(texts.values()) == 1
    assert len({cell["column"] for cell in cells}) == rows["0"]
    for cell in cells:
        assert (cell["status"] == "interpolated") == cell["text"].startswith("~"), cell
        assert (cell["status"] == "not run") or cell["text"] not in ("not run", "no cost in common"), cell
    page = (tmp_path / f"{name}.md").read_text()
    runs = {run for cell in cells for run in cell["run"].split()}
    assert runs <= set(re.split(r"[\s,<]+", page))
    assert max((len(line) for line in page[page.find("<details>") :].splitlines() if runs), default=0) <= 120


@pytest.mark.parametrize(("name", "label"), [("table4", "method"), ("table9", "method"), ("table12", "ensemble")])
def test_rows_have_labels_of_their_own(name, label, tmp_path, monkeypatch):
    for campaign in ("small", "paper"):
        labels = [cell["text"] for cell in column(write(campaign, name, tmp_path, monkeypatch), label)]
        assert len(set(labels)) == len(labels)


def test_the_papers_rows_stand_beside_ours_where_they_are_the_same(tmp_path, monkeypatch):
    def unmatched(name: str, of: str) -> int:
        cells = column(write("paper", name, tmp_path, monkeypatch), of)
        return sum(cell["status"] == "not run" for cell in cells)

    assert unmatched("table6", "chosen for") == 0
    assert unmatched("table10", "best N") == 0
    assert unmatched("table13", "updates") == 0  # N=256 has a row at an earlier milestone too
    assert unmatched("table12", "k") == 0
    assert unmatched("table8", "error times device seconds") == 0
    small = write("small", "table13", tmp_path, monkeypatch)
    own = {c["row"]: c["text"] for c in column(small, "ensemble") if c["status"] == "set"}
    hours = {c["row"]: c["text"] for c in column(small, "GPU-hours (paper)")}
    assert {own[row]: hours[row] for row in own}["SOMA N=8, n_pert=16"] == "700"


def test_table_2_has_the_sizes_of_table_4(tmp_path, monkeypatch):
    cells = write("small", "table2", tmp_path, monkeypatch)
    assert [cell["text"] for cell in column(cells, "N")] == ["1", "1", "2", "4", "8", "16", "256"]
    widths = [cell["text"] for cell in column(cells, "width (paper)")]
    assert widths == ["509", "–", "361", "–", "181", "–", "32"]


def test_what_lies_between_two_milestones_is_marked_as_far_as_the_claims(tmp_path, monkeypatch):
    rows = rows_of("small")("backpropagation")
    assert rows["interpolated"].all()
    claims = write("small", "claims", tmp_path, monkeypatch)
    claim = {cell["row"]: cell["text"] for cell in column(claims, "claim")}
    marked = {claim[c["row"]] for c in column(claims, "measured [over documents]") if c["status"] == "interpolated"}
    assert marked == {"C16"}  # the sweep's first milestone of N=16 is one of N=1
    charged = write("small", "controls", tmp_path, monkeypatch)
    control = {cell["row"]: cell["text"] for cell in column(charged, "control")}
    found = {control[c["row"]] for c in column(charged, "first minus second") if c["status"] == "interpolated"}
    assert found == {"B5"}


def test_an_error_to_which_its_reference_adds_much_is_not_trusted():
    plan, rows = plan_of("small"), rows_of("small")("reference")
    noisy = rows.assign(reference_error=rows["reference_error"].where(rows["experts"] < 4, 0.02 * rows["error"]))
    table = table8(plan, PAPER, noisy)
    at = {name: i for i, name in enumerate(table.columns)}
    cells = [(row[at["N"]].text, row[at["their noise in the error, at most"]]) for row in table.rows]
    assert {n for n, cell in cells if "not trusted" in cell.text} == {"4", "8", "16"}
    assert {cell.text for n, cell in cells if n == "16"} == {"2.00%: error not trusted"}
    assert "adds up to 2.00% to an error, which is too much: these errors are not trusted" in agreement(noisy)
    assert "which is little (up to 1% counts)" in agreement(rows)


def test_table3_says_where_the_runs_and_the_step_were_timed():
    """They may lie on different machines, and a time is nothing without its device."""
    plan, rows = plan_of("small"), rows_of("small")
    costs, steps = rows("costs").assign(device="one machine"), rows("reference").assign(device="another")
    notes = " ".join(table3(plan, PAPER, costs, steps).notes)
    assert "The runs: one machine, 1 thread(s) per job, engine `cpu`. The step: another, 1" in notes


def test_the_controls_of_their_own_tables_have_a_finding():
    plan, rows = plan_of("small"), rows_of("small")
    sizes, monolith = rows("sizes"), "spsa-n1-d28"
    compared = rows("controls").head(1).assign(control="B7", ours="soma-n2", theirs=monolith)
    lowest = sizes["arm"].map({monolith: 1.0, "soma-n2": 1.1}).fillna(2.0)
    found = size_finding(plan, sizes.assign(loss=lowest), compared)
    assert "the lowest loss of all sizes at this budget is 1.0000, of SPSA N=1" in found
    assert "the best ensemble minus the best monolith, SOMA N=2" in found
    assert "minus the best monolith" not in size_finding(plan, sizes.assign(loss=lowest), compared.head(0))
    errors = {("fp32", 1e-3): 1e-4, ("fp32", 1e-5): 1e-3, ("tf32", 1e-3): 1e-4, ("tf32", 1e-5): 2.0}
    precision = pd.DataFrame([(*key, error, "trained", "r") for key, error in errors.items()])
    precision.columns = pd.Index(["precision", "eps", "error", "weights", "run"])
    found = precision_finding(precision)
    assert "fp32 keep the difference down to ε = 1e-05, with an error of at most 1.0e-03; tf32 loses it" in found


def test_arms_are_called_by_their_labels():
    plan = plan_of("small")
    assert named(plan, "SOMA minus spsa-n1-p16 (test)") == "SOMA minus SPSA N=1, n_pert=16 (test)"
    assert named(plan, "base minus bptt-iid") == "base minus global IID"


def test_intervals_over_runs_and_of_small_differences():
    assert over_runs([2.0, 4.0], 1, "a b").text == "2.8 [0.0, 231.2]"
    assert over_runs([0.0, 4.0], 1, "a b").text == "2.0"
    assert over_runs([2.0], 1, "a").text == "2.0"
    assert over_runs([], 1, "").status == "not run"
    late = Difference("late", -0.000018, -0.000025, -0.000012, float("nan"), float("nan"), 1, "r", interpolated=True)
    assert [cell.text for cell in difference_cells(late)] == ["~-0.000018 [-0.000025, -0.000012]", "1 seed"]
    wide = Difference("wide", -0.0002, -0.0102, 0.0094, -0.2, 0.2, 2, "r")
    assert [cell.text for cell in difference_cells(wide)] == [
        "-0.0002 [-0.0102, +0.0094]",
        "[-0.2000, +0.2000] (2 seeds)",
    ]
    assert [significant(x) for x in (1410.4, 590.3, 12, 3.29e4, 4.5e16)] == ["1,410", "590", "12", "32,900", "4.5e16"]


def test_the_workflow_makes_every_product_of_the_campaign(workflow):
    suffixes = {"table": "csv", "figure": "svg"}
    products = plan_of("small").config.catalogue.products
    files = {f"results/small/{p.kind}s/{p.name}.{suffixes[p.kind]}" for p in products}
    assert files <= set(workflow["made"])
    assert len(files) == len(products)
    assert len(PRODUCTS) == len(TABLES) + len(FIGURES)


def test_the_first_page_has_every_claim_and_control():
    plan, rows = plan_of("small"), rows_of("small")
    cost = campaign_totals(plan, rows("costs"))
    judged = verdicts(plan, rows)
    page = summary.readme(plan, PAPER, judged, rows("controls"), ("B6: x.", "B7: y."), cost, {})
    opening = page.split(summary.END)[0]
    for name in (*(claim.name for claim in CLAIMS), *CONTROLS):
        assert f"{name}: " in opening
    assert "{" not in opening  # every number of the paper is filled in
    lines = [line for line in opening.splitlines() if line.startswith("| ")]
    assert {line.replace(r"\|", "").count("|") for line in lines} == {6, 8}
    assert "| ~" in opening
    assert "spsa-n1" not in opening


def test_the_first_page_shows_a_difference_that_decided_the_verdict():
    def difference(name: str, mean: float) -> Difference:
        return Difference(name, mean, mean - 1, mean + 1, mean - 1, mean + 1, 3, "r")

    differences = [difference("for", -5.0), difference("neither", 0.0), difference("against", 5.0)]
    for verdict in ("reproduced", "inconclusive", "not reproduced"):
        cells = summary._claim_row(plan_of("small"), PAPER, CLAIMS[0], Judged("C1", differences, verdict, ""))
        name = {"reproduced": "for", "inconclusive": "neither"}.get(verdict, "against")
        assert f"{name}; [2 more](tables/claims.md)" in cells


def test_initialisation_is_that_of_seed_runs():
    """Not of the long run that late continuations start from."""
    plan = plan_of("small")
    cost = campaign_totals(plan, invented.costs(plan, seconds_per_operation=1e-11))
    seeds = [run for run in plan.runs.values() if run.kind == "seed"]
    found = cost[f"initialisation, the longest of {len(seeds)} seed runs (s)"]
    assert found == pytest.approx(max(run.operations(run.updates) for run in seeds) * 1e-11)


def test_the_report_has_a_place_of_its_own_for_every_product(workflow):
    places = [tuple(place) for place in workflow["labels"]]
    catalogue = plan_of("small").config.catalogue
    assert len(set(places)) == len(places) == len(catalogue.products)
    sections = [f"{i} {name}" for i, name in enumerate(catalogue.sections, 1)]
    assert sorted({section for section, _ in places}) == sections
    ordered = [label for section, label in sorted(places) if section.endswith("Equal size and budget")]
    assert ordered == [
        "01 Figure 1 · equal total size: test loss against training cost",
        "02 Table 4 · test loss at equal budget and total size",
        "03 Documents won, and intervals over their sources (table)",
        "04 Table 9 · external corpus, frozen checkpoints",
    ]
    assert all(product.caption.endswith((".", "?")) for product in PRODUCTS)


@pytest.mark.parametrize(
    "text", ["a|b", "*x*", "_x_ and n_pert=16", "<b>bold</b>", "`code`", r"a\b", "**a** [b](c)", "&lt; &x"]
)
def test_a_label_stands_in_markdown_as_it_was_given(text):
    """Rendered by a Markdown parser, with its extension for tables, as on GitHub."""
    made = Table((text, "value"), [(Cell(text), Cell("1")), (Cell(text, "paper"), Cell("2"))]).markdown("Title")
    page = MarkdownIt("commonmark").enable("table").render(made)
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", page)]
    assert cells == [text, "value", text, "1", f"<em>{text}</em>", "2"]
