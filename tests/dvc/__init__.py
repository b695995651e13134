"""Tests that run DVC and Snakemake on a tiny campaign in throw-away repositories."""
