import math

import pytest

from soma.analysis.verdict import Difference, judge


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
