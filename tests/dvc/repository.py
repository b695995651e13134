"""Throw-away git and DVC repositories that contain the project and version a one-minute campaign."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from soma.analysis.claims import Judged
from soma.analysis.verdict import Difference
from soma.config.campaign import merge, read_yaml, resolve
from soma.files.atomic import write_json
from soma.plan import Plan, make_plan
from soma.report.metrics import collect, headline
from tests import zygote
from tests.project import ROOT, Project, planned_jobs, whole

RESULTS = Path("results/tiny")
OVERLAY = "config/tiny.yaml"
TABLE = RESULTS / "tables/table4.md"
TARGETS = [str(TABLE)]
"""One table and with it all its inputs: data, routing, training from a seed run, evaluation on three sets."""
PHASES = ["figures", "tables", "measurements", "evaluation", "runs", "shards", "routing", "sets", "corpus"]
"""Folders in reverse order of creation."""

_TINY: dict[str, Any] = {
    "campaign": "tiny",
    "bootstrap_draws": 50,
    "data": {
        "train": {"source": "text", "path": "text/train"},
        "external": {"source": {"source": "text", "path": "text/external"}, "windows": 8},
        "validation": {"windows": 8},
        "test": {"windows": 8},
        "expert_validation": 0.2,
    },
    "routing": {"features": 200, "svd": 8, "sample": 1000, "min_df": 1},
    "training": {"milestones": [1.0]},
    "seed_run": {"updates": 2},
    "arms": {"soma-n2": {"operations": None, "updates": 4, "seeds": [0], "width": 4}},
    "products": {
        "fixed_size": {"against": [], "also": []},
        "inference": {"arms": ["soma-n2"], "many": "soma-n2", "few": "soma-n2"},
    },
}
_VERSIONED = ("dvc.yaml", ".dvcignore", ".gitignore", ".gitattributes", ".dvc/config", ".dvc/.gitignore", ".dvc/plots")


class Repository:
    """A checkout under DVC."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(folder / ".dvc/tmp/site"),
            **{f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment in the folder and return the process with its output."""
        if words[0] in ("dvc", "snakemake", "soma"):
            words = ("soma.cli", *words[1:]) if words[0] == "soma" else words
            return whole(zygote.run(list(words), self.folder, self.environment), check)
        options = {"cwd": self.folder, "env": self.environment, "check": False}
        return whole(subprocess.run(words, capture_output=True, text=True, **options), check)

    def dvc(self, *words: str, check: bool = True) -> str:
        done = self.run("dvc", *words, check=check)
        return done.stdout + done.stderr

    def snakemake(self, *words: str) -> str:
        done = self.run("snakemake", *TARGETS, "--cores", "2", *words, "--configfile", OVERLAY)
        return done.stdout + done.stderr

    def planned(self) -> dict[str, int]:
        """Return the jobs of a dry run by rule."""
        return planned_jobs(self.snakemake("-n"))

    def configure(self, **sections: dict[str, str]) -> None:
        """Write settings like `dvc config --local`, which takes a second per value; a name with `_` is a remote's."""
        lines = []
        for name, values in sections.items():
            lines.append(f"['remote \"{name.removeprefix('_')}\"']" if name.startswith("_") else f"[{name}]")
            lines += [f"{key} = {value}" for key, value in values.items()]
        (self.folder / ".dvc/config.local").write_text("\n".join(lines) + "\n")

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def change(self, changes: dict[str, Any]) -> None:
        """Edit the campaign's overlay."""
        path = self.folder / OVERLAY
        path.write_text(yaml.safe_dump(merge(read_yaml(path), changes)))

    def clone(self, folder: Path) -> Repository:
        self.run("git", "clone", "--quiet", str(self.folder), str(folder))
        return Repository(folder)

    def reverse_dates(self, campaign: str = "tiny") -> None:
        """Give the newest outputs the oldest modification times, the opposite of what Snakemake expects."""
        results = self.folder / "results" / campaign
        paths = sorted(
            (p for p in results.rglob("*") if p.relative_to(results).parts[0] in PHASES),
            key=lambda p: PHASES.index(p.relative_to(results).parts[0]),
        )
        for i, path in enumerate(paths):
            os.utime(path, (1.7e9 + 60 * i,) * 2)

    def damaged(self) -> list[Path]:
        """Return the objects of DVC's cache whose content does not match their name."""
        objects = [p for p in (self.folder / ".dvc/cache/files/md5").rglob("*") if p.is_file()]
        assert objects
        return [p for p in objects if hashlib.md5(p.read_bytes()).hexdigest() != p.parent.name + p.stem]

    def plan(self) -> Plan:
        raw = merge(read_yaml(self.folder / "config/config.yaml"), read_yaml(self.folder / OVERLAY))
        return make_plan(resolve(raw))


def new_repository(folder: Path) -> Repository:
    """Return the project with the tiny campaign run and nothing committed to DVC."""
    Project(folder)
    repository = Repository(folder)
    _write_text(folder / "text")
    (folder / OVERLAY).write_text(yaml.safe_dump(merge(read_yaml(ROOT / "config/toy.yaml"), _TINY)))
    repository.snakemake()
    prepare(repository, "tiny", f"--configfile {OVERLAY}")
    _keep_what_is_here(folder / "dvc.yaml")
    return repository


def prepare(repository: Repository, campaign: str, overlay: str) -> None:
    """Set up git and DVC for a user's own campaign, as in docs/dvc.md."""
    folder = repository.folder
    (folder / ".dvc").mkdir()
    for name in _VERSIONED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    pipeline = (ROOT / "dvc.yaml").read_text()
    for old, new in (("campaign: small", f"campaign: {campaign}"), ('overlay: ""', f"overlay: {overlay}")):
        assert pipeline.count(old) == 1
        pipeline = pipeline.replace(old, new)
    (folder / "dvc.yaml").write_text(pipeline)
    ignored = (ROOT / ".gitignore").read_text()
    (folder / ".gitignore").write_text(ignored.replace("results/small", f"results/{campaign}"))
    repository.run("git", "init", "--quiet")


def write_metrics(repository: Repository, bump: float) -> None:
    """Write the outputs of `metrics` and `figure`, from the campaign's losses and an invented difference and curve."""
    losses = pd.read_parquet(repository.folder / RESULTS / "measurements/losses.parquet")
    losses["loss"] += bump
    nan = float("nan")
    difference = Difference("SOMA minus SPSA", bump - 0.5, bump - 0.6, bump - 0.4, nan, nan, 1)
    judged = [Judged("C1", [difference], "inconclusive", "one seed")]
    none = pd.DataFrame(columns=["control", "seeds", "iterate", "set"])
    collected = collect(repository.plan(), losses, judged, *[none] * 3)
    write_json(repository.folder / RESULTS / "numbers.json", collected)
    write_json(repository.folder / RESULTS / "metrics.json", headline(repository.plan(), collected, judged))
    curve = pd.DataFrame({"operations": [1e9, 2e9], "loss": [3.5, 2.5 + bump], "label": "SOMA N=2", "source": "ours"})
    (repository.folder / RESULTS / "figures").mkdir(exist_ok=True)
    curve.to_csv(repository.folder / RESULTS / "figures/figure1.csv", index=False)


def _write_text(folder: Path) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(300)]
    for role, count in (("train", 30), ("external", 4)):
        (folder / role).mkdir(parents=True)
        for i in range(count):
            (folder / role / f"{i:02d}.txt").write_text(" ".join(rng.choices(rng.sample(words, 60), k=400)))


def _keep_what_is_here(path: Path) -> None:
    """Remove the outputs from dvc.yaml that the tiny campaign's one table does not need."""
    pipeline = yaml.safe_load(path.read_text())
    for name, stage in pipeline["stages"].items():
        outputs = [next(iter(o)).replace("${campaign}", "tiny") for o in stage["outs"]]
        stage["outs"] = [o for o, file in zip(stage["outs"], outputs, strict=True) if (path.parent / file).exists()]
        stage["params"].append({OVERLAY: ["arms", "data", "training"]})
        if name in ("evaluation", "products"):
            stage["cmd"] = f"snakemake {TARGETS[0]} --cores all ${{overlay}}"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
