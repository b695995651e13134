"""Each claim's differences come from the right measured rows, and are negative if the claim holds."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from soma.analysis.claims import counted, verdicts
from soma.analysis.verdict import judge
from soma.catalogue import CLAIMS
from soma.config.campaign import load
from soma.plan import make_plan
from tests.analysis.invented import ROOT

PLAN = make_plan(load(ROOT / "config/config.yaml"))
P = PLAN.config.products
SIGNS = (1.0, 1.01, 0.99)
"""Relative differences of three seeds that agree."""


def compared(mean: float, **where) -> dict:
    """Return a row of `contrasts.contrast` whose intervals lie far on the same side of zero as its mean."""
    ends = dict.fromkeys(("low", "seed_low"), mean - abs(mean) / 20) | dict.fromkeys(
        ("high", "seed_high"), mean + abs(mean) / 20
    )
    return {"difference": mean, **ends, "seeds": 3, "run": "r", "interpolated": False, **where}


class Rows:
    """Return measurements of a campaign in which every claim holds (`side` 1), or its opposite (−1)."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, name: str) -> pd.DataFrame:
        return pd.DataFrame(getattr(self, name.replace("-", "_"))())

    def differences(self):
        own = {"set": ["test", "external"], "iterate": ["last", "average"]}
        # Averaged iterates, other sets and other arms have the opposite sign, and must not be read.
        for set_ in own["set"]:
            for iterate in own["iterate"]:
                for other in (*P.fixed_size.against, *P.fixed_size.also):
                    counts = iterate == "last" and other in P.fixed_size.against
                    mean = -0.1 * self.side * (1 if counts else -1)
                    yield compared(mean, set=set_, split="", iterate=iterate, other=other)
        yield compared(0.1 * self.side, set="validation", split="", iterate="last", other=P.fixed_size.against[0])

    def rates_of_arms(self):
        for arm in P.fixed_size.arms:
            yield {"arm": arm, "key": "lr", "reason": ""}

    def tuning_compared(self):
        for seed in (0, 1, 2):
            yield compared(0.04 * self.side, seed=seed)
        yield compared(-0.04 * self.side, seed=np.nan)  # of all seeds

    def objective(self):
        for seed, sign in enumerate(SIGNS):
            where = {"run": f"r{seed}", "experts": 4}
            measured = 4.0 * sign if self.side > 0 else 0.25 * sign
            yield where | {"part": "variance", "quantity": "ratio", "measured": measured, "predicted": 4.0}
            yield where | {"part": "variance", "quantity": "summed", "measured": 0.0, "predicted": 1.0}
            for group in (1, 2):
                for batch in (2, 8):
                    error = 8.2 * sign if self.side > 0 else 12.0 * sign
                    yield where | {"part": "split", "group": group, "batch": batch, "error": error, "predicted": 8.0}

    def paired(self):
        for phase in ("early", "late", "early minus late"):
            yield compared(0.1 * self.side, phase=phase)  # at an earlier milestone
            yield compared(-0.1 * self.side, phase=phase)

    def variance(self):
        for arm in P.variance.arms:
            for run, sign in zip(PLAN.arm_runs[arm], SIGNS, strict=False):
                for update, precision in ((0, "fp32"), (9, "fp64"), (9, "fp32")):
                    for n in P.variance.n_pert:
                        power = -1 if self.side > 0 else 1
                        asked = (update, precision) == (9, "fp32")
                        value = sign * (run.experts * n) ** float(power if asked else -power)
                        where = {"run": run.id, "update": update, "precision": precision, "n_pert": n}
                        yield where | {"variance": value, "grouped": value}

    def reference(self):
        for arm in P.reference.arms:
            for run, sign in zip(PLAN.arm_runs[arm], SIGNS, strict=False):
                for update in (0, 9):
                    side = self.side if update == 9 else -self.side
                    for n, batch in P.reference.settings if run.experts == 1 else P.reference.settings[:1]:
                        # More experts and directions lower the error, sequences less; a step costs n batch.
                        error = sign * (n * run.experts * batch**0.5) ** float(-side)
                        where = {"run": run.id, "update": update, "n_pert": n, "batch": batch}
                        yield where | {"error": error, "aggregate_seconds": sign * float(n * batch) ** side}

    def sweep_differences(self):
        for axis in ("experts", "n_pert", "batch", "aggregate"):
            yield compared(-0.1 * self.side, axis=axis, larger=4, smaller=1)
        yield compared(0.1 * self.side, axis="aggregate", larger=8, smaller=1) | {"seeds": 0}  # no common values

    def per_expert(self):
        yield compared(0.1 * self.side, experts=2, fewest=1)
        yield compared(-0.1 * self.side, experts=16, fewest=1)  # only the most experts are asked

    def inference(self):
        for arm in P.inference.arms:
            for run, sign in zip(PLAN.arm_runs[arm], SIGNS, strict=False):
                speed = (9.0 if arm == P.inference.many else 1.0) ** self.side
                yield {"run": run.id, "scored_bytes_per_second": speed * sign}

    def serving(self):
        end = PLAN.arm_runs[P.inference.many][0].updates
        yield compared(-0.03 * self.side, arm=P.inference.many, update=end)
        yield compared(0.03 * self.side, arm=P.inference.many, update=end - 1)  # only the end is asked
        yield {"arm": P.inference.few, "difference": np.nan, "update": end}

    def active_differences(self):
        for k, against in (("k=4", "k=1"), ("best k", "all 16")):
            yield compared(-0.01 * self.side, arm="soma-n16", experts=16, k=k, against=against)

    def active(self):
        for seed, sign in enumerate(SIGNS):
            yield {"part": "complementarity", "run": f"r{seed}", "experts": 16, "spearman": -0.5 * sign * self.side}
            yield {"part": "pairs", "run": f"r{seed}", "experts": 16, "spearman": 0.5}

    def ablation(self):
        yield compared(0.1 * self.side, group="base", arm=P.ablation.base)
        yield compared(-0.1 * self.side, group="partition", arm="bptt-random")

    def allocation(self):
        for arm in P.allocation.arms:
            yield compared(0.0, arm=arm, other=arm) | {"difference": np.nan}
        for i, (arm, other) in enumerate(itertools.combinations(P.allocation.arms, 2)):
            distance = 1e-5 if self.side > 0 else 0.1
            yield compared(distance * (-1) ** i, arm=arm, other=other)

    def backpropagation(self):
        for n in (1, 2):
            yield compared(0.5 * self.side, experts=n, operations=1e12)
            yield compared(-0.5 * self.side, experts=n, operations=2e12)
            yield {"experts": n, "operations": 3e12, "seeds": 0}


