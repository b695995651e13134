"""From sources to bytes, windows, evaluation sets and the shard of every expert."""
