"""Check every engine on this machine's GPU against the float64 reference, then time what the paper times.

    python benchmarks/gpu.py                     needs CUDA; ends within ten minutes; writes gpu.json
    python benchmarks/gpu.py --quick             takes one minute: only the checks and the paper's setting
    python benchmarks/gpu.py --rehearse          needs no GPU: every part at tiny sizes on the CPU, by torch
    python benchmarks/gpu.py --compile 90 120    needs no GPU; reports registers, spills and shared memory by kernel

The parts, each in the JSON as soon as it is measured: `checks` of the engines; `times` of one update by engine, size;
`kernels` of one update; `requests`, the throughput of N = 256 and N = 8 with random weights; `seed_runs`, one expert's
seed run of config/paper.yaml through the training loop, on the text of this repository, with its cost.

An update is the device work of one training step of one expert: the losses of all directions with both signs on one
batch, their combination to a gradient, and Adam. At width 32, n_pert = B = 64 and T = 1,024 the paper reports 0.138 to
0.169 s on an RTX 5090 (config/paper_values.yaml). One whole update runs before the timed ones.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soma.config.campaign import BASE, load
from soma.data.windows import Rows
from soma.estimators import spsa
from soma.forward.check import CHECKED, EPS, Problem, Size, compare
from soma.forward.engine import Engine
from soma.forward.registry import create
from soma.forward.torch_engine import TorchEngine
from soma.plan import make_plan
from soma.training.adam import Adam
from soma.training.learner import Group, Shard, learner_of
from soma.training.loop import Interrupted, Trainer

Engines = dict[str, Callable[[], Engine]]


ROOT = Path(__file__).parents[1]
PAPER = Size(32)
WIDE = [Size(181), Size(361), Size(509)]


class Update:
    """Successive training updates on one problem, without the bookkeeping of the training loop."""

    def __init__(self, engine: Engine, problem: Problem) -> None:
        self.engine, self.problem, self.done = engine, problem, 0
        self.expert = replace(problem.expert, theta=problem.expert.theta.clone())
        self.m, self.v = (torch.zeros_like(self.expert.theta) for _ in range(2))
        self.adam = Adam(0.9, 0.999, 1e-8, 1e-4)

    def __call__(self) -> None:
        self.done += 1
        probes, theta = replace(self.problem.probes, update=self.done), self.expert.theta
        estimate = spsa.estimate(self.engine, self.expert, [self.problem.tokens], [probes], [EPS])
        gradient = torch.from_numpy(estimate.gradient).to(theta)
        self.adam.step(theta, gradient, self.m, self.v, self.done, theta.new_full((1, 1), EPS))


class Clock:
    """Wall time of work on a device, and the time left for the benchmark."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device = device
        self.deadline = time.monotonic() + seconds

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def seconds(self, work: Callable[[], object]) -> float:
        """Time the work from an idle device to an idle device."""
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Record:
    """The JSON output, complete on disk after every row, so that an interrupted run keeps its measurements."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = dict(facts)

    def add(self, table: str, row: dict[str, Any]) -> None:
        self._content.setdefault(table, []).append(row)
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(json.dumps(self._content, indent=1) + "\n")
        part.replace(self._path)
        print(f"{table[:-1]:6s}", *(f"{k} {_short(v)}" for k, v in row.items() if k != "seconds"), sep="  ", flush=True)

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._content.get(table, [])
        return rows


def check(record: Record, engines: Engines, sizes: Sequence[Size], device: torch.device) -> None:
    """Compare engines with the reference (soma.forward.check)."""
    for size, (name, make) in itertools.product(sizes, engines.items()):
        row: dict[str, Any] = {"engine": name, **asdict(size), "passed": False}
        with _failure_in(row):
            agreement = compare(make(), size, device)
            row |= asdict(agreement) | {"passed": agreement.passed}
        record.add("checks", row)


def measure(
    record: Record,
    engines: Engines,
    settings: Sequence[Size],
    device: torch.device,
    clock: Clock,
    repeats: int,
    table: str = "times",
) -> None:
    """Time updates of every engine: one that is not counted, then three or more if the clock allows."""
    for setting, (name, make) in itertools.product(settings, engines.items()):
        row: dict[str, Any] = {"engine": name, **asdict(setting)}
        with _failure_in(row):
            if clock.left() <= 0:
                raise TimeoutError("not run: the benchmark is out of time")
            problem = Problem.of(setting, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
            update = Update(make(), problem)
            row["first"] = clock.seconds(update)
            seconds = [clock.seconds(update)]
            # After three updates, an engine takes at most an eighth of the time left, to leave time for the others.
            share = clock.left() / 8
            while len(seconds) < repeats and clock.left() > 0 and (len(seconds) < 3 or sum(seconds) < share):
                seconds.append(clock.seconds(update))
            row |= summary(seconds)
            if device.type == "cuda":
                row["peak_gigabytes"] = torch.cuda.max_memory_allocated(device) / 1e9
        record.add(table, row)


def summary(seconds: list[float]) -> dict[str, Any]:
    """Return median and spread of durations, and the durations."""
    lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return {
        "median": median,
        "best": min(seconds),
        "worst": max(seconds),
        "lower_quartile": lower,
        "upper_quartile": upper,
        "seconds": seconds,
    }


def facts(device: torch.device) -> dict[str, Any]:
    """Describe the device, software and host that the times belong to."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gigabytes": properties.total_memory / 1e9,
        "paper_rtx_5090_seconds": [0.138, 0.169],
    } | software()


