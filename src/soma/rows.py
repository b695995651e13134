"""What a row of an evaluation is about, and what it holds."""

from typing import Literal

Iterate = Literal["last", "average"]
"""The last iterate itself, or the exponential average of the iterates."""
ITERATES: tuple[Iterate, ...] = ("last", "average")

KEYS = ("run", "set", "split", "update", "iterate", "k", "document")
COLUMNS = (*KEYS, "document_id", "group", "host", "windows", "bytes", "nats")
"""KEYS, and of the document: its id in the corpus, row group and host, and `nats` summed over the scored `bytes`."""
