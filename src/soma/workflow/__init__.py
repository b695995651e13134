"""The side of the workflow that Snakemake reads: settings of steps, digests of code, records of how files were made."""
