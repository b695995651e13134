"""Measurements at saved checkpoints, one per module, so that editing one does not repeat the others.

Every module has a function `measure(at)` that returns the rows of its product.
"""
