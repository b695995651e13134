"""Figures on invented rows: what they write, that it repeats, and the cases with little or much to show."""

import html
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from soma.analysis import reading
from soma.catalogue import FIGURES
from soma.config.campaign import load, merge, read_yaml, resolve
from soma.plan import Plan, make_plan
from soma.report.colours import arm_looks, count_looks
from soma.report.figures import overlay
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import _spread
from soma.steps import figure as step
from tests.report.fabricated import Rows

CONFIG = Path(__file__).parent.parent.parent / "config"
PAPER = CONFIG / "paper_values.yaml"
# The footers of figures of one size, of a sweep over sizes, and of arms with nearly the same size.
FOOTERS = {
    "figure11": "campaign small: 45,376 parameters, 7.3e12 operations",
    "figure7": "campaign small: 17,488 to 156,928 parameters, 9.13e11 to 5.84e13 operations",
    "figure1": "campaign small: 17,488 to 143,049 parameters, 4.99e13 to 5e13 operations",
}
# A column of each figure's CSV with the measurement that it must hold unchanged.
VALUES = {
    "figure4": ("paired", "difference"),
    "figure7": ("sweep", "elapsed_seconds"),
    "figure8": ("sweep", "device_seconds"),
    "figure11": ("objective", "error"),
    "figure14": ("best-counts", "best"),
    "figure16": ("active-losses", "loss"),
    "precision": ("precision", "error"),
    "sizes": ("sizes", "loss"),
    "estimators": ("estimators", "relative_variance"),
    "figure15": ("serving-at-one-cost", "token_operations"),
}


# Figures for which the paper gives no points, or points on other axes.
WITHOUT_POINTS = (
    "figure5",
    "figure6",
    "figure9",
    "figure14",
    "figure17",
    "precision",
    "sizes",
    "estimators",
    "horizon",
    "frontier",
)
# Figures of a study beyond the paper are drawn of the campaign that is made for them.
STUDIES = {"frontier": "frontier"}


@cache
def plan_of(campaign: str) -> Plan:
    overlays = {"small": [], "single": [CONFIG / "toy.yaml"]}.get(campaign, [CONFIG / f"{campaign}.yaml"])
    if campaign != "single":
        return make_plan(load(CONFIG / "config.yaml", *overlays))
    values = merge(read_yaml(CONFIG / "config.yaml"), read_yaml(overlays[0]))
    return make_plan(resolve(merge(values, {"products": SINGLE}), where="a test"))


# One N, one value on each axis, one arm of each kind.
SINGLE = {
    "fixed_size": {"against": ["spsa-n1-p32"], "also": []},
    "sweep": {"experts": [4], "n_pert": [8], "batch": [16]},
    "variance": {"arms": ["soma-n4"], "n_pert": [4]},
    "reference": {"arms": ["soma-n4"], "settings": [[8, 16]]},
    "active": {"arms": ["soma-n4"], "pairs": "soma-n4"},
    "inference": {"arms": ["soma-n2"], "many": "soma-n2", "few": "soma-n2"},
    "controls": {"random": "soma-n2-random", "sizes": ["spsa-n1-d16"]},
    "estimators": {"arms": ["est-sparse"]},
}


