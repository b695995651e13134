"""Digests of exactly the code that can change a byte of a step's output.

A digest starts from the functions that a label names and follows the names that they use, definition by definition
(`soma.workflow.meaning` defines which parts of a definition count). A class counts as a whole, and so does a module
that is used in other ways than as `module.name`. Side effects of importing a module count for every module that imports
it. A definition that names a C++ file includes that file, its includes and the compiler flags beside it; one that
names a part of the page to read (a template, style or script) includes that file. Code that is named only by a
string and imported when used is not followed: it is an entry of a registry, and the label names the entry.

Only the standard library is used, because Snakemake asks for the digest of every job before it runs anything.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from soma.catalogue import MEASUREMENTS, Measurement
from soma.errors import SomaError
from soma.workflow import meaning
from soma.workflow.meaning import Meaning

LEARNERS = "soma.training.learner.LEARNERS"
ENGINES = "soma.forward.registry.ENGINES"
RUNNERS = "soma.inference.model.RUNNERS"
LOADERS = "soma.data.sources.LOADERS"

LEFT_OUT = {
    **dict.fromkeys(
        (LEARNERS, ENGINES, RUNNERS, LOADERS), "lists of variants, of which the label names the one in use"
    ),
    "soma.config.training.Compute": "place and speed of a job; the label names the engine",
    "soma.errors": "the reason why a job stopped, which then has no output",
    "soma.files.hashes.check_files": "a check that stops a job or changes nothing",
    "soma.forward.native.check_sources": "a check that stops a job or changes nothing",
    "soma.files.hashes.listed": "a check that stops a job or changes nothing",
    "soma.files.atomic.atomic_path": "moves a finished file into place, whatever it contains",
    "soma.files.atomic.atomic_directory": "moves a finished folder into place",
    "soma.files.atomic.move_directory": "moves a finished folder into place",
    "soma.files.atomic.check_own": "a check that stops a job or changes nothing",
    "soma.files.atomic.remove_directory": "removes what no later step reads",
    "soma.files.atomic.write_bytes": "moves finished bytes into place",
    "soma.accounting.cost": "times, which enter no weight, loss or history; the rows of costs start from it",
    "soma.accounting.machine": "the name of the device behind times; measurements of times start from it",
    "soma.catalogue": "a list of entries, of which the label names the one in use; the first page starts from it",
}
"""Modules and definitions that are not followed, and why they cannot change a result. A step that starts from one of
them includes it."""


@dataclass(frozen=True)
class _Step:
    starts: tuple[str, ...]
    """Functions that a job runs."""
    varies: tuple[str, ...] = ()
    """Registries whose entries a label names, in this order."""
    lists: tuple[str, str] | None = None
    """Kind of the catalogue's entry that a label names, and the package of its function."""
    judges: bool = False
    """True if the claims are judged, by the functions that the catalogue names."""


def _measurement(measurement: Measurement) -> _Step:
    module = f"soma.measurements.{measurement.name.replace('-', '_')}.measure"
    device = ("soma.accounting.machine",) if measurement.timed else ()
    registry = ENGINES if measurement.computes_with == "an engine" else RUNNERS
    return _Step((module, "soma.steps.measure.measure", *device), (registry,))


