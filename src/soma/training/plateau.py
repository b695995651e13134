"""The schedule (docs/paper.md section 4): lr and eps are halved together when expert validation stops improving."""

from __future__ import annotations

from dataclasses import dataclass

from soma.config.training import Plateau


@dataclass(frozen=True)
class PlateauState:
    """Schedule of one expert, which compares the loss of the last iterate with the best one so far."""

    scale: float = 1.0
    """Product of all reductions."""
    best: float = float("inf")
    """Lowest expert-validation loss seen, nats per byte."""
    since: int = 0
    """Update of the last improvement or reduction."""


def observe(rule: Plateau, state: PlateauState, update: int, loss: float) -> PlateauState:
    """Return the state after a measurement of the expert-validation loss."""
    if loss <= state.best - rule.min_improvement:
        return PlateauState(state.scale, loss, update)
    if update - state.since >= rule.patience:
        return PlateauState(state.scale * rule.factor, state.best, update)
    return state


def scheduled(rule: Plateau, state: PlateauState, initial: float) -> float:
    """Return the current lr or eps: the initial value times the reductions, at least the floor (or the initial value,
    if lower).
    """
    return min(initial, max(initial * state.scale, rule.floor))
