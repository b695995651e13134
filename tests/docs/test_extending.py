"""The examples of docs/extending.md work as the page says."""

import sys

import numpy as np
import pytest
import torch
import yaml
from tests.examples import blocks, imported, own_methods
from tests.project import ROOT
from tests.training.small_runs import WINDOW, WINDOWS, spec, trained, trainer

from soma import runs
from soma.config.campaign import merge, read_yaml, resolve
from soma.errors import SomaError
from soma.evaluation.documents import _token_losses
from soma.evaluation.published import Published
from soma.plan import make_plan
from soma.report.page.page import _settings
from soma.runs import operations_of
from soma.training.checkpoint import publish
from soma.training.learner import learner_of
from soma.training.loop import Interrupted
from soma.training.methods.spsa import SPSALearner
from soma.workflow.code import RunCode
from soma.workflow.digests import Package

PAGE = "extending.md"


def test_the_arm_of_the_example_adds_its_runs_and_nothing_else():
    base = read_yaml(ROOT / "config/config.yaml")
    before = make_plan(resolve(base))
    after = make_plan(resolve(merge(base, yaml.safe_load(blocks(PAGE, "yaml")[0].replace("5.0e13", "5.0e+13")))))
    assert {run.id for run in after.runs.values()} - set(before.runs) == {f"soma-n2-wide-s{s}" for s in range(3)}


def overlay(number):
    """Merge an overlay of the page over the campaign."""
    text = blocks(PAGE, "yaml")[number].replace("5.0e13", "5.0e+13")
    return resolve(merge(read_yaml(ROOT / "config/config.yaml"), yaml.safe_load(text)))


def test_the_study_of_the_example_needs_no_run_that_the_campaign_lacks():
    [text] = [text for text in blocks(PAGE, "yaml") if "study:" in text]
    base = read_yaml(ROOT / "config/config.yaml")
    before, after = make_plan(resolve(base)), make_plan(resolve(merge(base, yaml.safe_load(text))))
    assert after.runs == before.runs
    assert "study" in after.config.catalogue.tables
    assert "study" not in before.config.catalogue.tables


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Write the page's modules into a folder of the path."""
    names = own_methods(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    runs._imported.cache_clear()
    for name in names:
        sys.modules.pop(name, None)


OWN = {"method": "my_methods:ConvolutionLearner", "updates": 60, "n_pert": 16, "batch": 8, "eps": 1e-3}


def test_the_method_of_the_example_trains_in_the_same_loop(place):
    plain = trained(spec())
    method = "sign_spsa:SignSPSALearner"
    assert issubclass(learner_of(method), SPSALearner)
    signed = trainer(spec(method=method))
    body, _, _ = signed.learner.gradients(0, [signed.learner._batch(0, 0)], lambda x: [x, x])
    assert set(body.unique().tolist()) <= {-1.0, 0.0, 1.0}
    signed.train(lambda: None)
    assert signed.progress.kept.keys() == plain.kept.keys()
    losses = signed.progress.history.column("expert_validation")
    assert losses[-1] < losses[0]
    assert operations_of(spec(method=method).settings, 3) == operations_of(spec().settings, 3)


def test_the_module_of_the_example_trains_resumes_and_is_evaluated(place):
    run = spec(**OWN)
    whole = trainer(run)
    whole.train(lambda: None)
    losses = whole.progress.history.column("expert_validation")
    assert losses[-1] < losses[0] - 0.05
    saved = []
    first = trainer(run)
    with pytest.raises(Interrupted):
        first.train(lambda: saved.append(first.state().copied()), should_stop=lambda: first.progress.update == 5)
    again = trainer(run)
    again.continue_from(saved[-1])
    again.train(lambda: None)
    for e in range(2):
        assert torch.equal(again.learner.weights["body"][e], whole.learner.weights["body"][e])
    publish(place / "r/000-001", run, "000-001", whole.progress.kept, "")
    opened = Published.open({"run": run.model_dump(), "parts": ["r/000-001"], "head": None}, place, milestones=True)
    loss = _token_losses(opened, None, run.updates, "last")(1, WINDOWS.crops(np.arange(4), np.zeros(4, int), WINDOW))
    assert loss.shape == (4, WINDOW)
    assert loss.mean() == pytest.approx(float(losses[-1]), abs=0.5)


def test_operations_of_a_module_are_those_of_its_products(place):
    """An embedding costs nothing; each of n_pert + 1 forward passes multiplies by 4 d^2 + 256 d weights."""
    run = spec(**OWN)
    s = run.settings
    per_byte = 2 * (4 * s.width**2 + 256 * s.width)
    per_update = per_byte * (s.n_pert + 1) * s.batch * s.crop
    assert operations_of(s, 7) == 7 * s.experts * per_update
    assert run.body_size == 256 * s.width + 4 * s.width**2 + s.width + 256 * s.width + 256


def test_the_arm_of_the_module_stands_in_the_products_and_its_code_is_followed(place):
    plan = make_plan(overlay(2))
    [run] = plan.arm_runs["convolution"]
    assert "convolution" in plan.config.products.fixed_size.arms
    assert run.operations(run.updates) <= 5e13 < run.operations(run.updates + 1)
    label = f"train/{run.settings.method}/cpu"
    assert RunCode(plan, place).train(run, "000-000").startswith(f"{label}:")
    assert "my_methods:ConvolutionLearner" in RunCode(plan, place).evaluate([run])
    assert dict(_settings(run))["method"] == run.settings.method  # as the campaign's page shows it
    package = Package(ROOT / "src/soma")
    assert "my_methods.forward_gradient" in package.reached(label)
    before = package.digest(label)
    path = place / "my_methods.py"
    path.write_text(path.read_text().replace("/ eps", "* eps"))
    assert Package(ROOT / "src/soma").digest(label) != before
    with pytest.raises(SomaError, match="set start: random"):
        make_plan(resolve(merge(overlay(2).model_dump(), {"arms": {"convolution": {"start": "seed"}}})))


def test_a_method_that_is_not_there_is_one_sentence():
    for method, sentence in (("nowhere:At", "PYTHONPATH"), ("pathlib:Path", "is no learner")):
        with pytest.raises(SomaError, match=sentence):
            learner_of(method)


def test_the_notebook_of_the_example_runs(place, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = next(code for code in blocks(PAGE, "python") if "cosine_similarity" in code)
    imported(code, place / "notebook.py")
    cosines = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert min(cosines) > 0
    assert cosines[2] > cosines[0]