STEPS = {
    "download": _Step(("soma.steps.download.download",), (LOADERS,)),
    "encode": _Step(("soma.steps.encode.encode",)),
    "join": _Step(("soma.steps.join.join",)),
    "evaluation-set": _Step(("soma.steps.evaluation_set.evaluation_set",)),
    "fit-features": _Step(("soma.steps.fit_features.fit_features",)),
    "transform": _Step(("soma.steps.transform.transform",)),
    "fit-router": _Step(("soma.steps.fit_router.fit_router",)),
    "assign": _Step(("soma.steps.assign.assign",)),
    "describe-clusters": _Step(("soma.steps.describe_clusters.describe_clusters",)),
    "shard": _Step(("soma.steps.shard.shard",)),
    "train": _Step(("soma.training.job.train_part",), (LEARNERS, ENGINES)),
    "evaluate": _Step(("soma.steps.evaluate.evaluate",), (ENGINES,)),
    "evaluate-ngrams": _Step(("soma.steps.evaluate_ngrams.evaluate_ngrams",)),
    **{f"measure-{name}": _measurement(measurement) for name, measurement in MEASUREMENTS.items()},
    "choose": _Step(("soma.steps.choose.choose",)),
    "summarise": _Step(("soma.steps.summarise.summarise",), lists=("Summary", "soma.analysis")),
    "summarise-costs": _Step(("soma.steps.summarise_costs.summarise_costs", "soma.accounting.cost")),
    "table": _Step(("soma.steps.table.table",), lists=("Table", "soma.report.tables")),
    "figure": _Step(("soma.steps.figure.figure",), lists=("Figure", "soma.report.figures")),
    "metrics": _Step(("soma.steps.metrics.metrics",), judges=True),
    "summary": _Step(("soma.steps.summary.summary", "soma.catalogue"), judges=True),
    "page": _Step(("soma.steps.page.page", "soma.catalogue")),
}
"""Every step by the name of its command; measurements have their own name after `measure-`."""


def code(label: str) -> str:
    """Return `label:digest` for the code that a label stands for, as used in a rule's `params`.

    A label is a step and the variants it uses: `encode`, `download/sotu`, `train/spsa/cpu`, `train/eggroll`,
    `evaluate/cpu`, `measure-variance/cpu`, `table/table4`. Several names of one kind are joined: `evaluate/cpu+torch`.
    A method of the user's own is named by its place, `module:Class`.

    Raises:
        SomaError: there is no such label.
    """
    return f"{label}:{_installed().digest(label)}"


@cache
def _installed() -> Package:
    return Package(Path(__file__).parents[1])


@dataclass
class _Module:
    """A parsed file."""

    folder: Path
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """Full name behind each imported name."""
    effects: list[ast.stmt] = field(default_factory=list)
    """Statements that run on import, besides definitions."""

    @classmethod
    def read(cls, path: Path) -> _Module:
        module = cls(path.parent)
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    module.imports |= meaning.bindings(statement)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    module.definitions.setdefault(name, []).append(statement)
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if names := _assigned(statement):
                    for name in names:
                        module.definitions.setdefault(name, []).append(statement)
                case ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    module.effects.append(statement)
                    for node in ast.walk(statement):
                        if isinstance(node, ast.Import | ast.ImportFrom):
                            module.imports |= meaning.bindings(node)
        return module


