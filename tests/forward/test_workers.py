"""Losses that several workers gather, without processes: every worker's part is computed here, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import make_case

from soma.forward import distributed
from soma.forward.distributed import DistributedEngine
from soma.forward.reference import ReferenceEngine


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
@pytest.mark.parametrize("signs", [(1, -1), (-1,)], ids=str)
def test_gathered_losses_are_those_of_one_worker(signs, kind, workers, monkeypatch):
    case = make_case(8, batch=2, time=3, directions=4, kind=kind)
    sent: dict[int, torch.Tensor] = {}

    def all_gather(gathered, own):
        sent[distributed.rank()] = own
        for rank, tensor in sent.items():
            gathered[rank].copy_(tensor)

    monkeypatch.setattr(distributed, "workers", lambda: workers)
    monkeypatch.setattr(distributed, "_collective_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(distributed.dist, "all_gather", all_gather)
    for rank in range(workers):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        gathered = case.losses(DistributedEngine(ReferenceEngine()), *signs)  # the last worker has heard from all
    np.testing.assert_array_equal(gathered, case.losses(ReferenceEngine(), *signs))
