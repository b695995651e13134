"""Errors of the file system as one sentence."""

from __future__ import annotations

import errno

_FULL = {
    errno.ENOSPC: "the disk is full; free some space (files saved earlier are intact)",
    errno.EDQUOT: "the quota is used up; free some space (files saved earlier are intact)",
    errno.EROFS: "the file system is read-only; choose a writable folder",
}
"""Errors of writing alone."""


def sentence(error: OSError) -> str | None:
    """Return the sentence, or None for an error that is not the system's."""
    if error.errno is None:
        return None
    if error.errno in _FULL:
        return f"{error.filename or 'a file'} cannot be written: {_FULL[error.errno]}, then start it again."
    where = error.filename if error.filename2 is None else error.filename2
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where or 'a file'} may not be opened: permission is denied; change its mode, or name another."
    return f"{where or 'a file'} cannot be used ({error.strerror}); mend it, or name another."
