"""Versions: recording and refusing, switching between them, comparing them, and damage."""

import shutil

import pytest

from soma.workflow.provenance import packed
from tests.dvc.repository import RESULTS, TABLE, write_metrics

pytestmark = pytest.mark.dvc

LOSSES = RESULTS / "measurements/losses.parquet"


def test_a_new_version_is_recorded_compared_and_left_again(copy):
    copy.run("git", "tag", "v0.1.0")
    copy.configure(cache={"type": "hardlink"})
    copy.dvc("checkout", "--relink")
    locked = (copy.folder / "dvc.lock").read_text()
    copy.change({"bootstrap_draws": 60, "arms": {"soma-n2": {"label": "relabelled"}}})
    refused = copy.run("soma", "snapshot", check=False)
    assert refused.returncode == 1
    assert "is out of date with its settings or code" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert (copy.folder / "dvc.lock").read_text() == locked

    copy.snakemake()
    assert copy.damaged() == []  # with links, writing in place would have changed the earlier version
    write_metrics(copy, -0.125)
    assert "modified:" in copy.dvc("status")
    copy.run("soma", "snapshot")
    assert "up to date" in copy.dvc("status")
    assert copy.dvc("repro", "--dry").count("didn't change, skipping") == 5
    copy.commit("A label")
    for versions in (("v0.1.0",), ("v0.1.0", "HEAD")):
        lines = copy.dvc("metrics", "diff", *versions).splitlines()
        assert [line.split()[-1] for line in lines if "loss soma-n2" in line] == ["-0.125"]
    assert "arms.soma-n2.label" in copy.dvc("params", "diff", "v0.1.0")
    assert "loss soma-n2" in copy.dvc("metrics", "show")
    copy.dvc("plots", "diff", "v0.1.0")
    drawn = (copy.folder / "dvc_plots/index.html").read_text()
    assert [
        part in drawn for part in ("Test loss against operations at equal total size (Figure 1)", '"2.5"', '"2.375"')
    ] == [True] * 3

    copy.run("git", "checkout", "--quiet", "v0.1.0")
    # Settings, records and tables are from the old version, losses from the new one: they must count as outdated.
    assert "summarise" in copy.planned()
    copy.dvc("checkout")
    assert "relabelled" not in (copy.folder / TABLE).read_text()
    assert copy.planned() == {}
    with (copy.folder / TABLE).open("a") as f:
        f.write("1.76")
    found = copy.run("soma", "verify", str(RESULTS), check=False)
    assert found.returncode == 1
    assert found.stdout.startswith(f"wrong    {TABLE}\n")


def test_plots_of_two_versions_are_drawn_without_a_network(copy, browser):
    copy.run("git", "tag", "v0.1.0")
    write_metrics(copy, -0.125)
    copy.commit("Lower losses")
    copy.dvc("plots", "diff", "v0.1.0", "HEAD")
    tab, asked = browser.new_page(), []
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or asked.append(request.url))
    tab.goto((copy.folder / "dvc_plots/index.html").as_uri())
    tab.wait_for_selector("canvas, svg.marks")
    assert asked == []
    tab.close()


def test_a_model_is_fetched_by_its_name_and_version(copy, tmp_path):
    copy.run("git", "tag", "--annotate", "--message", "A model", "soma-n2@v0.1.0")  # DVC overlooks other tags
    copy.dvc("artifacts", "get", str(copy.folder), "soma-n2", "--rev", "v0.1.0", "--out", str(tmp_path / "model"))
    run = copy.folder / RESULTS / "runs/soma-n2-s0"
    [weights] = run.rglob("weights.safetensors")
    assert (tmp_path / "model" / weights.relative_to(run)).read_bytes() == weights.read_bytes()


def test_a_campaign_of_several_sittings_is_recorded_as_it_comes(copy, tmp_path):
    (copy.folder / "dvc.lock").unlink()
    shutil.rmtree((copy.folder / TABLE).parent)
    refused = copy.run("soma", "snapshot", check=False)
    assert "is out of date with its settings or code" in refused.stderr
    assert (
        "data, routing, training, evaluation of results/tiny recorded"
        in copy.run("soma", "snapshot", "--partial").stdout
    )
    copy.dvc("push")
    copy.commit("So far")
    clone = copy.clone(tmp_path / "clone")
    clone.dvc("pull")
    assert clone.planned() == {"table": 1}


def test_a_damaged_object_is_noticed_and_nothing_else_is_lost(copy, tmp_path):
    losses = (copy.folder / LOSSES).read_bytes()
    (name,) = [p for p in (copy.folder / "store").rglob("*") if p.is_file() and p.read_bytes() == losses]
    name.chmod(0o644)
    name.write_bytes(losses[:-1])
    copy.commit("A damaged object")
    repository = copy.clone(tmp_path / "clone")
    said = repository.dvc("pull", check=False)
    assert "Checkout failed for following targets:\nresults/tiny/measurements\n" in said
    assert not (repository.folder / LOSSES).exists()
    assert (repository.folder / TABLE).exists()
    assert repository.planned() == {}  # everything that depends on them is present and current

    # In the cache of the repository that has the losses, the same damage is detected and repaired from the remote.
    other = copy.run("git", "checkout", "--quiet", "HEAD~1") and copy
    assert packed(other.folder / RESULTS).exists()
    cached = other.folder / ".dvc/cache" / name.relative_to(other.folder / "store")
    cached.chmod(0o644)
    cached.write_bytes(b"damaged")
    (other.folder / LOSSES).unlink()
    assert "not in cache" in other.dvc("status") or "deleted" in other.dvc("status")
    other.dvc("pull")
    assert (other.folder / LOSSES).read_bytes() == losses
