"""Atomic writes, hashes, and errors of the disk as sentences."""
