"""Measurements at saved checkpoints: a module each, so that an edit of one repeats no other.

Every module has a function `measure(at)` that returns the rows of its product.
"""
