"""Training with other directions and differences than the paper's: it learns, resumes, and pairs its updates."""

from typing import get_args

import numpy as np
import pytest
import torch

from soma.config.training import FiniteDifference
from tests.training.small_runs import assert_resumed, spec, trained, trainer

ALTERNATING = {"difference": "alternating", "probe": "gaussian"}
OTHERS = [{"difference": d} for d in get_args(FiniteDifference) if d != "central"] + [{"probe": "gaussian"}]


@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_it_learns_as_central_differences_do(change):
    state = trained(spec(updates=60, experts=1, **change), range(1), engine="auto")
    assert state.history.column("expert_validation")[0] > 4.5
    assert state.history.column("expert_validation")[-1] < 4.2


@pytest.mark.parametrize("stop_at", [5, 6])
def test_interrupted_between_or_inside_a_pair_of_updates(tmp_path, stop_at):
    assert_resumed(tmp_path, spec(**ALTERNATING), None, stop_at)


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_a_group_gives_the_bytes_of_one_process_each(engine):
    run = spec(difference="curvature", probe="gaussian")
    together = trained(run, engine=engine)
    for e in range(2):
        for name, tensor in trained(run, range(e, e + 1), engine=engine).kept.items():
            assert torch.equal(tensor, together.kept[name]), name


def test_a_pair_of_updates_uses_the_directions_of_one_with_both_signs():
    batches = [trainer(spec()).learner._batch(0, 0)]

    def body(update, **change):
        gradient, _, _ = trainer(spec(**change)).learner.gradients(update, batches, lambda initial: [initial] * 2)
        return gradient.numpy()

    for probe in ("sparse", "gaussian"):
        pair = [body(update, probe=probe, difference="alternating") for update in (6, 7)]
        central = body(3, probe=probe)
        assert np.allclose(np.mean(pair, axis=0), central, atol=1e-3 * np.abs(central).max())
        assert not np.allclose(pair[0], pair[1], atol=1e-3 * np.abs(central).max())
