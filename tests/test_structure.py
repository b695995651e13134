"""Rules about the code itself: what may import what, and what must not appear at all."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/soma"

# A module may import modules of its own line and of the lines above it.
LAYERS = [
    {"errors", "unwritable"},
    {"rng", "manifest", "settings"},
    {"models", "provenance"},
    {"runs", "rows"},
    {"config"},
    {"config_docs"},
    {"data", "routing", "plan", "probes"},
    {"forward"},
    {"estimators"},
    {"cost", "ensemble"},
    {"training"},
    {"evaluate"},
    {"inference"},
    {"analysis"},
    {"report"},
    {"steps"},
    {"cli_models", "cli_campaign"},
    {"cli", "workflow"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_dependencies_point_one_way():
    wrong = []
    for path, tree in modules():
        if unit(path) == "__init__":
            continue
        for name in imported(tree):
            words = name.split(".")
            if words[0] == "soma" and len(words) > 1 and words[1] != "__version__":
                other = words[1]
                if RANK[other] > RANK[unit(path)] or (RANK[other] == RANK[unit(path)] and other != unit(path)):
                    wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_only_evaluation_opens_the_test_set():
    users = {path.relative_to(SOURCE).as_posix() for path, _ in modules() if "open_test" in path.read_text()}
    assert users == {"data/sets.py", "evaluate.py"}


def test_no_pickle_and_no_global_generator():
    words = (
        r"\bpickle\b",
        r"torch\.(save|load|manual_seed|rand\w*)\(",
        r"np\.random",
        r"random\.seed",
        "import random",
    )
    pattern = re.compile("|".join((*words, "joblib", r"\beval\(", r"\bexec\(")))
    offenders = [
        f"{path.name}: {line.strip()}"
        for path, _ in modules()
        for line in path.read_text().splitlines()
        if pattern.search(line) and "allow_pickle=False" not in line and not line.strip().startswith(("#", '"'))
    ]
    assert not offenders
    loads = [line for path, _ in modules() for line in path.read_text().splitlines() if "np.load(" in line]
    assert all("allow_pickle=False" in line for line in loads), loads


@pytest.mark.parametrize("step", ["cli", "workflow", "steps.report", "steps.summarise", "steps.encode"])
def test_torch_is_not_imported_where_it_is_not_needed(step):
    code = f"import sys, soma.{step}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
