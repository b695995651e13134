"""Measurements at saved checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from soma.analysis.precision import difference_errors
from soma.data.windows import TrainWindows
from soma.forward.engine import create
from soma.forward.torch_engine import TorchEngine
from soma.manifest import atomic_path, read_json
from soma.models.lstm import initialise
from soma.probes import Probes
from soma.rng import Stream
from soma.runs import RunSpec
from soma.settings.training import Compute
from soma.training.checkpoint import Checkpoints


def measure_precision(settings: Path, train: Path, part: Path, output: Path, compute: Path, threads: int) -> None:
    """Errors of the finite difference at the initial and the trained weights of a run's first expert.

    Args:
        part: folder of the run's part that holds expert 0.
    """
    torch.set_num_threads(threads)
    read = read_json(settings)
    run = RunSpec.model_validate(read["run"])
    how = Compute.model_validate(read_json(compute))
    device = torch.device(how.device)
    opened = Checkpoints.open(run, {part.name: part / "checkpoints.safetensors"}, experts=range(1))
    weights = {
        "initial": initialise(run.model, Stream.named(run.seed, "seed", "init")),
        "trained": (opened.bodies(run.updates, "last")[0], opened.heads(run.updates, "last")[0]),
    }
    windows = TrainWindows(train, run.window)
    ids = np.linspace(0, len(windows) - 1, read["batch"]).astype(np.int64)
    tokens = windows.crops(ids, np.zeros_like(ids), run.settings.crop)
    probes = Probes(
        run.model, Stream.named(run.seed, "precision"), run.settings.probe, 0, (0,), range(read["directions"])
    )
    on_device = {name: (body.to(device), head.to(device)) for name, (body, head) in weights.items()}
    engine = create(how.engine, how.device)
    rows = difference_errors(run.model, on_device, tokens, probes, read["eps"], engine, TorchEngine(device))
    with atomic_path(output) as path:
        rows.assign(run=run.id, update=run.updates).to_parquet(path, index=False)
