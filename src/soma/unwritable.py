"""What to do about a file system that does not take what is written to it, in one sentence."""

from __future__ import annotations

import errno

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space (what was saved before is whole)",
    errno.EDQUOT: "the quota is used up; free some space (what was saved before is whole)",
    errno.EROFS: "the file system is read-only; choose a folder that can be written",
    errno.EACCES: "permission is denied; choose a folder that can be written",
}


def sentence(error: OSError) -> str | None:
    """The sentence, or nothing if the error is another one."""
    advice = _ADVICE.get(error.errno or 0)
    return advice and f"{error.filename or 'a file'} cannot be written: {advice}, then start it again."