def software() -> dict[str, Any]:
    """Describe the software and the host."""
    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = None
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": triton_version,
            "numpy": np.__version__,
        },
        "host": {"system": platform.platform(), "cores": os.cpu_count()},
        "date": time.strftime("%Y-%m-%d"),
    }


def gpu_engines(device: torch.device) -> Engines:
    """Return every engine for a CUDA device; without triton, only torch's."""
    engines: Engines = {"torch": lambda: TorchEngine(device)}
    try:
        from soma.forward.triton_engine import TritonEngine
    except ImportError as error:
        print(f"skipping the triton engine: {error}", file=sys.stderr)
        return engines
    return {
        "triton": lambda: TritonEngine(device),
        "triton-tf32x3": lambda: TritonEngine(device, precision="tf32x3"),
        "triton-no-graphs": lambda: TritonEngine(device, graphs=False),
        **engines,
    }


def tuned_engines(device: torch.device) -> Engines:
    """Return triton engines whose narrow kernels have sizes other than the default."""
    from soma.forward.triton_engine import TritonEngine
    from soma.forward.triton_network import Precision, Tuning

    changes: list[dict[str, Any]] = [
        {"lstm_registers": 128},
        {"lstm_warps": 8},
        {"lstm_tile": 32, "lstm_warps": 8},
        {"row_tile": 16},
        {"row_tile": 64, "row_warps": 8},
        {"row_programs": 4},
        {"row_programs": 32},
        {"narrow_floats": 1 << 23},
        {"narrow_floats": 1 << 28, "longest": 1024},
    ]
    engines: Engines = {}
    precisions: tuple[Precision, ...] = ("ieee", "tf32x3")
    for precision, change in itertools.product(precisions, changes):
        name = " ".join([precision, *(f"{k}={v}" for k, v in change.items())])

        def make(precision: Precision = precision, change: dict[str, Any] = change) -> Engine:
            return TritonEngine(device, precision=precision, tuning=Tuning(**change))

        engines[name] = make
    return engines


