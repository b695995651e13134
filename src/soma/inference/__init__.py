"""Use of trained ensembles: fast routed losses, scores, samples, routes, and model folders."""

from __future__ import annotations

from soma.inference.model import Ensemble, Route
from soma.inference.sampling import Sampling
from soma.inference.score import Score

__all__ = ["Ensemble", "Route", "Sampling", "Score"]
