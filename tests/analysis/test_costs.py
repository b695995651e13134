"""Costs of runs that use several devices."""

import pytest

from soma.analysis.costs import WHOLE_JOBS
from tests.analysis.invented import costs, toy_plan

PLAN = toy_plan()


def test_all_devices_are_charged_for_all_of_the_time():
    """Three devices train a monolith and two its seed run.

    Device time counts the seconds of every device, including waiting; elapsed time and operations count once.
    """
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
