"""SOMA-repro: zeroth-order pretraining through model sharding, from raw text to every table and figure."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # slow, and of no use to a step

        return version("soma-repro")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
