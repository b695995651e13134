"""Draw docs/architecture.md from the imports of the package: `python docs/architecture.py`, part of `make docs`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/soma"
PAGE = ROOT / "docs/architecture.md"

LAYERS = (
    ("errors", "numerics", "catalogue"),
    ("files",),
    ("config",),
    ("models",),
    ("runs",),
    ("data", "routing", "plan"),
    ("forward", "layout"),
    ("estimators",),
    ("accounting",),
    ("training",),
    ("evaluation",),
    ("inference", "analysis"),
    ("measurements", "web"),
    ("report",),
    ("workflow", "steps", "preflight"),
    ("commands",),
    ("cli",),
)
"""Rooms (packages and modules of `soma`) from the ground up; a room may import rooms of lower layers only."""
EVERYWHERE = {"errors", "files", "numerics"}
"""Rooms that most others import, whose arrows would hide the rest."""

_OPENING = """\
# Architecture

The source, `src/soma`, is a house of rooms, each a package or a module. A room may import only rooms of lower layers,
and the modules of a room do not import each other in a circle; `tests/test_structure.py` holds both. An arrow points
from a room to one that it imports. Arrows that follow from others are left out, and so are those to {everywhere},
which most rooms use.

```mermaid
flowchart TD
{diagram}
```

What a room may touch:

- **The test set** is opened by `evaluation` alone. `measurements` get their text from `measurements.inputs`, which
  cannot reach it.
- **Files of a campaign** are written by `steps`, each in one atomic move (`files.atomic`); `layout` names the paths
  that tables and figures read.
- **Randomness** comes from `numerics.rng`; there is no global generator.
- **Names of rows, tables, figures and claims** stand in `catalogue` and nowhere else. The functions that it names,
  methods (`training.learner.LEARNERS`), engines (`forward.registry.ENGINES`) and sources (`data.sources.LOADERS`) are
  imported when they are used: no arrow shows them, and the digests of code (`workflow.digests`) follow them by name.
- **torch** is imported neither by `analysis` and `report` nor by `workflow`: planning and reporting start at once.
- **Jobs on one machine** are forks of one process that has imported their libraries (`cli.forks`), unless they use a
  GPU or their time and memory are recorded. On a cluster every job is a process of its own.

| room | purpose |
| --- | --- |
{table}

*This page is drawn from the imports by `make docs`.*
"""


def order() -> list[str]:
    """Return the rooms from the ground up."""
    return [room for layer in LAYERS for room in layer]


def rooms() -> dict[str, Path]:
    """Return the path of every room."""
    packages = {path.parent.name: path.parent for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem: path for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}
    return packages | modules


def imports(path: Path) -> set[str]:
    """Return the rooms that the modules of a path import."""
    names: set[str] = set()
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "soma":
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("soma."):
                names.add(str(node.module).split(".")[1])
            elif isinstance(node, ast.Import):
                names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("soma.")}
    return (names - {path.stem}) & rooms().keys()


def arrows() -> set[tuple[str, str]]:
    """Return the imports between rooms that do not follow from others."""
    direct = {room: imports(path) - EVERYWHERE for room, path in rooms().items()}

    def reached(room: str) -> set[str]:
        return {other for next_ in direct[room] for other in {next_} | reached(next_)}

    return {
        (room, other)
        for room, others in direct.items()
        for other in others
        if not any(other in reached(between) for between in others - {other})
    }


def page() -> str:
    """Return the page."""
    lines = [f"  {room} --> {other}" for room, other in sorted(arrows(), key=_position)]
    table = [f"| `{room}` | {_purpose(rooms()[room])} |" for room in order()]
    everywhere = ", ".join(f"`{room}`" for room in sorted(EVERYWHERE))
    return _OPENING.format(diagram="\n".join(lines), table="\n".join(table), everywhere=everywhere)


def _position(arrow: tuple[str, str]) -> tuple[int, ...]:
    return tuple(-order().index(room) for room in arrow)


def _purpose(path: Path) -> str:
    text = ast.get_docstring(ast.parse((path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring"
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
