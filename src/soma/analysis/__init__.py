"""Statistics: losses with intervals, paired differences, costs, and verdicts on the claims; one module per family."""