def kernel_times(record: Record, engine: Engine, size: Size, device: torch.device) -> None:
    """Record the device time of one update by kernel, longest first, as measured by torch's profiler."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    update = Update(engine, Problem.of(size, device))
    update()
    activities, kind = [ProfilerActivity.CPU], DeviceType.CPU
    if device.type == "cuda":
        activities, kind = [ProfilerActivity.CUDA], DeviceType.CUDA
        torch.cuda.synchronize(device)
    with profile(activities=activities) as profiler:
        update()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    used = {
        (event.key, event.count): event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total
        for event in profiler.key_averages()
        if event.device_type == kind
    }
    for (kernel, calls), microseconds in sorted(used.items(), key=lambda item: -item[1])[:12]:
        record.add("kernels", {"kernel": kernel[:60], "calls": calls, "milliseconds": microseconds / 1e3})


def compile_kernels(architecture: int, record: Record) -> None:
    """Compile every kernel as the engine launches it at the paper's setting and at width 509; needs no GPU.

    The launches come from the engine itself, which runs on the CPU with kernels that only record their arguments.
    """
    for name, source, options in _launches():
        import triton
        from triton.backends.compiler import GPUTarget

        log = io.StringIO()
        triton.knobs.nvidia.dump_ptxas_log = True  # makes ptxas report registers, on standard output
        triton.knobs.compilation.always_compile = True
        with contextlib.redirect_stdout(log):
            target = GPUTarget("cuda", architecture, 32)
            compiled = triton.compile(source, target=target, options=options)
        registers = re.search(r"Used (\d+) registers", log.getvalue())
        spilled = re.findall(r"(\d+) bytes spill", log.getvalue())
        if registers is None or not spilled:
            raise RuntimeError(f"ptxas reported no registers for {name}: {log.getvalue()}")
        row = {"kernel": name, "architecture": f"sm_{architecture}", "registers": int(registers[1])}
        row |= {"spilled_bytes": sum(map(int, spilled)), "shared_bytes": compiled.metadata.shared}
        record.add("kernels", row | {"warps": compiled.metadata.num_warps})


def _launches() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, source and options of every distinct kernel of a short pass at two widths."""
    from triton.compiler import ASTSource
    from triton.runtime import JITFunction

    from soma.forward import triton_kernels
    from soma.forward.triton_engine import TritonEngine

    launched: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    class Recorder:
        def __init__(self, name: str, function: Any) -> None:
            self.name, self.function = name, function

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **keywords: Any) -> None:
                constants = {k: v for k, v in keywords.items() if k in self.function.arg_names}
                launched.setdefault(f"{self.name} {constants}", (self.function, args, keywords))

            return launch

    functions = {k: v for k, v in vars(triton_kernels).items() if isinstance(v, JITFunction) and not k.startswith("_")}
    try:
        for name, function in functions.items():
            setattr(triton_kernels, name, Recorder(name, function))
        engine = TritonEngine(torch.device("cpu"))
        for setting in (replace(PAPER, time=3, directions=2), Size(509, 2, 16, 3)):
            problem = Problem.of(setting, torch.device("cpu"))
            problem.losses(engine)
            engine.combine(problem.probes, np.ones((1, setting.directions)))
    finally:
        for name, function in functions.items():
            setattr(triton_kernels, name, function)
    for label, (function, args, keywords) in launched.items():
        given = dict(zip(function.arg_names, args, strict=False)) | keywords
        options = {k: given.pop(k) for k in list(given) if k not in function.arg_names}
        constant = {p.name for p in function.params if p.is_constexpr}
        signature = {k: "constexpr" if k in constant else _type(given[k]) for k in function.arg_names}
        aligned = {
            (i,): [["tt.divisibility", 16]]
            for i, (k, parameter) in enumerate(zip(function.arg_names, function.params, strict=True))
            if k not in constant and not parameter.do_not_specialize and _aligned(given[k])
        }
        values = {k: given[k] for k in constant}
        yield label.split()[0], ASTSource(function, signature, values, aligned), options


