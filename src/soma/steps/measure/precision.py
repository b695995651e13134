"""The precision of the finite difference (B6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from soma.analysis.precision import difference_errors
from soma.forward.torch_engine import TorchEngine
from soma.models.lstm import initialise
from soma.probes import Probes
from soma.rng import Stream
from soma.steps.measured import Inputs


def measure(at: Inputs) -> pd.DataFrame:
    """Measure errors at the initial and the trained weights of a run's first expert."""
    opened, device = at.runs[0], torch.device(at.compute.device)
    run, product = opened.run, at.product
    bodies, heads = opened.weights(run.updates)
    weights = {
        "initial": initialise(run.model, Stream.named(run.seed, "seed", "init")),
        "trained": (bodies[0], heads[0]),
    }
    windows = at.windows(run)
    ids = np.linspace(0, len(windows) - 1, product["batch"]).astype(np.int64)
    tokens = windows.crops(ids, np.zeros_like(ids), run.settings.crop)
    stream = Stream.named(run.seed, "precision")
    probes = Probes(run.model, stream, run.settings.probe, 0, (0,), range(product["directions"]))
    on_device = {name: (body.to(device), head.to(device)) for name, (body, head) in weights.items()}
    rows = difference_errors(run.model, on_device, tokens, probes, product["eps"], at.engine, TorchEngine(device))
    return rows.assign(run=run.id, update=run.updates)
