"""The catalogue: every entry leads to a function and to rows, and no number of the paper is typed in the source."""

import ast
import inspect
from importlib import import_module

import pytest
import yaml

from soma.catalogue import CLAIMS, CONTROLS, FIGURES, MEASUREMENTS, PRODUCTS, SUMMARIES, TABLES, rows_of
from soma.config.products import Products
from soma.report.paper import PaperValues
from tests.project import ROOT

PAPER = ROOT / "config/paper_values.yaml"
MADE_ELSEWHERE = {"costs", "tuning-test", "ngram-losses"}
"""Rows that a rule of their own makes: `summarise_costs` and `evaluate_chosen`."""
ENTRIES = [
    *(("soma.analysis", entry) for entry in (*SUMMARIES.values(), *CLAIMS)),
    *(("soma.report.tables", entry) for entry in TABLES.values()),
    *(("soma.report.figures", entry) for entry in FIGURES.values()),
]


def name_of(entry) -> str:
    return f"{type(entry).__name__}-{entry.name}" if not isinstance(entry, str) else ""


@pytest.mark.parametrize(("package", "entry"), ENTRIES, ids=name_of)
def test_an_entrys_function_takes_what_it_reads(package, entry):
    module, function = entry.function.split(".")
    parameters = list(inspect.signature(getattr(import_module(f"{package}.{module}"), function)).parameters)
    assert parameters[0] == "plan"
    before = 2 if package.startswith("soma.report") else 1
    assert parameters[1:before] == ["paper"][: before - 1]
    assert len(parameters) == before + len(entry.reads)


def test_all_rows_that_are_read_are_made_and_all_that_are_made_are_read():
    read = rows_of(r for entry in (*SUMMARIES.values(), *PRODUCTS, *CLAIMS) for r in entry.reads)
    assert read == MEASUREMENTS.keys() | SUMMARIES.keys() | MADE_ELSEWHERE
    assert not MEASUREMENTS.keys() & SUMMARIES.keys()


def test_measurements_are_of_products_of_the_configuration():
    for measurement in MEASUREMENTS.values():
        assert measurement.product in Products.model_fields
        assert import_module(f"soma.measurements.{measurement.name.replace('-', '_')}").measure


def test_claims_are_shown_by_products_that_read_their_rows():
    products = {product.name: product for product in PRODUCTS}
    for claim in CLAIMS:
        assert claim.shown
        for name in claim.shown:
            assert name in products, (claim.name, name)
        families = {products[name].function.split(".")[0] for name in claim.shown}
        assert claim.function.split(".")[0] in families, claim.name


def test_names_are_unique_and_texts_complete():
    for kind in (TABLES, FIGURES):
        assert len({product.title for product in kind.values()}) == len(kind)
    # The paper's claims 1 and 2 name two baselines, which are judged apart.
    assert [claim.name for claim in CLAIMS] == ["C1a", "C1b", "C2a", "C2b", *(f"C{n}" for n in range(3, 17))]
    assert list(CONTROLS) == [f"B{n}" for n in range(1, len(CONTROLS) + 1)]
    paper = PaperValues(PAPER)
    for claim in CLAIMS:
        assert "{" not in paper.text(claim.text) + paper.text(claim.paper)


def numbers(value) -> set[float]:
    if isinstance(value, dict | list):
        return {n for part in (value.values() if isinstance(value, dict) else value) for n in numbers(part)}
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def digits(value: float) -> int:
    return len(f"{value:.10g}".split("e")[0].replace(".", "").strip("0"))


def test_no_number_of_the_paper_is_typed_in_the_source():
    """Losses, ratios, times and the like; not the sizes by which its models are named, such as N = 256."""
    reported = {n for n in numbers(yaml.safe_load(PAPER.read_text())) if digits(n) >= 3 and not n.is_integer()}
    assert 1.76 in reported
    typed = [
        (path.name, node.lineno, node.value)
        for folder in ("report", "analysis", "commands", "steps")
        for path in (ROOT / "src/soma" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and node.value in reported
        and path.name != "style.py"  # 0.995 is a place there
    ]
    assert typed == []
    catalogue = (ROOT / "src/soma/catalogue.py").read_text()
    assert [n for n in reported if f"{n:g}" in catalogue] == []