def draw(
    plan: Plan, name: str, output: Path, monkeypatch, images: bool = False, **changed
) -> tuple[Figure, pd.DataFrame]:
    """Draw from invented rows as the workflow's step does, with or without the images, which take most of the time.

    Returns:
        The figure and its CSV.
    """
    rows, figures, save = Rows(plan), list[Figure](), Figure.savefig

    def keep(figure: Figure, path: Path, **options: object) -> None:
        figures.append(figure)
        path.touch()
        if images:
            save(figure, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(step, "load_plan", lambda _: plan)
        patch.setattr(reading, "read_rows", lambda path: changed.get(path.stem, rows)(path.stem))
        patch.setattr(Figure, "savefig", keep)
        step.figure(name, Path(), Path(), PAPER, output)
    table = output / f"{name}.csv"
    return figures[0], pd.read_csv(table) if table.stat().st_size > 1 else pd.DataFrame()


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def assert_own_colours(figure: Figure, plan: Plan) -> None:
    """A text that names an arm or an N has its colour, which is the same in every figure."""
    looks, product = arm_looks(plan), plan.config.products.ablation
    own = {f"N={n}": {look["color"]} for n, look in count_looks(plan).items()}
    if product:
        own["base"] = {looks[product.base]["color"]}
    for name, arm in plan.arms.items():
        own.setdefault(arm_label(arm), set()).add(looks[name]["color"])
    texts = [text for axes in figure.axes for text in axes.texts]
    named = {text.get_text().replace("\n", " "): to_hex(text.get_color()) for text in texts}
    assert [name for name, colour in named.items() if colour not in {to_hex(c) for c in own.get(name, {colour})}] == []


def assert_readable(figure: Figure) -> None:
    """All text lies in the figure and none on another, and the scales along its left and lower side are named."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for text in figure.texts if not text.get_alpha()]  # without the watermark
    for axes in figure.axes:
        texts += [axes._left_title, *axes.texts]
        where = axes.get_subplotspec()
        for axis, outer in ((axes.xaxis, where.is_last_row()), (axes.yaxis, where.is_first_col())):
            axis.get_tightbbox(renderer)  # puts its texts where they will be
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            numbers = [tick for tick in ticks if tick.get_text()[-1:].isdigit()]
            assert axis.label.get_text() or not (outer and axes.axison and numbers)
            texts += [axis.label, axis.offsetText, *ticks] if axes.axison else []
    texts = [text for text in texts if text.get_visible() and text.get_text()]
    boxes = []
    for text in texts:
        if isinstance(text, Annotation):
            text.update_positions(renderer)
        boxes.append(Text.get_window_extent(text, renderer))  # without the leader of an annotation
    ends = np.array([box.extents for box in boxes])  # [texts, (x0, y0, x1, y1)]
    outside = (ends < 0).any(axis=1) | (ends[:, 2:] > figure.bbox.size).any(axis=1)
    assert not [text for text, out in zip(texts, outside, strict=True) if out]
    common = np.minimum(ends[:, None, 2:], ends[:, 2:]) - np.maximum(ends[:, None, :2], ends[:, :2])  # of each pair
    overlaps = np.argwhere(np.triu((common >= figure.dpi / 50).all(axis=-1), 1))
    assert not [(texts[i], texts[j]) for i, j in overlaps]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_with_what_it_draws(name, tmp_path, monkeypatch):
    campaign = STUDIES.get(name, "small")
    plan = plan_of(campaign)
    figure, drawn = draw(plan, name, tmp_path, monkeypatch, images=True)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{suffix}" for suffix in ("svg", "png", "csv")}
    text = (tmp_path / f"{name}.svg").read_text()
    assert FOOTERS.get(name, f"campaign {campaign}: ") in text
    assert_readable(figure)
    assert_own_colours(figure, plan)
    described = html.unescape(re.search("<dc:description>(.*)</dc:description>", text, re.S)[1])
    assert described.startswith(FIGURES[name].title.rstrip("?"))
    assert all(" ".join(axes.get_xlabel().split()) in described for axes in figure.axes if axes.axison)
    if "source" in drawn:
        # Only these of the paper's points have the same size and text.
        assert ("paper" in set(drawn["source"])) == (name in ("figure4", "figure9", "figure11"))
        drawn = drawn[drawn["source"] == "measured"]
    if name in VALUES:
        kind, column = VALUES[name]
        expected = set(Rows(plan)(kind)[column].dropna().round(9))
        found = set(drawn[column].dropna().round(9))
        assert found
        assert found <= expected
        assert len(expected - found) == (name == "figure4")  # the difference of both phases is a table's


@pytest.mark.parametrize("campaign", ["single", "toy", "second-edition", "paper"])
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_readable_with_little_and_with_much_to_show(name, campaign, tmp_path, monkeypatch):
    if campaign in ("second-edition", "paper"):
        campaign = STUDIES.get(name, campaign)
    figure, drawn = draw(plan_of(campaign), name, tmp_path, monkeypatch)
    assert_readable(figure)
    assert_own_colours(figure, plan_of(campaign))
    assert ("TOY" in words(figure)) == (campaign in ("single", "toy"))
    if campaign == "paper":
        assert ("source" in drawn and "paper" in set(drawn["source"])) == (name not in WITHOUT_POINTS)


@pytest.mark.parametrize("name", ["figure1", "figure5"])
def test_the_same_rows_give_the_same_bytes(name, tmp_path, monkeypatch):
    for folder in ("a", "b"):
        draw(plan_of("single"), name, tmp_path / folder, monkeypatch, images=True)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_papers_points_are_what_it_reports():
    paper, plan = PaperValues(PAPER), plan_of("paper")
    curves = pd.DataFrame(overlay.fixed_size(plan, paper)).drop_duplicates("arm").set_index("arm")
    assert curves.loc["soma-n2", "loss"] == 1.76
    assert curves.loc["soma-n2", "operations"] == plan.arm_runs["soma-n2"][0].operations(65000)
    assert curves["difference"].round(9).drop("soma-n2").to_dict() == {
        "spsa-n1-p64": -0.24, "spsa-n1-p256": -0.35, "spsa-n1-p1024": -0.24, "eggroll-n1": -0.45, "soma-n8": 0.05,
        "soma-n256": 0.08,
    }  # fmt: skip
    served = pd.DataFrame(overlay.served(plan, paper)).set_index("arm")
    assert list(served["loss"]) == [2.0, 1.76, 1.71, 1.68]
    # "N = 256 uses 51.3 x fewer operations than N = 2"
    assert served["token_operations"]["soma-n2"] / served["token_operations"]["soma-n256"] == pytest.approx(51.3, 0.01)
    ends = pd.DataFrame(overlay.swept(plan, paper)).groupby(["axis", "value"]).last()
    assert ends["loss"].to_dict() == {
        ("experts", 1): 1.86, ("experts", 256): 1.72, ("n_pert", 64): 1.77, ("n_pert", 1024): 1.69
    }  # fmt: skip
    assert ends.loc[("n_pert", 64), "device_seconds"] == 8 * ends.loc[("n_pert", 64), "elapsed_seconds"] == 1420 * 3600
    assert [point["variance"] for point in overlay.variance(plan, paper)] == [268, 268 * 118]
    assert [point["operations"] for point in overlay.allocated(plan, paper)] == [2e18, 4e18, 8e18]
    assert [(point["k"], point["loss"]) for point in overlay.active(plan, paper)] == [(4, 1.78), (4, 1.72), (12, 1.707)]


def test_figure_4_shows_both_losses_and_the_papers_differences_of_both_phases(tmp_path, monkeypatch):
    given, plan = PaperValues(PAPER).tables["figure4"], plan_of("small")
    figure, small = draw(plan, "figure4", tmp_path, monkeypatch)
    theirs = small.query("source == 'paper'")
    for phase, key in (("early", "paired_reductions"), ("late", "paired_differences")):
        own = theirs[theirs["phase"] == phase]
        assert sorted(-own["difference"]) == sorted(given[phase][key])
        assert set(own["update"]) == {given[phase]["updates"]}
    rows, axes = Rows(plan).paired(), figure.axes
    for column, phase in enumerate(("early", "late")):
        own = rows[rows["phase"] == phase]
        lines = [[*line.get_ydata()] for line in axes[column].lines]
        assert lines == [[*own["independent"]], [*own["summed"]]]
        low, high = axes[2 + column].get_xlim()
        assert low < own["update"].min()
        assert given[phase]["updates"] < high
    assert "N = 4, width = 16, n = 3 seeds" in words(figure)


def test_figure_10_says_why_the_variance_hardly_falls_where_bodies_hardly_shrink(tmp_path, monkeypatch):
    plan = plan_of("small")
    figure, _ = draw(plan, "figure10", tmp_path, monkeypatch)
    text = " ".join(reversed(words(figure).splitlines()))  # a note's lines are drawn from the last up
    bodies = [plan.arm_runs[arm][0].model.size for arm in ("soma-n8", "soma-n16")]
    assert f"from N=8 to N=16 they fall {bodies[0] / bodies[1]:.2f} times and the variance" in text
    assert "N=16 shares one frozen head" in text
    assert "Means over 2 to 3 runs (n, seeds) and 2 chunks" in text
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks[-1] == "16\n15\n8k"


def test_a_prediction_of_figure_11_belongs_to_the_points_of_its_run(tmp_path, monkeypatch):
    plan = plan_of("small")
    rows = Rows(plan).objective()
    last = rows["run"] == rows["run"].iloc[-1]
    rows.loc[last, ["predicted", "nu"]] *= 2.0
    figure, _ = draw(plan, "figure11", tmp_path, monkeypatch, objective=lambda _: rows)
    drawn = [[*line.get_ydata()] for line in figure.axes[2].lines]
    for _, own in rows[rows["part"] == "split"].groupby(["group", "run"]):
        assert [*own["predicted"]] in drawn
        assert [*own["error"]] in drawn
    assert "ν, is 8.3 to 16.6" in words(figure).replace("\n", " ")


def test_figure_1_shows_every_arm_the_small_monoliths_and_the_references(tmp_path, monkeypatch):
    plan = plan_of("small")
    figure, drawn = draw(plan, "figure1", tmp_path, monkeypatch)
    gains = Rows(plan).differences().set_index("other")["difference"]
    assert drawn.set_index("arm")["difference"].dropna().to_dict() == gains.to_dict()
    left, middle, below = figure.axes
    low, high = left.get_ylim()
    ends, arms = drawn.drop_duplicates("arm", keep="last").set_index("arm"), plan.config.products.fixed_size.arms
    assert {*arms, *plan.config.products.controls.sizes} == set(ends.index)
    assert ends["loss"].between(low, high).all()  # EGGROLL too
    references = Rows(plan).ngrams().query("set == 'test'")
    for axis in (left, middle):
        levels = {line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == "--"}
        assert levels == set(references["loss"])
    named = "\n".join(text.get_text() for text in middle.texts)
    for label in ("unigram: ", "bigram: ", "trigram: ", "EGGROLL, population 256", "SPSA N=1, width 28"):
        assert label in named
    assert "SPSA N=1, width 28: 28 (2)" in words(figure).replace("\n", " ")
    # Differences have a panel as wide as both, in which one far away is written at the edge.
    assert below.get_position().x1 > middle.get_position().x0
    assert "◂ −0.48" in words(figure)
    assert -0.2 < below.get_xlim()[0] < below.get_xlim()[1] < 0.2
    assert "SOMA N=2, n_pert=16" not in [tick.get_text() for tick in below.get_yticklabels()]


def test_an_arm_looks_the_same_in_every_figure():
    plan = plan_of("small")
    looks, counts = arm_looks(plan), count_looks(plan)
    fixed = plan.config.products.fixed_size.arms
    assert len({(looks[arm]["color"], looks[arm]["marker"]) for arm in fixed}) == len(fixed)
    assert len({look["color"] for look in counts.values()}) == len(counts)
    for arm in ("spsa-n1-p16", "soma-n2", "soma-n8", "soma-n16"):
        assert looks[arm] == counts[plan.arms[arm].experts]


def test_what_nothing_cheaper_beats_is_marked(tmp_path, monkeypatch):
    _, drawn = draw(plan_of("small"), "figure13", tmp_path, monkeypatch)
    assert not drawn.duplicated(["n_pert", "batch", "update"]).any()
    spans = drawn.groupby(["n_pert", "batch"])["operations"].agg(["min", "max"])
    for row in drawn.itertuples():
        beaten = ((drawn["operations"] <= row.operations) & (drawn["loss"] < row.loss)).any()
        covering = ((spans["min"] <= row.operations) & (row.operations <= spans["max"])).sum()
        assert row.cheapest == (not beaten and covering > 1)
    assert drawn["cheapest"].any()


def test_figure_6_shows_the_lowest_loss_against_throughput_and_time_in_two_quantities(tmp_path, monkeypatch):
    plan = plan_of("small")
    figure, drawn = draw(plan, "figure6", tmp_path, monkeypatch)
    assert [axis.get_xlabel().split(" of ")[0] for axis in figure.axes] == [
        "idealised elapsed time", "aggregate device time", "scored bytes per second"
    ]  # fmt: skip
    assert [*drawn["arm"].unique()] == [*plan.config.products.inference.arms]
    losses = Rows(plan).losses().query("set == 'validation'")
    for arm, own in drawn.groupby("arm"):
        assert [*own["loss"].round(9)] == [*losses.loc[losses["arm"] == arm, "loss"].round(9)]
        assert [*own.index[own["lowest"]]] == [own["loss"].idxmin()]
        assert (own["device_seconds"] / own["elapsed_seconds"]).round(9).unique() == [plan.arms[arm].experts]
        assert (own["slowest"] <= own["bytes_per_second"]).all()
    points = {float(line.get_xdata()[0]) for line in figure.axes[2].lines}
    assert points == set(drawn["bytes_per_second"])


def test_figure_16_separates_fixed_width_from_equal_size(tmp_path, monkeypatch):
    figure, drawn = draw(plan_of("toy"), "figure16", tmp_path, monkeypatch)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Fixed width, after 20 updates", "Equal total size, after 42 to 70 updates"
    ]  # fmt: skip
    assert set(drawn["arm"]) == {"sweep-n2", "sweep-n4", "soma-n2", "soma-n4"}


def test_figure_17_says_when_a_p_value_is_the_smallest_there_is(tmp_path, monkeypatch):
    plan = plan_of("small")
    figure, drawn = draw(plan, "figure17", tmp_path, monkeypatch)
    text = words(figure).replace("\n", " ")
    assert text.count("p ≤ 1e-4, the smallest that 10,000 permutations can give") == 2
    assert "120 pairs for each seed, points of 10" in text
    assert drawn.groupby("pairs").size().to_dict() == {1: 240, 10: 24}
    rows = Rows(plan).active()
    more = rows.assign(p_value=rows["p_value"] * 300)
    figure, _ = draw(plan, "figure17", tmp_path, monkeypatch, active=lambda _: more)
    assert words(figure).count("p = 0.03") == 2


def test_no_pairs_and_no_split_leave_a_panel_that_says_so(tmp_path, monkeypatch):
    plan, nothing = plan_of("toy"), pd.DataFrame({"part": ["active"], "run": ["r"]})
    figure, _ = draw(plan, "figure17", tmp_path, monkeypatch, active=lambda _: nothing)
    assert "no pairs were measured" in words(figure)
    rows = Rows(plan).objective()
    figure, _ = draw(plan, "figure11", tmp_path, monkeypatch, objective=lambda _: rows[rows["part"] == "variance"])
    assert "not measured in this campaign" in words(figure)


def test_labels_beside_an_axis_do_not_overlap():
    heights = [0.05, 0.1, 0.05, 0.05]
    centres = _spread(pd.Series([0.5, 0.5, 0.51, 0.99]).to_numpy(), heights)
    gaps = [(b - a) - (h + k) / 2 for a, b, h, k in zip(centres, centres[1:], heights, heights[1:], strict=False)]
    assert min(gaps) > -1e-12
    assert centres[-1] + heights[-1] / 2 <= 1
    crowded = _spread(pd.Series([0.2] * 30).to_numpy(), [0.05] * 30)  # higher than the axis: sticks out evenly
    assert crowded[0] + crowded[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["figure1", "figure15", "figure16", "sizes"])
def test_long_labels_neither_overlap_nor_leave_the_figure(name, tmp_path, monkeypatch):
    plan = plan_of("small")
    more = "with a label that is too long for one line"
    arms = {arm: plan.arms[arm].model_copy(update={"label": f"{arm} {more}"}) for arm in plan.arms}
    named = {arm: arms.get(arm, value) for arm, value in plan.config.arms.items()}
    plan = replace(plan, arms=arms, config=plan.config.model_copy(update={"arms": named}))
    figure, _ = draw(plan, name, tmp_path, monkeypatch)
    assert "too long" in words(figure).replace("\n", " ")
    assert_readable(figure)


def test_figure_14_is_drawn_where_no_budgets_are_covered_twice(tmp_path, monkeypatch):
    nothing = {"best-counts": lambda _: pd.DataFrame()}
    figure, drawn = draw(plan_of("toy"), "figure14", tmp_path, monkeypatch, **nothing)
    assert drawn.empty
    assert "campaign toy" in words(figure)
