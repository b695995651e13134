"""Snakemake's way to soma.workflow.progress: it finds its plugins by the name of their package (`--logger soma`)."""

from soma.workflow.progress.handler import LogHandler

__all__ = ["LogHandler"]
