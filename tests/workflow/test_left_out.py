"""A campaign that leaves out products of the reference campaign: a study of one's own need not repeat the paper."""

import json
import re

import pytest

from soma import layout
from soma.catalogue import CLAIMS, MEASUREMENTS, PRODUCTS, SUMMARIES, Catalogue
from soma.config.campaign import BASE, merge, merged, resolve
from soma.config.products import Products
from soma.plan import make_plan
from tests.project import ROOT
from tests.short_campaign import OPTIONAL


@pytest.fixture(scope="module")
def small():
    return merged(ROOT / BASE)


@pytest.mark.parametrize("left_out", [[name] for name in OPTIONAL] + [OPTIONAL], ids=lambda names: "+".join(names[:2]))
def test_what_is_planned_shown_and_judged_rests_on_products_that_are_given(small, left_out):
    plan = make_plan(resolve(merge(small, {"products": dict.fromkeys(left_out)})))
    catalogue = plan.config.catalogue
    entries = [*catalogue.summaries.values(), *catalogue.products, *catalogue.claims]
    made = {layout.rows(name) for name in (*catalogue.measurements, *catalogue.summaries, "costs", "ngram-losses")}
    made |= {layout.rows("tuning-test")} if "tuning" not in left_out else set()
    for entry in entries:
        rows = [file for file in layout.files(entry.reads, plan) if file.startswith("measurements/")]
        assert made.issuperset(rows), entry.name
    shown = {product.name for product in catalogue.products}
    assert all(shown.issuperset(claim.shown) for claim in catalogue.claims)
    measured = {entry.product for entry in catalogue.measurements.values()}
    assert not measured & set(left_out)


def test_every_product_has_something_that_goes_with_it():
    whole = Catalogue(Products.model_fields)
    assert (whole.measurements, whole.summaries) == (MEASUREMENTS, SUMMARIES)
    assert (whole.products, whole.claims) == (PRODUCTS, CLAIMS)
    for name in OPTIONAL:
        fewer = Catalogue(Products.model_fields.keys() - {name})
        kinds = ("measurements", "summaries", "products")
        assert sum(len(getattr(fewer, k)) for k in kinds) < sum(len(getattr(whole, k)) for k in kinds), name


def test_the_comparison_alone_runs_to_its_page(comparison):
    assert {"train_expert_with_leg", "evaluate"} <= comparison.planned.keys()
    assert {"measure", "choose", "evaluate_chosen"}.isdisjoint(comparison.planned)
    results = comparison.project.folder / "results/comparison"
    assert {folder.name for folder in (results / "runs").iterdir()} == {
        "soma-n2-s0", "spsa-n1-p8-s0", *(folder.name for folder in (results / "runs").glob("seed*"))
    }  # fmt: skip
    catalogue = Catalogue({"fixed_size", "rates"})
    for kind, products in (("tables", catalogue.tables), ("figures", catalogue.figures)):
        assert {path.stem for path in (results / kind).iterdir()} == products.keys()
    page, first = (results / "index.html").read_text(), (results / "README.md").read_text()
    for text, kept, gone in ((page, "Table 4", "Figure 16"), (first, "C1a", "C16")):
        assert kept in text
        assert gone not in text
    numbers = json.loads((results / "numbers.json").read_text())
    assert numbers["controls"] == {}
    assert re.fullmatch(r"\d+ jobs done in .+", comparison.said[-4])
    assert re.fullmatch(r"where the jobs' time went: (\w+ .+? \(\d+%\), ){4}others .+", comparison.said[-3])
    assert comparison.said[-2:] == [f"claims: {numbers['counts']['text']}", "read: results/comparison/index.html"]
    assert not comparison.project.planned(comparison.config)
