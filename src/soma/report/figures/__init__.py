"""Figures, one module per theme. Rows come from analysis; only means over runs are computed here."""
