"""The one kind of error that is meant for users."""


class SomaError(Exception):
    """One sentence that says what is wrong, where, and how to fix it; the command line prints it and exits with 1."""
