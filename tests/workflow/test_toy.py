"""The toy campaign end to end: what it leaves, that it repeats byte for byte, and what an edit reruns."""

import csv
import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from soma.manifest import sha256_file
from soma.runs import part_experts
from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow

NUMBERED = [f"table{n}" for n in (1, 2, 4, 5, 6, 7, 9)]
TABLES = ["claims", *NUMBERED, "costs", "precision", "clusters"]
FIGURES = ["figure1", "precision"]


def table(project: Project, name: str) -> list[dict[str, str]]:
    with (project.folder / f"results/toy/tables/{name}.csv").open() as f:
        return list(csv.DictReader(f))


def test_every_product_is_there_and_nothing_is_left_to_do(toy):
    results = toy.folder / "results/toy"
    for name in TABLES:
        assert {(results / f"tables/{name}.{s}").stat().st_size > 100 for s in ("md", "csv", "html")} == {True}
    for name in FIGURES:
        assert {(results / f"figures/{name}.{s}").stat().st_size > 500 for s in ("svg", "png", "csv")} == {True}
    assert toy.planned() == {}
    assert not list((results / "resume").glob("*/*"))


def test_the_report_is_one_offline_file_with_every_product(toy):
    html = (toy.folder / "results/toy/report.html").read_text()
    for name in (*TABLES, *FIGURES):
        assert f"{name}.html" in html or f"{name}.svg" in html
    assert not re.search(r"""(src|href)=["']https?://[^"']+\.(js|css)""", html)


def test_table_4_shows_what_was_measured_and_what_was_not(toy):
    rows = table(toy, "table4")
    losses = {r["row"]: r for r in rows if r["column"] == "test loss"}
    measured = [r for r in losses.values() if r["status"] == "measured"]
    assert len(measured) == 5
    for r in measured:
        assert 1.5 < float(r["low"]) <= float(r["value"]) <= float(r["high"]) < 3.5
    not_run = [r["row"] for r in losses.values() if r["status"] == "not run"]
    methods = {r["row"]: r["text"] for r in rows if r["column"] == "method"}
    assert {methods[i] for i in not_run} == {"SPSA N=1, n_pert=1024"}
    paper = {r["text"] for r in rows if r["column"] == "test loss (paper)"}
    assert {"1.76", "2.00", "2.11", "2.21"} <= paper


def test_no_claim_is_called_reproduced_at_toy_size(toy):
    rows = table(toy, "claims")
    names = {r["row"]: r["text"] for r in rows if r["column"] == "claim"}
    verdicts = {names[r["row"]]: r["text"] for r in rows if r["column"] == "verdict"}
    assert verdicts.pop("C1") == verdicts.pop("C2") == "not testable at this scale"
    assert verdicts.pop("C16") == "inconclusive"  # by one seed, however large the difference
    verdicts.pop("C3")  # two seeds may say anything
    assert set(verdicts.values()) == {"not run"}


def test_every_measured_loss_leads_to_its_run_configuration_data_code_and_checkpoint(toy):
    results = toy.folder / "results/toy"
    cells = [r for name in ("table4", "table9") for r in table(toy, name) if r["status"] == "measured" and r["low"]]
    assert len(cells) >= 8
    for cell in cells:
        for run in cell["run"].split():
            settings = json.loads((results / f"settings/run-{run}.json").read_text())
            parts = sorted((results / "runs" / run).iterdir())
            assert sum(len(part_experts(part.name)) for part in parts) == settings["settings"]["experts"]
            for part in parts:
                record = json.loads((part / "run.json").read_text())
                assert record["run"] == settings
                assert record["checkpoints_sha256"] == sha256_file(part / "checkpoints.safetensors")
                manifest = json.loads((results / "corpus/train/manifest.json").read_text())
                assert record["corpus_sha256"] == manifest["files"]["bytes.bin"]["sha256"]
                assert record["engine"]
                assert record["soma"]
    losses = pd.read_parquet(results / "measurements/losses.parquet")
    for row in losses[(losses["set"] == "test") & losses["seed"].notna()].sample(5, random_state=0).itertuples():
        rows = pd.read_parquet(results / f"evaluation/test/{row.run}.parquet")
        rows = rows[(rows["update"] == row.update) & (rows["iterate"] == row.iterate) & (rows["k"] == row.k)]
        assert row.loss == pytest.approx(rows["nats"].sum() / rows["bytes"].sum(), rel=1e-12)


