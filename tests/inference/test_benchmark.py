"""The row that a benchmark returns."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import PREFIX, WINDOW, K, Tiny

from soma.inference.benchmark import measure


def test_a_row(tiny: Tiny) -> None:
    row = measure(tiny.ensemble(), tiny.windows(8), repeats=3, warm_ups=1)
    assert row["requests"] == 8
    assert (row["k"], row["window"], row["prefix"]) == (K, WINDOW, PREFIX)
    assert row["bytes_per_second"] * row["seconds"] == pytest.approx(8 * WINDOW)
    assert row["scored_bytes_per_second"] * row["seconds"] == pytest.approx(8 * (WINDOW - PREFIX))
    assert row["seconds_min"] <= row["seconds"] <= row["seconds_max"]
    assert 0 < row["routing_share"] < 1
    assert row["latency_seconds"] > 0
    assert row["peak_bytes"] > row["weight_bytes"] > 0


def test_the_loop_it_is_compared_with_computes_the_same(
    root: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(root / "benchmarks"), *sys.path])
    import inference as script

    monkeypatch.setattr(script, "PREFIX", PREFIX)
    monkeypatch.setattr(script, "WINDOW", WINDOW)
    model = tiny.ensemble()
    naive = script.NaiveLoop(model).losses(tiny.windows(6))
    assert np.abs(naive - model.losses(tiny.windows(6))).max() < 2e-5
