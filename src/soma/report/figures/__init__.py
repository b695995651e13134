"""Figures, a module for each theme. Rows come from analysis; nothing is computed here but means over runs."""
