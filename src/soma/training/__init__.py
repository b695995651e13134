"""The training loop: learners for each method, optimiser, schedule, checkpoints and exact resume."""
