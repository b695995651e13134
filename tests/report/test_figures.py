"""Figures on invented rows: what they write, that it repeats, and the cases with little or much to show."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.text import Text

from soma.config import load, merge, read_yaml, resolve
from soma.plan import Plan, make_plan
from soma.report.paper import PaperValues
from soma.report.place import _spread
from soma.steps import report
from tests.report.fabricated import Rows

CONFIG = Path(__file__).parent.parent.parent / "config"
PAPER = CONFIG / "paper_values.yaml"
MEASURED = (
    "figure1", "figure4", "figure5", "figure6", "figure7", "figure8", "figure9", "figure10", "figure11", "figure13",
    "figure14", "figure15", "figure16", "figure17", "precision", "sizes", "estimators",
)  # fmt: skip
# A column of each figure's CSV with the measurement that it must hold unchanged.
VALUES = {
    "figure4": ("paired", "difference"),
    "figure7": ("sweep", "elapsed_seconds"),
    "figure8": ("sweep", "device_seconds"),
    "figure9": ("ablation", "difference"),
    "figure11": ("objective", "error"),
    "figure14": ("best-counts", "best"),
    "figure16": ("active-losses", "loss"),
    "figure17": ("active", "gain"),
    "precision": ("precision", "error"),
    "sizes": ("sizes", "loss"),
    "estimators": ("estimators", "relative_variance"),
    "figure6": ("serving", "loss"),
    "figure15": ("serving", "loss"),
}


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
    "controls": {"random": "soma-n2-random", "sizes": ["spsa-n1-d16"], "single": "spsa-n1-d16"},
    "estimators": {"arms": ["est-sparse"]},
}


def draw(plan: Plan, name: str, output: Path, monkeypatch, **changed) -> pd.DataFrame:
    """Draw from invented rows as the workflow's step does; returns the CSV."""
    rows = Rows(plan)
    monkeypatch.setattr(report, "load_plan", lambda _: plan)
    monkeypatch.setattr(pd, "read_parquet", lambda path: changed.get(path.stem, rows)(path.stem))
    report.write_figure(name, Path(), Path(), PAPER, output)
    return pd.read_csv(output / f"{name}.csv") if (output / f"{name}.csv").stat().st_size > 1 else pd.DataFrame()


@pytest.mark.parametrize("name", MEASURED)
def test_a_figure_is_written_with_what_it_draws(name, tmp_path, monkeypatch):
    plan = plan_of("small")
    drawn = draw(plan, name, tmp_path, monkeypatch)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{suffix}" for suffix in ("svg", "png", "csv")}
    text = (tmp_path / f"{name}.svg").read_text()
    assert "campaign small: 140,654 parameters, 5e13 operations" in text
    if name in VALUES:
        kind, column = VALUES[name]
        expected = set(Rows(plan)(kind)[column].dropna().round(9))
        if "source" in drawn:
            drawn = drawn[drawn["source"] == "measured"]
        found = set(drawn[column].dropna().round(9))
        assert found
        assert found <= expected
        assert len(expected - found) == (name == "figure4")  # the difference of both phases is a table's


@pytest.mark.parametrize("name", MEASURED)
def test_one_seed_and_one_arm_are_enough(name, tmp_path, monkeypatch):
    draw(plan_of("single"), name, tmp_path, monkeypatch)
    assert ">TOY<" in (tmp_path / f"{name}.svg").read_text()


@pytest.mark.parametrize("name", ["figure1", "figure5", "figure10", "figure14", "sizes"])
def test_the_same_rows_give_the_same_bytes(name, tmp_path, monkeypatch):
    for folder in ("a", "b"):
        draw(plan_of("toy"), name, tmp_path / folder, monkeypatch)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_figure_1_holds_the_papers_points_only_at_the_papers_scale(tmp_path, monkeypatch):
    small = draw(plan_of("small"), "figure1", tmp_path, monkeypatch)
    assert set(small["source"]) == {"measured"}
    full = draw(plan_of("paper"), "figure1", tmp_path, monkeypatch)
    theirs = full[full["source"] == "paper"].set_index("arm")
    assert theirs.loc["soma-n2", "loss"] == 1.76
    assert theirs.loc["soma-n2", "operations"] == plan_of("paper").arm_runs["soma-n2"][0].operations(65000)


