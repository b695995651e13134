"""Advice, in one sentence, for file-system errors that prevent writing."""

from __future__ import annotations

import errno

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space (files saved earlier are intact)",
    errno.EDQUOT: "the quota is used up; free some space (files saved earlier are intact)",
    errno.EROFS: "the file system is read-only; choose a writable folder",
    errno.EACCES: "permission is denied; choose a writable folder",
}


def sentence(error: OSError) -> str | None:
    """Return the sentence, or None for any other error."""
    advice = _ADVICE.get(error.errno or 0)
    return advice and f"{error.filename or 'a file'} cannot be written: {advice}, then start it again."
