"""Small corpora in the real layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FINEWEB_COLUMNS = (
    "text",
    "id",
    "dump",
    "url",
    "file_path",
    "language",
    "language_score",
    "token_count",
    "score",
    "int_score",
)
ROWS = 20  # rows of a row group; the real files have 1,000


def prose(rng: np.random.Generator, length: int) -> str:
    """Draw random words, so that no two texts share a long substring."""
    letters = rng.choice(np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8), length)
    return letters.tobytes().decode()


def fineweb_table(file: int, group: int, columns: tuple[str, ...] = FINEWEB_COLUMNS) -> pa.Table:
    """Return one row group of a FineWeb-Edu file: ten flat columns, one crawl per group."""
    rng = np.random.default_rng([file, group])
    values = {
        "text": [f"file {file} group {group} row {row} – " + prose(rng, 80 + 10 * row) for row in range(ROWS)],
        "id": [f"<urn:uuid:{file:04d}-{group:04d}-{row:04d}>" for row in range(ROWS)],
        "dump": [f"CC-MAIN-20{13 + group}-20"] * ROWS,
        "url": [f"https://www.site{row % 3}.example/page/{row}?q=1" for row in range(ROWS)],
        "file_path": ["s3://commoncrawl/x.warc.gz"] * ROWS,
        "language": ["en"] * ROWS,
        "language_score": [0.9] * ROWS,
        "token_count": list(range(ROWS)),
        "score": [3.1] * ROWS,
        "int_score": [3] * ROWS,
        "date": ["2020-01-01"] * ROWS,
    }
    return pa.table({name: values[name] for name in columns})


def write_fineweb_file(path: Path, file: int, groups: int, columns: tuple[str, ...] = FINEWEB_COLUMNS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [fineweb_table(file, group, columns) for group in range(groups)]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
