"""Advice, in one sentence, on errors of a file system that refuses to be written to."""

from __future__ import annotations

import errno

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space (what was saved before is whole)",
    errno.EDQUOT: "the quota is used up; free some space (what was saved before is whole)",
    errno.EROFS: "the file system is read-only; choose a folder that can be written",
    errno.EACCES: "permission is denied; choose a folder that can be written",
}


def sentence(error: OSError) -> str | None:
    """Return the sentence, or None for any other error."""
    advice = _ADVICE.get(error.errno or 0)
    return advice and f"{error.filename or 'a file'} cannot be written: {advice}, then start it again."
