"""Model folders on the Hugging Face Hub; fetched files are kept in huggingface_hub's cache, which works offline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from soma.errors import SomaError
from soma.inference.manifest import MANIFEST, Manifest, printable

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def local(path: str | Path, revision: str | None = None) -> Path:
    """Return the folder `path`, or that of a downloaded snapshot if `path` is text `owner/name` and no folder.

    Only the files that the repository's `ensemble.json` lists are fetched, all from one commit, and nothing of them is
    read here.

    Raises:
        SomaError: if the repository or the revision cannot be found or fetched, or is no model.
    """
    folder = Path(path)
    if not isinstance(path, str) or folder.exists() or not _REPOSITORY.fullmatch(path):
        if revision is not None:
            raise SomaError(f"{path} is not `owner/name` of a repository on the Hub, so it has no revision {revision}.")
        return folder
    hub = library()
    try:
        first = Path(hub.snapshot_download(path, revision=revision, allow_patterns=[MANIFEST]))
        listed = Manifest.read(first).files
        # A snapshot's folder has the name of its commit; a branch may have moved since.
        return Path(hub.snapshot_download(path, revision=first.name, allow_patterns=list(listed)))
    except SomaError:
        raise
    except hub.errors.RevisionNotFoundError:
        raise SomaError(
            f"the repository {path} has no revision {revision}; name a branch, a tag or a commit."
        ) from None
    except hub.errors.RepositoryNotFoundError:
        raise SomaError(
            f"there is no folder {path}, and the Hub shows no repository {path}; check the name, or log in with "
            "`hf auth login` if it is private."
        ) from None
    except Exception as error:  # errors of a network read come from several layers
        raise SomaError(
            f"there is no folder {path}, and the repository {path} cannot be fetched from the Hub "
            f"({printable(' '.join(str(error).split()))}); check the network and try again."
        ) from None


def library() -> Any:
    """Return the package huggingface_hub, which only exports and downloads need.

    Raises:
        SomaError: if it is not installed.
    """
    try:
        import huggingface_hub.errors
    except ImportError:
        raise SomaError(
            "this needs huggingface_hub, which is not installed; run `pip install 'soma-repro[hub]'`."
        ) from None
    return huggingface_hub
