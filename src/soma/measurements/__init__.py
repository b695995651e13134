"""Measurements at saved checkpoints, one module each; none may open the test set."""