def _type(argument: object) -> str:
    """Return triton's name for the type of a kernel's argument."""
    if isinstance(argument, Tensor):
        names = {torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8"}
        return f"*{names[argument.dtype]}"
    return "fp32" if isinstance(argument, float) else "i32"


def _aligned(argument: object) -> bool:
    """Return True if triton would specialise for a multiple of 16; addresses from a GPU's allocator are multiples."""
    return isinstance(argument, Tensor) or (isinstance(argument, int) and argument % 16 == 0)


def benchmark(
    record: Record,
    engines: Engines,
    device: torch.device,
    clock: Clock,
    checks: Sequence[Size],
    wide: Sequence[Size],
    paper: Size = PAPER,
    repeats: int = 20,
) -> None:
    """Run the checks, then time the paper's setting by engine and by kernel, then time wide settings."""
    check(record, engines, checks, device)
    # At width 32 graphs do not change what runs, and at larger widths the precision does not.
    narrow = {name: make for name, make in engines.items() if name != "triton-no-graphs"}
    measure(record, narrow, [paper], device, clock, repeats)
    if "triton" in engines:
        row: dict[str, Any] = {"kernel": "all"}
        with _failure_in(row):
            kernel_times(record, engines["triton"](), paper, device)
        if "error" in row:
            record.add("kernels", row)
    others = {name: make for name, make in engines.items() if name != "triton-tf32x3"}
    measure(record, others, wide, device, clock, repeats)


def throughput(record: Record, device: torch.device, clock: Clock, counts: Sequence[int], requests: int) -> None:
    """Time complete requests, routing included, as Table 12 does (benchmarks/inference.py)."""
    for experts in counts:
        row: dict[str, Any] = {"experts": experts}
        with _failure_in(row):
            if clock.left() <= 0:
                raise TimeoutError("not run: the benchmark is out of time")
            import inference  # the script beside this one

            words = inference.vocabulary()
            ensemble = inference.random_ensemble(words, experts, "auto", str(device))
            row |= inference.measure(ensemble, inference.requests(words, requests))
        record.add("requests", row)


def seed_run(record: Record, device: torch.device, clock: Clock, changes: dict[str, Any]) -> None:
    """Train the paper's seed run of width 32 on the text of this repository, as far as the time goes."""
    row: dict[str, Any] = {"run": "seed-d32-s0"}
    with _failure_in(row):
        run = make_plan(load(BASE, ROOT / "config/paper.yaml")).runs["seed-d32-s0"]
        updates = changes.get("updates", run.updates)
        settings = run.settings.model_copy(update=changes)
        run = run.model_copy(update={"settings": settings, "milestones": (updates,)})
        files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
        text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
        windows = Rows(text, run.window, run.window)
        ids = np.arange((len(text) - 1) // run.window, dtype=np.uint32)
        group = Group(run, [0], [Shard(windows, ids[ids % 8 > 0], ids[ids % 8 == 0])], text)
        engine = create("auto", str(device))
        trainer = Trainer(learner_of(run.settings.method)(group, engine, device))
        row["seconds"] = clock.seconds(lambda: _trained(trainer, clock))
        done = trainer.progress.update
        row |= {"engine": engine.name, "updates": done, "of": updates, "operations": float(run.operations(done))}
        row |= {"training_bytes": len(text), "device_hours": row["seconds"] / 3600}
        losses = trainer.progress.history.column("expert_validation")
        row |= {"first_validation": float(losses[0]), "last_validation": float(losses[-1])} if len(losses) else {}
    record.add("seed_runs", row)


def _trained(trainer: Trainer, clock: Clock) -> None:
    with contextlib.suppress(Interrupted):
        trainer.train(lambda: None, save_every=float("inf"), should_stop=lambda: clock.left() <= 0)


@contextlib.contextmanager
def _failure_in(row: dict[str, Any]) -> Iterator[None]:
    """Record an engine's failure in its row instead of ending the benchmark, to keep the measurements of the others."""
    try:
        yield
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:500]


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the JSON file to write (default gpu.json)")
    parser.add_argument("--device", default="cuda", help="device to use, such as cuda:1 (default cuda)")
    parser.add_argument("--quick", action="store_true", help="run only the checks and the paper's setting")
    parser.add_argument("--rehearse", action="store_true", help="run every part at tiny sizes on the CPU, by torch")
    parser.add_argument("--tune", action="store_true", help="instead, time the paper's setting with other kernel sizes")
    parser.add_argument("--seconds", type=float, default=500, help="start no part after this time (default 500)")
    parser.add_argument("--compile", type=int, nargs="+", metavar="SM", help="only compile: 90 is an H200, 120 a 5090")
    args = parser.parse_args(arguments)
    if args.compile:
        record = Record(args.out, {})
        for architecture in args.compile:
            compile_kernels(architecture, record)
        return 0
    if args.rehearse:
        record, cpu = Record(args.out, {"device": "cpu, rehearsal"} | software()), torch.device("cpu")
        clock, tiny = Clock(cpu, args.seconds), Size(8, directions=2, batch=4, time=8)
        benchmark(record, {"torch": lambda: TorchEngine(cpu)}, cpu, clock, [tiny], [], tiny, repeats=2)
        throughput(record, cpu, clock, [8], 4)
        seed_run(record, cpu, clock, {"updates": 3, "n_pert": 2, "batch": 2, "crop": 16})
        return _verdict(record, args.out)
    if not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py needs a CUDA device and torch sees none; --compile needs no device, and "
            "benchmarks/engine.py times the CPU.",
            file=sys.stderr,
        )
        return 1
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda", torch.device(args.device).index or 0)
    torch.cuda.set_device(device)
    record = Record(args.out, facts(device))
    clock = Clock(device, args.seconds)
    if args.tune:
        measure(record, tuned_engines(device), [PAPER], device, clock, repeats=10, table="variants")
    elif args.quick:
        benchmark(record, gpu_engines(device), device, clock, CHECKED[:2], [])
    else:
        benchmark(record, gpu_engines(device), device, clock, CHECKED, WIDE)
        throughput(record, device, clock, [256, 8], 1024)
        seed_run(record, device, clock, {})
    return _verdict(record, args.out)


def _verdict(record: Record, out: Path) -> int:
    """Return the exit status, and say if a check failed."""
    failed = [row for row in record.rows("checks") if not row["passed"]]
    if failed:
        print(f"{len(failed)} of {len(record.rows('checks'))} checks failed; see {out}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
