"""What Snakemake prints of a run: a line for each rule, the time left, and of a failure the job's own last words."""
