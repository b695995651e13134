"""The GPU engine without a GPU: its kernels in triton's interpreter, and compiled for two kinds of GPU.

What only a GPU can show (that the compiled kernels compute the same, CUDA graphs, times) is for `benchmarks/gpu.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import difference_error, make_case

from soma.forward.probes import combine
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine
from soma.models import lstm
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

with pytest.MonkeyPatch.context() as patch:
    # Triton decides when a kernel is defined, those of its own library included; nothing before here imports it.
    patch.setenv("TRITON_INTERPRET", "1")
    triton = pytest.importorskip("triton", reason="triton is not installed: pip install -r requirements-triton.txt")
    from soma.forward import triton_network
    from soma.forward.triton_engine import TritonEngine
    from soma.forward.triton_network import Network, Tuning, layout

REFERENCE = ReferenceEngine()
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _interpret():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


def engine(**tuning):
    """The engine in the interpreter, whose time goes by the number of programs."""
    few = {"coordinates": 1 << 17, "row_programs": 1, "row_tile": 64, "norm_rows": 64, "cells": 1 << 14}
    return TritonEngine(CPU, tuning=Tuning(**few | tuning))


class TestAgainstTheReference:
    @pytest.mark.parametrize("width", [8, 16, 32, 33])
    def test_losses_and_their_differences(self, width):
        case = make_case(width, batch=13, time=4, experts=1)
        before = case.theta.clone()
        got, want = case.losses(engine()), case.losses(REFERENCE)
        assert torch.equal(case.theta, before)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=3e-6)
        assert difference_error(got, want) <= 2e-4

    @pytest.mark.parametrize("width", [16, 32, 33])
    def test_token_losses_and_hidden(self, width):
        case = make_case(width, batch=5, time=4, experts=1)
        losses, hidden = case.token_losses(engine()), case.hidden(engine())
        assert losses.dtype == np.float64
        assert hidden.dtype == torch.float32
        np.testing.assert_allclose(losses, case.token_losses(REFERENCE), rtol=1e-5)
        torch.testing.assert_close(hidden, case.hidden(REFERENCE).float(), rtol=1e-4, atol=2e-5)

    @pytest.mark.parametrize(
        "change",
        [
            {"width": 16, "time": 1, "batch": 1, "directions": 1},
            {"width": 12, "embedding": 12},  # no projections at another embedding width
            {"width": 48, "embedding": 48},  # nor where blocks are matrix products
            {"width": 7, "embedding": 5, "depth": 1},
            {"width": 16, "kind": "dense"},
            {"width": 33, "kind": "gaussian"},
            {"width": 8, "batch": 17},  # two programs over sequences
        ],
        ids=str,
    )
    def test_shapes_off_the_beaten_path(self, change):
        case = make_case(**({"time": 3, "experts": 1} | change))
        np.testing.assert_allclose(case.losses(engine()), case.losses(REFERENCE), rtol=3e-6)

    @pytest.mark.parametrize("signs", [(-1,), (-1, 1)], ids=str)
    @pytest.mark.parametrize("kind", ["sparse", "gaussian"])
    def test_other_signs(self, kind, signs):
        case = make_case(8, experts=1, batch=2, time=1, kind=kind)
        got = case.losses(engine(), *signs)
        np.testing.assert_allclose(got, case.losses(engine())[..., [1, 0][: len(signs)]], rtol=1e-7)

    def test_large_logits_and_saturated_gates(self):
        case = make_case(33, batch=3, experts=1)
        scaled = case.with_weights(theta=case.theta * 30, head=case.head * 60)
        got, want = scaled.token_losses(engine()), scaled.token_losses(REFERENCE)
        assert want.max() > 200
        assert np.isfinite(got).all()
        assert np.median(np.abs(got - want) / want.clip(1)) < 1e-3

    @pytest.mark.filterwarnings("ignore:All-NaN slice")  # how the interpreter takes a maximum
    def test_a_broken_model_has_no_finite_loss(self):
        case = make_case(16, time=2)
        theta = case.theta.clone()
        theta[0, 40] = torch.nan
        got = case.with_weights(theta=theta).losses(engine())
        assert np.isnan(got[0]).all()
        assert np.isfinite(got[1]).all()


class TestWhatChangesNothing:
    def test_the_experts_and_directions_that_share_the_call(self):
        case = make_case(16, batch=3, time=2)
        whole = case.losses(engine())
        one = case.some(1)
        np.testing.assert_array_equal(one.losses(engine()), whole[1:])
        some = replace(one, probes=replace(one.probes, directions=range(3, 4)))
        np.testing.assert_allclose(some.losses(engine()), whole[1:, 1:], rtol=1e-7)

    @pytest.mark.parametrize("width", [16, 33])
    def test_chunks_of_time_and_of_copies(self, width):
        case = make_case(width, experts=1, time=3)
        padded = layout(case.spec)
        chunked = engine(longest=2, copy_floats=2 * padded.source.size)
        np.testing.assert_allclose(case.losses(chunked), case.losses(engine()), rtol=1e-7)
        np.testing.assert_allclose(case.token_losses(chunked), case.token_losses(REFERENCE), rtol=1e-5)
        torch.testing.assert_close(case.hidden(chunked), case.hidden(REFERENCE).float(), rtol=1e-4, atol=2e-5)

    def test_chunks_fit_their_budget(self):
        paper, wide = (Network(layout(LSTMSpec(width)), CPU) for width in (32, 509))
        assert paper._chunk(2 * 64 * 64, 1024) == 256
        assert paper._chunk(2 * 64 * 64, 100) == 100
        assert wide._chunk(2 * 64 * 64, 1024) == 16
        assert paper._chunk(1 << 40, 1024) == 1

    def test_a_recorded_graph(self, monkeypatch):
        """Work is launched once, recorded without running, then replayed."""
        done = []

        class Graph:
            def replay(self):
                done.append("replay")

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext(done.append("record")))
        recorded = triton_network._Recorded(graphs=True)
        for _ in range(3):
            recorded(lambda: done.append("work"))
        assert done == ["work", "record", "work", "replay", "replay"]


class TestProbes:
    @pytest.mark.parametrize("kind", ["sparse", "dense"])
    @pytest.mark.parametrize("width", [8, 33])
    def test_packed_and_combined_bit_for_bit(self, width, kind):
        case = make_case(width, experts=3, directions=4, kind=kind)
        probes = replace(case.probes, experts=(5, 0, 255), update=2**31 + 3, stream=Stream(2**64 - 3))
        packed = probes.packed()
        np.testing.assert_array_equal(engine().packed(probes), packed)
        coefficients = np.random.default_rng(0).normal(size=(3, 4))
        want = combine(packed, coefficients, case.spec.size)
        np.testing.assert_array_equal(engine().combine(probes, coefficients), want)

    def test_directions_in_any_order_and_many_programs(self):
        probes = replace(make_case(8, experts=1).probes, directions=range(9, 2, -3))
        np.testing.assert_array_equal(engine(coordinates=1024).packed(probes), probes.packed())
        coefficients = np.ones((1, 3))
        want = combine(probes.packed(), coefficients, probes.spec.size)
        np.testing.assert_array_equal(engine(coordinates=1024).combine(probes, coefficients), want)

    @pytest.mark.parametrize("width", [16, 33])
    def test_copies_are_the_bodies_plus_and_minus_eps_z(self, width):
        case = make_case(width)
        padded = layout(case.spec)
        part = case.probes.part(slice(1, 2), slice(None))
        copies = engine()._perturbed(Network(padded, CPU), case.theta[1], part, torch.tensor([0.5, -0.5]))
        step = 0.5 * torch.from_numpy(case.probes.signs()[1]).float()
        flat = torch.stack([case.theta[1] + step, case.theta[1] - step], dim=1).flatten(0, 1)
        named = lstm.tensors(case.spec, flat)
        up = padded.matrix(copies, "blocks.1.lstm_input").unflatten(2, (4, padded.width))
        d = case.spec.width
        assert torch.equal(up[:, :d, :, :d], named["blocks.1.lstm_input"].unflatten(1, (4, d)).permute(0, 3, 1, 2))
        assert not up[:, d:].any()
        assert not up[..., d:].any()
        down = padded.matrix(copies, "project_in")
        assert torch.equal(down[:, :32, :d], named["project_in"].transpose(1, 2))

    def test_gaussian_directions(self):
        case = make_case(33, directions=3, kind="gaussian")
        part = case.probes.part(slice(1, 2), slice(None))
        copies = engine()._perturbed(Network(layout(case.spec), CPU), case.theta[1], part, torch.tensor([0.5, -0.5]))
        source = torch.from_numpy(layout(case.spec).source)
        want = case.theta[1] + torch.tensor([0.5, -0.5])[:, None] * torch.from_numpy(part.normals()[0])[:, None]
        assert torch.equal(copies[:, source >= 0], want.flatten(0, 1)[:, source[source >= 0].long()])
        assert not copies[:, source < 0].any()
        coefficients = np.random.default_rng(0).normal(size=(2, 3))
        np.testing.assert_array_equal(
            engine().combine(case.probes, coefficients), REFERENCE.combine(case.probes, coefficients)
        )

    def test_wrong_arguments(self):
        case = make_case(8)
        with pytest.raises(ValueError, match=r"float64 \(2, 2\)"):
            engine().combine(case.probes, np.zeros((2, 3)))
        with pytest.raises(ValueError, match="1 values of eps"):
            replace(case, eps=[1e-3]).losses(engine())


@pytest.mark.parametrize("spec", [LSTMSpec(8), LSTMSpec(32), LSTMSpec(33), LSTMSpec(509), LSTMSpec(7, 1, 5)], ids=str)
def test_padded_layout_holds_every_coordinate_once(spec):
    padded = layout(spec)
    held = padded.source[padded.source >= 0]
    np.testing.assert_array_equal(np.sort(held), np.arange(spec.size))
    assert all(offset % 16 == 0 for offset in padded.at.values())  # vector loads, aligned matrix products


# The benchmark, where there is no GPU.


@pytest.fixture(scope="module")
def bench(request):
    path = request.config.rootpath / "benchmarks/gpu.py"
    spec = importlib.util.spec_from_file_location("gpu_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def compiled(request, tmp_path_factory):
    """Every kernel for an H200 (sm_90) and for the paper's RTX 5090 (sm_120), by a process that does not interpret."""
    folder = tmp_path_factory.mktemp("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(folder)}
    out = folder / "kernels.json"
    command = [sys.executable, "benchmarks/gpu.py", "--compile", "90", "120", "--out", str(out)]
    done = subprocess.run(
        command, cwd=request.config.rootpath, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{done.stdout}", end="")
    return json.loads(out.read_text())["kernels"]


@pytest.mark.parametrize(("architecture", "shared_kilobytes"), [("sm_90", 227), ("sm_120", 99)])
def test_kernels_compile_for_gpus(architecture, shared_kilobytes, compiled):
    kernels = [k for k in compiled if k["architecture"] == architecture]
    names = {"perturb", "combine", "lstm_layer", "mlp_layer", "cross_entropy", "norm_rows", "lstm_cell"}
    assert {k["kernel"] for k in kernels} == names
    assert not [k for k in kernels if k["spilled_bytes"]]
    assert max(k["shared_bytes"] for k in kernels) <= shared_kilobytes * 1024


class TestBenchmark:
    def test_says_that_there_is_no_gpu(self, bench, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        out = tmp_path / "gpu.json"
        assert bench.main(["--out", str(out)]) == 1
        assert "CUDA" in capsys.readouterr().err
        assert not out.exists()

    def test_checks_and_times_every_engine(self, bench, tmp_path):
        """The whole run at tiny size: the interpreter stands in for the compiled kernels."""
        tiny = bench.Size(8, directions=2, batch=16, time=3)
        engines = {"torch": lambda: TorchEngine(CPU), "triton": engine, "broken": lambda: 1 / 0}
        record = bench.Record(tmp_path / "gpu.json", {"device": "none"})
        bench.benchmark(record, engines, CPU, bench.Clock(CPU, 60), [tiny], [], tiny, repeats=2)
        got = json.loads((tmp_path / "gpu.json").read_text())
        assert got["device"] == "none"
        assert {"calls", "milliseconds", "kernel"} == set(got["kernels"][0])
        assert [c["engine"] for c in got["checks"]] == list(engines)
        for row in got["checks"][:2]:
            assert row["difference_error"] <= 2e-4
            assert row["loss_error"] <= 3e-6
            assert row["combine_equal"]
            assert row["passed"]
        assert got["checks"][2]["error"].startswith("ZeroDivisionError")
        assert not got["checks"][2]["passed"]
        assert [t["engine"] for t in got["times"]] == list(engines)
        assert 0 < got["times"][0]["best"] <= got["times"][0]["median"] <= got["times"][0]["worst"]
        assert [len(t.get("seconds", [])) for t in got["times"]] == [2, 2, 0]
        assert "ZeroDivisionError" in got["times"][2]["error"]

    def test_rehearses_every_part_without_a_gpu(self, bench, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(bench.ROOT / "benchmarks")
        out = tmp_path / "gpu.json"
        assert bench.main(["--rehearse", "--out", str(out)]) == 0
        got = json.loads(out.read_text())
        assert {"checks", "times", "requests", "seed_runs", "versions"} <= got.keys()
        assert [row.get("error") for part in ("times", "requests", "seed_runs") for row in got[part]] == [None] * 3
        assert got["requests"][0]["bytes_per_second"] > 0
        assert got["seed_runs"][0]["updates"] == 3
        assert 0 < got["seed_runs"][0]["device_hours"] < 1

    def test_rehearsal_keeps_what_it_has_when_the_time_is_up(self, bench, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(bench.ROOT / "benchmarks")
        out = tmp_path / "gpu.json"
        assert bench.main(["--rehearse", "--seconds", "0", "--out", str(out)]) == 0
        got = json.loads(out.read_text())
        assert got["checks"][0]["passed"]
        assert "out of time" in got["requests"][0]["error"]
        assert got["seed_runs"][0]["updates"] == 1  # the loop asks after each update

    def test_stops_when_the_time_is_up(self, bench, tmp_path):
        record = bench.Record(tmp_path / "gpu.json", {})
        tiny = bench.Size(16, directions=1, batch=1, time=2)
        bench.measure(record, {"torch": lambda: TorchEngine(CPU)}, [tiny], CPU, bench.Clock(CPU, seconds=0), repeats=9)
        assert "out of time" in json.loads((tmp_path / "gpu.json").read_text())["times"][0]["error"]

    def test_median_and_spread(self, bench):
        got = bench.summary([3.0, 1.0, 2.0, 5.0, 4.0])
        assert (got["median"], got["best"], got["worst"]) == (3.0, 1.0, 5.0)
        assert (got["lower_quartile"], got["upper_quartile"]) == (2.0, 4.0)
