"""Keys and columns of an evaluation's rows."""

KEYS = ("run", "set", "split", "update", "iterate", "k", "document")
COLUMNS = (*KEYS, "document_id", "group", "host", "windows", "bytes", "nats")
"""KEYS, then the document's id in the corpus, row group and host, and `nats` summed over the scored `bytes`."""

NGRAMS = ("unigram", "bigram", "trigram")
"""Reference models, in the place of a run."""
