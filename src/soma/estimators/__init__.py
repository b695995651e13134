"""Gradient estimates from losses: SPSA and its relatives, EGGROLL, and backpropagation."""
