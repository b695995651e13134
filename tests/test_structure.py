"""Rules about the code itself: allowed imports, forbidden constructs, and files beside the code."""

import argparse
import ast
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from soma.cli import steps
from soma.errors import SomaError
from soma.files.artefact import seal
from soma.routing.features import open_vectors
from soma.routing.router import Router
from tests.examples import module_at
from tests.project import ROOT

SOURCE = ROOT / "src/soma"
RULES = [ROOT / "workflow/Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]
COMMAND = re.compile(r'"\{params\.soma\} ([\w-]+)')

ARCHITECTURE = module_at(ROOT / "docs/architecture.py")
RANK = {name: i for i, layer in enumerate(ARCHITECTURE.LAYERS) for name in layer}


def modules(folder=SOURCE):
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def unit(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_dependencies_point_one_way():
    wrong = []
    for path, tree in modules():
        if unit(path).startswith("__"):  # the package itself and `python -m soma`
            continue
        for name in imported(tree):
            words = name.split(".")
            if words[0] == "soma" and len(words) > 1 and words[1] != "__version__":
                other = words[1]
                if RANK[other] > RANK[unit(path)] or (RANK[other] == RANK[unit(path)] and other != unit(path)):
                    wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_the_page_on_architecture_is_what_the_imports_say():
    assert ARCHITECTURE.rooms().keys() == RANK.keys()
    assert ARCHITECTURE.PAGE.read_text() == ARCHITECTURE.page(), "run `make docs`"


def name_of(path):
    words = ("soma", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def test_no_room_imports_itself_in_a_circle():
    """At the top level of its modules; imports inside functions do not count."""
    trees = {name_of(path): tree for path, tree in modules()}
    for room in sorted({name.split(".")[1] for name in trees if name != "soma"}):
        inside = {name for name in trees if f"{name}.".startswith(f"soma.{room}.")}
        graph = {name: set() for name in inside}
        for name in inside:
            top = ast.Module([node for node in trees[name].body if isinstance(node, ast.Import | ast.ImportFrom)], [])
            targets = (full if full in inside else full.rpartition(".")[0] for full in imported(top))
            graph[name] |= inside.intersection(targets)
        try:
            list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            pytest.fail(f"{' is imported by '.join(error.args[1])}")


def test_only_evaluation_opens_the_test_set():
    users = {path.relative_to(SOURCE).as_posix() for path, _ in modules() if "open_test" in path.read_text()}
    assert users == {"data/sets.py", "evaluation/documents.py"}


def lines_with(pattern, paths):
    return [
        f"{path.name}: {line.strip()}"
        for path in paths
        for line in path.read_text().splitlines()
        if re.search(pattern, line) and not line.strip().startswith(("#", '"'))
    ]


def test_no_pickle_and_no_global_generator():
    package = [path for path, _ in modules()]
    everything = [*package, *RULES, ROOT / "setup.py", *sorted((ROOT / "benchmarks").glob("*.py"))]
    pickles = r"\bc?[pP]ickle\b|read_pickle|allow_pickle=True|torch\.load\(|joblib|\beval\(|\bexec\("
    assert lines_with(pickles, everything) == []
    assert lines_with(r"np\.load\((?!.*allow_pickle=False)", everything) == []
    assert lines_with(r"torch\.(save|manual_seed|rand\w*)\(|np\.random|random\.seed|import random", package) == []


def test_no_test_module_is_imported_by_another():
    """Helper modules beside the tests contain shared code."""
    tests = {path.stem for path, _ in modules(ROOT / "tests") if path.name.startswith("test_")}
    imports = [(path.name, name) for path, tree in modules(ROOT / "tests") for name in imported(tree)]
    assert [(file, name) for file, name in imports if tests & set(name.split("."))] == []


def test_no_test_runs_text_as_code():
    calls = [
        (path.name, ast.unparse(node.func).removeprefix("builtins."))
        for path, tree in modules(ROOT / "tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    assert [(file, called) for file, called in calls if called in ("exec", "eval")] == []


def test_overworked_words_name_no_variable():
    """They would hide what a variable holds."""
    words = {"found", "told", "said"}
    used = [
        (path.name, node.lineno)
        for path, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in words)
        or (isinstance(node, ast.arg) and node.arg in words)
    ]
    assert used == []


def test_a_rule_its_subcommand_its_module_and_its_log_have_one_name():
    """A variant, such as `train_expert` of `train`, has more words."""
    text = "\n".join(path.read_text() for path in RULES)
    rules = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.M | re.S))
    for name, rule in rules.items():
        if (command := COMMAND.search(rule)) is None:
            continue
        act = command[1].replace("-", "_")
        assert name == act or name.startswith(f"{act}_"), name
        step = import_module(f"soma.steps.{act}")
        assert callable(getattr(step, act))
        assert re.search(
            rf'log:\n        f"{{LOGS}}/{name.replace("_", "-")}[.{{-]|log:\n        f"{{LOGS}}/{command[1]}[.{{-]',
            rule,
        ), name
    acts = {path.stem for path in (SOURCE / "steps").glob("*.py")} - {"__init__"}
    assert acts == {c.replace("-", "_") for c in COMMAND.findall(text)}


def test_a_step_whose_time_and_memory_are_recorded_is_no_fork():
    text = "\n".join(path.read_text() for path in RULES)
    rules = re.findall(r"^ *rule \w+:\n(.*?)(?=^ *rule |^\S|\Z)", text, re.M | re.S)
    recorded = {COMMAND.search(rule)[1] for rule in rules if re.search(r"^ +benchmark:", rule, re.M)}
    commands = argparse.ArgumentParser().add_subparsers()
    steps.add_commands(commands)
    assert {name for name, parser in commands.choices.items() if not parser.get_default("forks")} == recorded != set()


class Payload:
    """An object whose unpickling would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_an_array_is_refused_and_not_run(tmp_path):
    """This holds even if the manifest lists the pickle."""
    objects = np.array([Payload(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "router.npz", centroids=objects, prices=objects, sizes=objects)
    seal(tmp_path, "router", {"features": "f", "settings": {"assignment": "nearest"}}, ["router.npz"])
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Router.load(tmp_path, SimpleNamespace(id="f"))
    np.save(tmp_path / "vectors.npy", objects)
    with pytest.raises(SomaError, match=r"vectors\.npy is damaged \(.*Python objects"):
        open_vectors(tmp_path / "vectors.npy")
    assert not (tmp_path / "ran").exists()


def test_every_rule_that_runs_something_says_so_and_keeps_a_log():
    text = "\n".join(path.read_text() for path in RULES)
    rules = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, re.M | re.S))
    running = {name: rule for name, rule in rules.items() if re.search(r"^    (shell|run|script):", rule, re.M)}
    assert rules.keys() - running.keys() == {"all", "data", "routing", "rates", "runs", "evaluation"}
    for name, rule in running.items():
        assert re.search(r"^    message:\n        \S", rule, re.M), name
        assert re.search(r"^    log:\n        \S", rule, re.M), name
        assert "--log {log}" in rule, name


def test_what_git_keeps_of_the_reference_campaign_is_what_its_manifest_says():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    git = ["git", "-c", "safe.directory=*"]
    kept = subprocess.run([*git, "archive", "HEAD", "results/small"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(kept.stdout)) as archive:
        files = {m.name.removeprefix("results/small/"): archive.extractfile(m).read() for m in archive if m.isfile()}
    known = json.loads(files["manifest.json"])["files"]
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name in known}
    assert {name for name in files if name.startswith(("tables/", "figures/"))} <= listed.keys()
    assert {name for name in listed if listed[name] != known[name]["sha256"]} == set()


@pytest.mark.parametrize(
    "step", ["cli", "workflow.code", "workflow.settings", "steps.table", "steps.summarise", "steps.encode"]
)
def test_torch_is_not_imported_where_it_is_not_needed(step):
    code = f"import sys, soma.{step}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
