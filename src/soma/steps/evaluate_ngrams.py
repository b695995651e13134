"""The step `evaluate-ngrams`: per-document losses of n-gram models of the training text on every evaluation set."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from soma.data.encode import check_encoded
from soma.evaluation.documents import Role, open_set
from soma.evaluation.ngrams import count, ngram_losses
from soma.files.tables import write_rows


def evaluate_ngrams(train: Path, validation: Path, test: Path, external: Path, output: Path) -> None:
    """Write per-document losses of a unigram, bigram and trigram model of the training text as Parquet."""
    check_encoded(train, "train")
    counts = count(train)
    sets: dict[Role, Path] = {"validation": validation, "test": test, "external": external}
    rows = [ngram_losses(counts, open_set(role, path)) for role, path in sets.items()]
    write_rows(output, pd.concat(rows, ignore_index=True))
