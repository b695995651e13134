"""Using trained ensembles: routed losses at speed, scores, samples, routes, and the folder that carries a model."""

from __future__ import annotations

from soma.inference.model import Ensemble, Route
from soma.inference.sampling import Sampling
from soma.inference.score import Score

__all__ = ["Ensemble", "Route", "Sampling", "Score"]
