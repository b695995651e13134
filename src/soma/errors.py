"""The one kind of error a user is meant to read."""


class SomaError(Exception):
    """One sentence that says what is wrong, where, and what to do; the command line prints it and exits 1."""
