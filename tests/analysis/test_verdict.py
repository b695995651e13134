import math

import pytest
from scipy.stats import norm, t

from soma.analysis.verdict import Difference, judge, simultaneous


def difference(name, documents, seeds=None):
    seed_low, seed_high = seeds or (math.nan, math.nan)
    return Difference(name, sum(documents) / 2, *documents, seed_low, seed_high, 3 if seeds else 1)


BETTER = difference("a", (-0.2, -0.1), (-0.3, -0.05))
WORSE = difference("b", (0.1, 0.2), (0.05, 0.3))
UNSURE = difference("c", (-0.2, -0.1), (-0.4, 0.1))
SINGLE = difference("d", (-0.2, -0.1))


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ([BETTER], "reproduced"),
        ([BETTER, BETTER], "reproduced"),
        ([BETTER, WORSE], "not reproduced"),
        ([WORSE, UNSURE], "not reproduced"),
        ([BETTER, UNSURE], "inconclusive"),
        ([SINGLE], "inconclusive"),
        ([BETTER, SINGLE], "inconclusive"),
        ([], "not run"),
    ],
)
def test_the_rule(measured, verdict):
    assert judge(measured)[0] == verdict


def test_a_declared_limit_wins_over_any_number():
    assert judge([WORSE], "too small") == ("not testable at this scale", "too small")
    assert judge([], "too small") == ("not testable at this scale", "too small")


def test_without_documents_the_interval_over_seeds_decides():
    ratio = Difference("ratio", -1.0, math.nan, math.nan, -1.2, -0.8, 3)
    assert ratio.support() == "for"
    assert Difference("ratio", -1.0, math.nan, math.nan, -2.2, 0.2, 3).support() == "neither"
    assert Difference("ratio", 1.0, math.nan, math.nan, 0.8, 1.2, 3).support() == "against"


def with_p(name, p_seeds, p_documents=None, mean=-1.0, seeds=4):
    """Return a difference whose two-sided p-values over seeds and over documents are these."""
    half = abs(mean) * t.ppf(0.975, seeds - 1) / t.isf(p_seeds / 2, seeds - 1)
    ends = (math.nan, math.nan)
    if p_documents is not None:
        half_documents = abs(mean) * norm.ppf(0.975) / norm.isf(p_documents / 2)
        ends = mean - half_documents, mean + half_documents
    return Difference(name, mean, *ends, mean - half, mean + half, seeds)


def supports(*differences):
    return [d.support() for d in simultaneous(differences)]


def test_a_single_difference_keeps_its_intervals():
    (kept,) = simultaneous([BETTER])
    assert kept.low == pytest.approx(BETTER.low)
    assert kept.seed_high == pytest.approx(BETTER.seed_high)


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([0.012, 0.02, 0.04], [True, True, True]),  # 0.05/3, 0.05/2, 0.05
        ([0.04, 0.012, 0.02], [True, True, True]),  # in any order
        ([0.02, 0.03, 0.04], [False, False, False]),  # the smallest fails, so all do
        ([0.01, 0.03, 0.04], [True, False, False]),  # the second fails, so the third does, although it is below 0.05
        ([0.2], [False]),
    ],
)
def test_intervals_exclude_zero_where_holms_test_rejects(p_values, rejected):
    assert [s == "for" for s in supports(*(with_p("d", p) for p in p_values))] == rejected


def test_a_chance_result_among_five_does_not_sink_a_claim():
    chance = with_p("chance", 0.03, mean=0.1)
    assert chance.support() == "against"
    assert supports(chance, *(with_p("unclear", 0.3) for _ in range(4))) == ["neither"] * 5


def test_both_intervals_count():
    assert supports(with_p("a", 0.001, p_documents=0.04), with_p("b", 0.04, p_documents=0.001)) == ["neither"] * 2
    assert supports(with_p("a", 0.001, p_documents=0.02), with_p("b", 0.04, p_documents=0.001)) == ["for"] * 2


def test_a_single_seed_decides_nothing_and_counts_in_the_family():
    assert supports(SINGLE, with_p("d", 0.03)) == ["neither", "neither"]
    assert supports(SINGLE, with_p("d", 0.02)) == ["neither", "for"]