def _assigned(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[str]:
    """Return the names that an assignment binds, or none if it modifies an object."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    parts = [part for t in targets for part in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else []


@dataclass(frozen=True)
class _Definition:
    """The meaning of a definition, or of the side effects of a module, and where it leads."""

    text: str
    uses: list[str]
    """Full names, sorted."""
    loads: list[str]
    """Full names that it imports itself, used or not."""
    sources: list[Path]
    """C++ files that it names, and files that count as they are."""


class Package:
    """The source of `soma` in a folder; every file and definition is read once for all labels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._modules: dict[str, _Module | None] = {}
        self._located: dict[str, tuple[str, _Module, str | None] | None] = {}
        self._meanings: dict[ast.stmt, Meaning] = {}
        self._definitions: dict[str, _Definition] = {}
        self._entries_of: dict[str, dict[str, tuple[str, ast.Call]]] = {}
        self._sources: dict[Path, tuple[str, list[str]]] = {}
        self._digests: dict[str, str] = {}
        self._own: set[str] = set()
        """Packages of the user's own methods, whose code is followed too."""

    def digest(self, label: str) -> str:
        """Return the SHA-256 of everything that a label reaches."""
        if label not in self._digests:
            reached = "".join(f"{name}\0{text}\0" for name, text in sorted(self.reached(label).items()))
            self._digests[label] = hashlib.sha256(reached.encode()).hexdigest()
        return self._digests[label]

    def reached(self, label: str) -> dict[str, str]:
        """Return the meaning of every definition and file that a label reaches, by name."""
        starts, entries = list(self._starts(label)), self._catalogued(label)
        starts += entries.values()
        walk = _Walk(self, LEFT_OUT.keys() - set(starts))
        for start in starts:
            walk.use(start)
        return walk.reached | dict.fromkeys(entries, "")

    def _starts(self, label: str) -> Iterator[str]:
        step, *chosen = label.split("/")
        if step not in STEPS:
            raise SomaError(f"the code `{label}` is of no step; use one of {', '.join(STEPS)}.")
        varies = STEPS[step].varies
        if STEPS[step].lists:
            chosen = []  # `_catalogued` checks it
        if chosen[:1] == ["eggroll"] or label == "evaluate":  # EGGROLL uses no engine, in training or evaluation
            varies = varies[:-1]
        if len(chosen) != len(varies):
            raise SomaError(
                f"the code `{label}` should name {len(varies)} thing(s) after the step (soma.workflow.digests)."
            )
        yield from STEPS[step].starts
        for registry, names in zip(varies, chosen, strict=True):
            entries = self._entries(registry)
            for name in names.split("+"):
                if ":" in name:  # a method of the user's own, in a module beside the package
                    self._own.add(name.partition(":")[0].partition(".")[0])
                    entries[name] = name.replace(":", ".")
                if name not in entries:
                    raise SomaError(f"the code `{label}` names `{name}`, which is not in {registry}.")
                yield entries[name]

    def _catalogued(self, label: str) -> dict[str, str]:
        """Return the entries of the catalogue behind a label: the text of each, and its function."""
        step, *chosen = label.split("/")
        entries: dict[str, str] = {}
        judges = STEPS[step].judges
        if lists := STEPS[step].lists:
            kind, package = lists
            calls = self._calls(kind)
            if len(chosen) != 1 or chosen[0] not in calls:
                raise SomaError(f"the code `{label}` should name one {kind} of soma.catalogue after the step.")
            text, call = calls[chosen[0]]
            entries[text] = f"{package}.{_function(call)}"
            judges = any(isinstance(n, ast.Call) and _called(n) == "Verdicts" for n in ast.walk(call))
        if judges:
            entries |= {text: f"soma.analysis.{_function(call)}" for text, call in self._calls("Claim").values()}
        return entries

    def _calls(self, kind: str) -> dict[str, tuple[str, ast.Call]]:
        """Return the catalogue's entries of a kind by name, which are parsed, not imported, with the text of each."""
        if kind not in self._entries_of:
            catalogue = self.module("soma.catalogue")
            assert catalogue is not None
            nodes = [node for statements in catalogue.definitions.values() for s in statements for node in ast.walk(s)]
            calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) == kind]
            self._entries_of[kind] = {str(ast.literal_eval(c.args[0])): (ast.unparse(c), c) for c in calls}
        return self._entries_of[kind]

    def _entries(self, registry: str) -> dict[str, str]:
        """Return the full name of every entry of a registry, which is parsed, not imported."""
        module, _, name = registry.rpartition(".")
        parsed = self.module(module)
        assert parsed is not None
        [statement] = parsed.definitions[name]
        assert isinstance(statement, ast.Assign)
        return {key: path.replace(":", ".") for key, path in ast.literal_eval(statement.value).items()}

    def module(self, name: str) -> _Module | None:
        """Return a module of the package by its full name, if there is one."""
        if name not in self._modules:
            first, *words = name.split(".")
            folder = self.folder if first == "soma" else _beside(first) if first in self._own else None
            base = folder.joinpath(*words) if folder else None
            paths = (base / "__init__.py", base.with_name(f"{base.name}.py")) if base else ()
            self._modules[name] = next((_Module.read(path) for path in paths if path.is_file()), None)
        return self._modules[name]

    def locate(self, full: str) -> tuple[str, _Module, str | None] | None:
        """Return the module that contains a full name, and the name within it (None for the module itself)."""
        if full not in self._located:
            self._located[full] = None
            words = full.split(".")
            for n in range(len(words), 0, -1):
                name = ".".join(words[:n])
                if module := self.module(name):
                    self._located[full] = name, module, words[n] if n < len(words) else None
                    break
        return self._located[full]

    def definition(self, key: str, name: str, module: _Module, statements: list[ast.stmt]) -> _Definition:
        """Return what some top-level statements of a module mean and where they lead; `key` stands for them."""
        if key not in self._definitions:
            meanings = [self._meaning(statement) for statement in statements]
            used: set[str] = set()
            stands: set[str] = set()
            for each in meanings:
                used |= each.imports
                for word in each.names:
                    first, dot, attributes = word.partition(".")
                    if first in module.definitions:
                        used.add(f"{name}.{first}")
                    if first in module.imports:
                        used.add(module.imports[first] + dot + attributes)
                        stands.add(f"{first} is {module.imports[first]}")
            self._definitions[key] = _Definition(
                "\n".join([*(each.text for each in meanings), *sorted(stands)]),
                sorted(used),
                [full for each in meanings for full in each.loads],
                [module.folder / source for each in meanings for source in each.sources],
            )
        return self._definitions[key]

    def _meaning(self, statement: ast.stmt) -> Meaning:
        """Return the meaning of a top-level statement, which may define several names and can be read only once."""
        if statement not in self._meanings:
            self._meanings[statement] = meaning.of_statement(statement)
        return self._meanings[statement]

    def source(self, path: Path) -> tuple[str, list[str]]:
        """Return the meaning of a C++ file and the files it includes, or the whole of a file of another kind."""
        if path not in self._sources:
            text = path.read_text(encoding="utf-8")
            plain = path.suffix in meaning.PLAIN
            self._sources[path] = (text, []) if plain else (meaning.of_cpp(text), meaning.includes(text))
        return self._sources[path]


