"""What a run costs where several devices work on it."""

import pytest

from soma.analysis.costs import WHOLE_JOBS
from tests.analysis.invented import costs, toy_plan

PLAN = toy_plan()


def test_all_devices_are_charged_for_all_of_the_time():
    """Three work on a monolith, two on the seed run that it starts from: their seconds count for each of them, waiting
    included; the clock and the arithmetic are those of one."""
    run = PLAN.arm_runs["spsa-n1-p8"][0]
    many = {run.id: 3, run.start: 2}
    found = (costs(PLAN, devices=devices) for devices in ({}, many))
    one, several = (rows[rows["run"] == run.id].set_index(["update", "quantity"])["value"] for rows in found)
    expected = {"aggregate device time": 3, WHOLE_JOBS: 3, "initialisation": 2}
    quantities = several.index.get_level_values("quantity")
    assert expected.keys() < set(quantities)
    for quantity in set(quantities):
        ratio = several.xs(quantity, level="quantity") / one.xs(quantity, level="quantity")
        assert list(ratio) == pytest.approx([expected.get(quantity, 1)] * len(ratio)), quantity