def evidence(rows) -> dict[str, list]:
    return {judged.claim: judged.differences for judged in verdicts(PLAN, rows)}


@pytest.mark.parametrize(("side", "verdict"), [(1, "reproduced"), (-1, "not reproduced")])
def test_every_claim_is_judged_by_its_own_rows(side, verdict):
    judged_claims = verdicts(PLAN, Rows(side))
    assert [judged.claim for judged in judged_claims] == [claim.name for claim in CLAIMS]
    for judged in judged_claims:
        supports = {d.name: d.support() for d in judged.differences}
        expected = "for" if side > 0 else "against"
        assert set(supports.values()) == {expected}, (judged.claim, supports)
        assert judge(judged.differences)[0] == verdict, judged.claim


def test_each_difference_names_what_it_compares_and_how_many_there_are():
    found = {claim: [d.name for d in differences] for claim, differences in evidence(Rows(1)).items()}
    spsa, eggroll = P.fixed_size.against[:-1], P.fixed_size.against[-1]
    assert found["C1a"] == found["C2a"] == [f"SOMA minus {arm}" for arm in spsa]
    assert found["C1b"] == found["C2b"] == [f"SOMA minus {eggroll}"]
    assert len(found["C4"]) == 2
    assert found["C5"] == [
        "independent minus summed, early", "independent minus summed, late", "the early difference minus the late one",
    ]  # fmt: skip
    assert found["C6"][0] == "variance at N=16 over N=1"
    assert len(found["C8"]) == 4
    assert len(found["C13"]) == 2
    assert found["C13"][0].startswith("1 summed: mean distance of the error at 2 splits from the predicted")
    assert len(found["C14"]) == math.comb(len(P.allocation.arms), 2)
    assert found["C16"] == ["BPTT minus zeroth order, N=1", "BPTT minus zeroth order, N=2"]


def test_what_tests_an_identity_is_told_from_what_tests_training():
    found = {id_: [d.theory for d in differences] for id_, differences in evidence(Rows(1)).items()}
    assert all(found["C4"])
    assert all(found["C13"])
    assert found["C6"] == [False, True]  # the fall with N is between trained ensembles, that in n_pert is 1 / n_pert
    assert not any(found["C5"] + found["C7"] + found["C8"])


def test_one_split_off_the_prediction_counts_against_it():
    def rows(name):
        out = Rows(1)(name)
        if name == "objective":
            off = (out["part"] == "split") & (out["batch"] == 8)
            out.loc[off, "error"] *= 1.5  # the smallest error stays where it was predicted
        return out

    assert {d.support() for d in evidence(rows)["C13"]} == {"against"}


def test_external_splits_are_differences_of_their_own():
    rows = Rows(1)
    both = pd.concat([rows("differences").assign(split=name) for name in ("validation", "test")])
    found = evidence(lambda name: both if name == "differences" else rows(name))["C2a"]
    assert len(found) == 2 * (len(P.fixed_size.against) - 1)
    assert found[0].name.endswith("(validation)")


def test_a_verdict_stands_only_if_the_rates_of_all_compared_arms_were_searched_for():
    assert not any(judged.superseded for judged in verdicts(PLAN, Rows(1)))
    unsearched = pd.DataFrame(
        {
            "arm": ["eggroll-n1", "eggroll-n1", "spsa-n1-p16", "sweep"],
            "key": ["step", "alpha", "lr", "lr"],
            "reason": ["no search", "no search", "", "no search"],
        }
    )

    def rows(name):
        if name == "rates-of-arms":
            return unsearched
        table = Rows(1)(name)
        return table.assign(run="soma-n2-s0 " + table["other"] + "-s0") if name == "differences" else table

    judged = {j.claim: j for j in verdicts(PLAN, rows)}
    assert judged["C1a"].superseded == ""
    assert judged["C1a"].status == "reproduced"
    assert judged["C1b"].superseded == "eggroll-n1 (step, alpha: no search)"
    assert judged["C1b"].status == judged["C2b"].status == "reproduced, superseded"
    assert counted([judged["C1a"], judged["C1b"]]) == "2 reproduced; 1 of these is superseded"
    assert counted([judged["C2b"], judged["C1b"]]) == "2 reproduced; 2 of these are superseded"


def test_one_seed_decides_nothing():
    rows = Rows(1)
    one = rows("tuning-compared").tail(1).assign(seeds=1, seed_low=np.nan, seed_high=np.nan)
    found = evidence(lambda name: one if name == "tuning-compared" else rows(name))["C3"]
    assert [d.support() for d in found] == ["neither"]
    assert judge(found) == ("inconclusive", "one seed gives no interval over seeds")