def _beside(package: str) -> Path | None:
    """Return the folder of a package, or the path of a module without its ending; None if Python finds neither."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).resolve()
    return path.parent if path.name == "__init__.py" else path.with_suffix("")


def _called(call: ast.Call) -> str | None:
    """Return the plain name of what is called, if it has one."""
    return call.func.id if isinstance(call.func, ast.Name) else None


def _function(entry: ast.Call) -> str:
    """Return the function that an entry of the catalogue names."""
    return str(ast.literal_eval(entry.args[1]))


class _Walk:
    """Everything that can be reached from some definitions."""

    def __init__(self, package: Package, left_out: set[str]) -> None:
        self.package, self.left_out = package, left_out
        self.reached: dict[str, str] = {}
        self._loaded: set[str] = set()

    def use(self, full: str) -> None:
        """Follow a full name to its definition, or to all definitions of a module."""
        located = self.package.locate(full)
        if located is None:
            return
        name, module, own = located
        self._load(name)
        for definition in module.definitions if own is None else [own]:
            key = f"{name}.{definition}"
            if key in self.reached or {key, name} & self.left_out:
                continue
            if definition in module.definitions:
                self._read(key, name, module, module.definitions[definition])
            elif definition in module.imports:
                self.use(module.imports[definition])

    def _load(self, full: str) -> None:
        """Follow the side effects and imports of a module."""
        located = self.package.locate(full)
        if located is None or located[0] in self._loaded:
            return
        name, module, _ = located
        self._loaded.add(name)
        self._load(name.rpartition(".")[0])
        if module.effects:
            self._read(f"import {name}", name, module, module.effects)
        for imported in module.imports.values():
            self._load(imported)

    def _read(self, key: str, name: str, module: _Module, statements: list[ast.stmt]) -> None:
        definition = self.package.definition(key, name, module, statements)
        self.reached[key] = definition.text
        for full in definition.uses:
            self.use(full)
        for full in definition.loads:
            self._load(full)
        for path in definition.sources:
            self._compile(path)

    def _compile(self, path: Path) -> None:
        """Follow a C++ file, its includes and the compiler flags."""
        path = path.resolve()
        if not path.is_file() or not path.is_relative_to(self.package.folder):
            return
        key = path.relative_to(self.package.folder).as_posix()
        if key in self.reached:
            return
        self.reached[key], included = self.package.source(path)
        for other in included:
            self._compile(path.parent / other)
        flags = path.with_name("flags.json")
        if flags.is_file():
            content = json.loads(flags.read_text(encoding="utf-8"))
            self.reached[flags.relative_to(self.package.folder).as_posix()] = json.dumps(content, sort_keys=True)
