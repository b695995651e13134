"""What the Snakefile needs from Python: the configuration, the settings of each rule, and the code that a rule runs."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from soma.config import Config, merge, read_yaml, resolve
from soma.manifest import sha256_json, write_json

_PACKAGE = Path(__file__).parent


def campaign_config(base: Path, overlay: Mapping[str, Any]) -> Config:
    """The base file with Snakemake's `--configfile` and `--config` values merged over it."""
    return resolve(merge(read_yaml(base), overlay), where="the configuration")


class Settings:
    """The settings of every rule, written as one JSON file each; a rule's `params` hold the digest of what it reads."""

    def __init__(self, values: Mapping[str, Any], directory: Path) -> None:
        self.values, self.directory = values, directory

    def digest(self, name: str) -> str:
        return sha256_json(self.values[name])

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.json")

    def write(self) -> None:
        """Write the files whose content changed."""
        for name in self.values:
            path = Path(self.path(name))
            mark = path.with_suffix(".sha256")
            if not (path.exists() and mark.exists() and mark.read_text() == self.digest(name)):
                write_json(path, self.values[name])
                mark.write_text(self.digest(name))


@cache
def code(step: str) -> str:
    """Digest of the code that a module of `soma.steps` runs: its import closure, compiled sources included.

    It stands in a rule's `params`, so that an edit reruns the rules whose code it touches. Comments, docstrings and
    formatting do not count: to word something better must not retrain 256 experts.
    """
    digest = hashlib.sha256()
    for path in code_files(step):
        meaning = _meaning(path) if path.suffix == ".py" else path.read_bytes()
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + meaning + b"\0")
    return digest.hexdigest()


def code_files(step: str) -> list[Path]:
    """The files that `code` digests."""
    todo, seen = [f"soma.steps.{step}"], set()
    while todo:
        path = _source(todo.pop())
        if path is None or path in seen:
            continue
        seen.add(path)
        todo += _imports(path)
    compiled = {p for folder in {path.parent for path in seen} for p in folder.glob("csrc/*")}
    return sorted(seen | compiled)


@cache  # most files serve several steps
def _meaning(path: Path) -> bytes:
    """The syntax tree without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [statement for statement in block if not _is_text(statement)])
    return ast.dump(tree).encode()


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _source(module: str) -> Path | None:
    base = _PACKAGE.joinpath(*module.split(".")[1:])
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


@cache
def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == "soma"]