def test_from_nothing_again_gives_the_same_bytes(toy, tmp_path):
    """Everything but seconds: tables without the costs, measured rows, checkpoints, corpora, routers."""
    again = Project(tmp_path)
    again.snakemake()
    first, second = (p.folder / "results/toy" for p in (toy, again))
    names = [f"tables/{name}.{suffix}" for name in TABLES if name != "costs" for suffix in ("md", "csv", "html")]
    rows = ("losses", "differences", "backpropagation", "tuning", "tuning-test", "precision")
    names += [f"measurements/{name}.parquet" for name in rows]
    trained = ("runs/*/*/checkpoints.safetensors", "runs/*/*/history.parquet")
    for pattern in (*trained, "corpus/*/*", "sets/*", "shards/*/*"):
        names += [str(p.relative_to(first)) for p in first.glob(pattern)]
    assert len(names) > 80
    assert [n for n in names if sha256_file(first / n) != sha256_file(second / n)] == []


SUMMARIES = ("summarise_losses", "summarise_costs", "summarise_backpropagation", "search", "evaluate_chosen")
PRODUCTS = dict.fromkeys(SUMMARIES, 1) | {"table": 11, "figure": 2}
EDITS = [
    ({"compute": {"threads": 2, "save_every": 7, "ddpp": 2}}, {}),
    ({"arms": {"soma-n2": {"label": "ours"}}}, PRODUCTS),
    ({"arms": {"soma-n4": {"lr": 1e-3}}}, {"train_expert": 1, "evaluate": 3, **PRODUCTS}),
    ({"data": {"external": {"windows": 50}}}, {"evaluation_set": 1, "evaluate": 7, **PRODUCTS}),
]


@pytest.mark.parametrize(("change", "expected"), EDITS, ids=lambda value: json.dumps(value)[:60])
def test_an_edited_key_reruns_exactly_what_it_touches(toy, change, expected):
    assert toy.planned(toy.overlay(change)) == expected


def test_edited_code_reruns_the_rules_that_run_it(toy):
    path = toy.folder / "src/soma/report/comparisons.py"
    source = path.read_text()
    try:
        path.write_text(source + "\n# a remark\n")
        assert toy.planned() == {}
        path.write_text(source + "\nREMARK = 1\n")
        assert set(toy.planned()) == {"table", "figure", *SUMMARIES}
    finally:
        path.write_text(source)
    assert toy.planned() == {}


def train_command(project: Project, output: Path, resume: Path) -> list[str]:
    """Both experts of soma-n2-s0, as the workflow trains it, but saving its state all the time."""
    results = project.folder / "results/toy"
    compute = output.parent / "compute.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    compute.write_text(json.dumps({"save_every": 0.01}))
    return project.command(
        "soma.cli", "train", "--settings", str(results / "settings/run-soma-n2-s0.json"), "--part", "000-001",
        "--train", str(results / "corpus/train"), "--shards", str(results / "shards/clusters-n2"),
        "--start", str(results / "runs/seed-d16-s0/000-000"), "--resume", str(resume), "--output", str(output),
        "--compute", str(compute), "--threads", "1",
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_training_job_ends_with_the_same_bytes(toy, tmp_path, how):
    """Stopped three times at different moments, then let run to its end."""
    output, resume = tmp_path / "out/000-001", tmp_path / "resume"
    command = train_command(toy, output, resume)
    state = resume / "state.safetensors"
    for saves in (1, 5, 9):
        process = subprocess.Popen(command, env=toy.environment, stderr=subprocess.DEVNULL)
        seen, last = 0, state.stat().st_mtime_ns if state.exists() else 0
        while seen < saves and process.poll() is None:
            if state.exists() and (now := state.stat().st_mtime_ns) != last:
                seen, last = seen + 1, now
            time.sleep(0.002)
        process.send_signal(how)
        assert process.wait() != 0, "it finished before it could be stopped"
        assert not output.exists()
    assert state.exists()
    subprocess.run(command, env=toy.environment, check=True, stderr=subprocess.DEVNULL)
    whole = toy.folder / "results/toy/runs/soma-n2-s0/000-001"
    for name in ("checkpoints.safetensors", "history.parquet"):
        assert sha256_file(output / name) == sha256_file(whole / name)
    assert not resume.exists()
    assert len(json.loads((output / "cost.json").read_text())["ledger"]["sessions"]) >= 2


def test_a_damaged_start_checkpoint_stops_the_job_with_one_sentence(toy, tmp_path):
    output = tmp_path / "out/000-001"
    command = train_command(toy, output, tmp_path / "resume")
    start = tmp_path / "start"
    start.mkdir()
    for path in (toy.folder / "results/toy/runs/seed-d16-s0/000-000").iterdir():
        (start / path.name).write_bytes(path.read_bytes())
    data = bytearray((start / "checkpoints.safetensors").read_bytes())
    data[-1] ^= 1
    (start / "checkpoints.safetensors").write_bytes(data)
    command[command.index("--start") + 1] = str(start)
    done = subprocess.run(command, env=toy.environment, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "does not have the content hash that it records" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not output.exists()
