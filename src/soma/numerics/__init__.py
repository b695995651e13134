"""Random streams from counters, and functions whose results are the same bytes on every processor."""
