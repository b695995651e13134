import pytest
import torch
from safetensors.torch import save_file

from soma.errors import SomaError
from soma.training.checkpoint import Checkpoints, load_tensors, publish, save_tensors, tensor_name
from soma.training.names import MILESTONES
from tests.training.small_runs import spec, trainer


def test_round_trip_and_same_bytes(tmp_path):
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.zeros(0)}
    save_tensors(tmp_path / "x", tensors, {"k": 1})
    save_tensors(tmp_path / "y", dict(reversed(tensors.items())), {"k": 1})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    loaded, facts = load_tensors(tmp_path / "x")
    assert facts == {"k": 1}
    assert torch.equal(loaded["b"], tensors["b"])


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def damage_pickle(path):
    torch.save({"x": 1}, path)


def damage_foreign(path):
    save_file({"x": torch.zeros(1)}, path)


def damage_missing(path):
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_truncate, "not a whole safetensors file"),
        (damage_flip, "content hash"),
        (damage_pickle, "not a whole safetensors file"),
        (damage_foreign, "was not written by soma"),
        (damage_missing, "is missing"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, damage, words):
    path = tmp_path / "c.safetensors"
    save_tensors(path, {"a": torch.arange(64.0)}, {})
    damage(path)
    with pytest.raises(SomaError, match=words) as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)


@pytest.fixture
def published(tmp_path):
    run = spec(updates=2)
    t = trainer(run)
    t.train(lambda: None)
    publish(tmp_path, run, "000-001", t.progress.kept, "")
    return run, t, tmp_path


def test_open_gives_the_weights_of_every_expert(published):
    run, t, path = published
    opened = Checkpoints.open(run, {"000-001": path}, milestones=True)
    assert torch.equal(opened.bodies(2, "last"), t.learner.experts.theta)
    assert torch.equal(opened.heads(2, "average"), t.progress.average["head"])


def test_some_of_a_parts_experts_can_be_opened(published):
    run, t, path = published
    assert torch.equal(
        Checkpoints.open(run, {"000-001": path}, range(1)).bodies(2, "last"), t.learner.experts.theta[:1]
    )


def test_another_runs_file_a_missing_and_a_misshapen_tensor(published, tmp_path):
    run, t, path = published
    with pytest.raises(SomaError, match="holds r/000-001, not s/000-001"):
        Checkpoints.open(run.model_copy(update={"id": "s"}), {"000-001": path})
    wider = run.model_copy(update={"settings": run.settings.model_copy(update={"width": 9})})
    with pytest.raises(SomaError, match="where the run's settings give"):
        Checkpoints.open(wider, {"000-001": path})
    kept = dict(t.progress.kept)
    del kept[tensor_name(1, 2, "average", "body")]
    publish(path, run, "000-001", kept, "")
    with pytest.raises(SomaError, match=r"milestones\.safetensors lacks the tensor 001\.00000002\.average\.body"):
        Checkpoints.open(run, {"000-001": path}, milestones=True)


def test_the_final_weights_are_enough_without_the_milestones(published):
    run, t, path = published
    (path / MILESTONES).unlink()
    assert torch.equal(Checkpoints.open(run, {"000-001": path}).bodies(2, "last"), t.learner.experts.theta)
    with pytest.raises(SomaError, match=r"milestones\.safetensors is missing"):
        Checkpoints.open(run, {"000-001": path}, milestones=True)


def test_facts_are_part_of_the_hash(tmp_path):
    path = tmp_path / "c"
    save_tensors(path, {"a": torch.arange(3.0)}, {"run": "mine"})
    data = path.read_bytes()
    assert data.count(b"mine") == 1
    path.write_bytes(data.replace(b"mine", b"thei"))
    with pytest.raises(SomaError, match="content hash"):
        load_tensors(path)
