"""dvc.yaml lists the outputs of the reference campaign by phase, and git ignores none that it should store."""

from pathlib import Path

import pytest
import yaml

from tests.dvc.repository import Repository
from tests.project import ROOT, Project

pytestmark = pytest.mark.dvc

PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES = PIPELINE["stages"]
NOT_VERSIONED = ("logs", "resume", "settings", "report.html")
"""Files that belong to one machine, or that every run rewrites."""


def outputs(stage: dict) -> dict[str, dict]:
    found = [next(iter(o.items())) for o in (*stage["outs"], *stage.get("metrics", []))]
    return {name.replace("${campaign}", "small"): options for name, options in found}


OUTPUTS = {name: options for stage in STAGES.values() for name, options in outputs(stage).items()}


def test_every_file_that_the_workflow_makes_is_versioned_or_known_not_to_be(tmp_path):
    """Return all files of the workflow from the summary of a dry run."""
    lines = Project(tmp_path).snakemake("--summary", config="").stdout.splitlines()
    made = {line.split("\t")[0] for line in lines if line.startswith("results/small/")}
    assert len(made) > 1000
    left_out = {f"results/small/{name}" for name in NOT_VERSIONED}
    unknown = [f for f in made if not any(Path(f).is_relative_to(name) for name in OUTPUTS.keys() | left_out)]
    assert unknown == []
    # Files that the workflow writes when it ends are not outputs of a rule.
    after = {f"results/small/{n}" for n in ("manifest.json", "provenance.json", "benchmarks")}
    empty = [name for name in OUTPUTS if not any(Path(f).is_relative_to(name) for f in made)]
    assert set(empty) == after


def test_nothing_is_deleted_before_a_stage_runs():
    assert all(options["persist"] for options in OUTPUTS.values())


def test_the_stages_follow_the_workflow():
    """Every stage reads only outputs of earlier stages; a folder that it does not name does not exist yet."""
    seen: set[str] = set()
    for stage in STAGES.values():
        reads = [d.replace("${campaign}", "small") for d in stage["deps"] if "${campaign}" in d]
        assert all(any(Path(name).is_relative_to(output) for output in seen) for name in reads)
        seen |= outputs(stage).keys()
        for path in stage["deps"]:
            assert "${campaign}" in path or (ROOT / path).exists()
        for keys in (keys for file in stage["params"] for keys in file.values()):
            assert set(keys) <= yaml.safe_load((ROOT / "config/config.yaml").read_text()).keys()


def test_dvc_leaves_out_what_only_finished_steps_of_the_reference_campaign_read(copy):
    measured = ("soma-n2-s0", "eggroll-n1-s0", "bptt-n2-s0", "long-n4-s0", "pair-n4-s1", "est-sparse-s1")
    kept = [f"runs/{run}/000-000/weights.safetensors" for run in measured]
    others = ("tune-n1-s0", "eggroll-n1-p256-s0", "bptt-iid-s0", "bptt-n2-s1", "est-dense-s0", "pair-n4-summed-s0")
    left = [f"runs/{run}/000-000/weights.safetensors" for run in others]
    left += ["runs/soma-n2-s0/000-000/milestones.safetensors", "routing/vectors.npy", "corpus/external/bytes.bin"]
    kept.append("corpus/test/bytes.bin")
    downloads = [f"results/{campaign}/corpus/source-train/documents-00000.parquet" for campaign in ("small", "tiny")]
    asked = [f"results/{campaign}/{name}" for campaign in ("small", "tiny") for name in (*kept, *left)]
    ignored = set(copy.dvc("check-ignore", *asked, *downloads).split())
    assert ignored == {*downloads, *(f"results/small/{name}" for name in left)}


def test_git_keeps_what_dvc_leaves_to_it_and_nothing_else(tmp_path):
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    repository = Repository(tmp_path)
    repository.run("git", "init", "--quiet")
    asked = [*OUTPUTS, *(f"results/small/{name}" for name in NOT_VERSIONED), "results/toy/README.md", "store/files"]
    hidden = repository.run("git", "check-ignore", *asked, check=False).stdout.split()
    kept = {name for name, options in OUTPUTS.items() if options.get("cache") is False}
    assert set(asked) - set(hidden) == kept | {"store/files"}
    shown = {line[1:] for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("!results/small/")}
    # DVC requires every output, and not every campaign has adoptions, so only git stores them.
    assert kept == shown - {"results/small/", "results/small/adoptions.json"}
