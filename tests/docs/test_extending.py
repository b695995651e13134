"""The examples of docs/extending.md work as the page says."""

import yaml
from tests.examples import blocks
from tests.project import ROOT
from tests.training.small_runs import spec, trained, trainer

from soma.config.campaign import merge, read_yaml, resolve
from soma.plan import make_plan
from soma.training.learner import LEARNERS, learner_of
from soma.training.methods.spsa import SPSALearner

PAGE = "extending.md"


def test_the_arm_of_the_example_adds_its_runs_and_nothing_else():
    base = read_yaml(ROOT / "config/config.yaml")
    before = make_plan(resolve(base))
    after = make_plan(resolve(merge(base, yaml.safe_load(blocks(PAGE, "yaml")[0].replace("5.0e13", "5.0e+13")))))
    assert {run.id for run in after.runs.values()} - set(before.runs) == {f"soma-n2-wide-s{s}" for s in range(3)}


def test_the_method_of_the_example_trains_in_the_same_loop(tmp_path, monkeypatch):
    (tmp_path / "sign_spsa.py").write_text(blocks(PAGE, "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    plain = trained(spec())
    monkeypatch.setitem(LEARNERS, "spsa", "sign_spsa:SignSPSALearner")  # under a name that the settings accept
    assert issubclass(learner_of("spsa"), SPSALearner)
    signed = trainer(spec())
    body, _, _ = signed.learner.gradients(0, [signed.learner._batch(0, 0)], lambda x: [x, x])
    assert set(body.unique().tolist()) <= {-1.0, 0.0, 1.0}
    signed.train(lambda: None)
    assert signed.progress.kept.keys() == plain.kept.keys()
    losses = signed.progress.history.column("expert_validation")
    assert losses[-1] < losses[0]