def test_the_papers_points_are_where_units_and_n_are_the_same(tmp_path, monkeypatch):
    given = PaperValues(PAPER).tables
    late = draw(plan_of("small"), "figure4", tmp_path, monkeypatch).query("source == 'paper' and phase == 'late'")
    assert sorted(-late["difference"]) == sorted(given["figure4"]["late"]["paired_differences"])
    head = draw(plan_of("small"), "figure9", tmp_path, monkeypatch).query("source == 'paper'")
    assert (list(head["arm"]), list(head["difference"])) == (["bptt-decoder-head"], [-0.029])
    variance = draw(plan_of("small"), "figure10", tmp_path, monkeypatch).query("source == 'paper'")
    assert list(variance["variance"]) == [268, 268 * 118]
    assert "paper" not in set(draw(plan_of("toy"), "figure10", tmp_path, monkeypatch)["source"])  # another n_pert


def test_what_nothing_cheaper_beats_is_marked(tmp_path, monkeypatch):
    drawn = draw(plan_of("small"), "figure13", tmp_path, monkeypatch)
    assert not drawn.duplicated(["n_pert", "batch", "update"]).any()
    for row in drawn.itertuples():
        beaten = ((drawn["operations"] <= row.operations) & (drawn["loss"] < row.loss)).any()
        assert row.cheapest == (not beaten)


def test_no_pairs_and_no_split_leave_a_panel_that_says_so(tmp_path, monkeypatch):
    plan = plan_of("toy")
    draw(plan, "figure17", tmp_path, monkeypatch, active=lambda _: pd.DataFrame({"part": ["active"], "run": ["r"]}))
    assert "no pairs were measured" in (tmp_path / "figure17.svg").read_text()
    rows = Rows(plan).objective()
    draw(plan, "figure11", tmp_path, monkeypatch, objective=lambda _: rows[rows["part"] == "variance"])
    assert "not measured in this campaign" in (tmp_path / "figure11.svg").read_text()


def test_labels_beside_an_axis_do_not_overlap():
    heights = [0.05, 0.1, 0.05, 0.05]
    centres = _spread(pd.Series([0.5, 0.5, 0.51, 0.99]).to_numpy(), heights)
    gaps = [(b - a) - (h + k) / 2 for a, b, h, k in zip(centres, centres[1:], heights, heights[1:], strict=False)]
    assert min(gaps) > -1e-12
    assert centres[-1] + heights[-1] / 2 <= 1
    crowded = _spread(pd.Series([0.2] * 30).to_numpy(), [0.05] * 30)  # higher than the axis: sticks out evenly
    assert crowded[0] + crowded[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["figure1", "figure6", "figure7", "figure13", "figure15", "figure16", "sizes"])
def test_long_labels_neither_overlap_nor_leave_the_figure(name, tmp_path, monkeypatch):
    plan, closed = plan_of("small"), []
    words = "with a label that is too long for one line"
    arms = {arm: plan.arms[arm].model_copy(update={"label": f"{arm} {words}"}) for arm in plan.arms}
    named = {arm: arms.get(arm, value) for arm, value in plan.config.arms.items()}
    plan = replace(plan, arms=arms, config=plan.config.model_copy(update={"arms": named}))
    monkeypatch.setattr(plt, "close", closed.append)
    draw(plan, name, tmp_path, monkeypatch)
    monkeypatch.undo()
    figure = closed[0]
    figure.canvas.draw()
    texts = [text for axis in figure.axes for text in axis.texts if text.get_text()]
    boxes = [Text.get_window_extent(text, figure.canvas.get_renderer()) for text in texts]  # without the leader
    plt.close(figure)
    assert len(boxes) > 2
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
