"""From sources to bytes, windows and evaluation sets."""
