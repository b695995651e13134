"""Invented rows of every measurement that a figure shows, in the shape that analysis writes, for any plan."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from soma.analysis import frontier, horizon
from soma.analysis.inference import pair_groups, token_operations
from soma.analysis.scaling import crossings, variants
from soma.plan import Plan
from soma.runs import RunSpec
from tests.analysis import invented

NAN = float("nan")


def interval(value: str, mean: float, half: float, seeds: int, prefix: str = "") -> dict[str, float]:
    over = 0.6 * half if seeds > 1 else NAN
    ends = {"low": mean - half, "high": mean + 1.1 * half, "seed_low": mean - over, "seed_high": mean + over}
    between = {"interpolated": False} if value == "difference" else {}
    return {value: mean, **{prefix + name: end for name, end in ends.items()}, "seeds": seeds, **between}


class Rows:
    """Rows of a plan by the name of their file."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.products, self.noise = plan, plan.config.products, np.random.default_rng(0)

    def __call__(self, kind: str) -> pd.DataFrame:
        return getattr(self, kind.replace("-", "_"))()

    def ids(self, arm: str) -> str:
        return " ".join(run.id for run in self.plan.arm_runs[arm])

    def loss(self, arm: str, operations: float) -> float:
        """Falls with the budget; a little different for each arm."""
        n = self.plan.arms[arm].experts
        bump = 0.01 * (sum(map(ord, arm)) % 7) + 0.5 * (self.plan.arms[arm].method == "eggroll")
        return float(1.6 + 1.5 * (operations / 1e8) ** -0.1 + 0.02 * np.log2(n) + bump)

    def seconds(self, operations: float) -> float:
        """A hundred thousand seconds for the budget of the first arm."""
        run = self.plan.arm_runs[self.products.fixed_size.soma][0]
        return 1e5 * operations / float(run.operations(run.updates))

    def end(self, arm: str) -> float:
        run = self.plan.arm_runs[arm][0]
        return self.loss(arm, run.operations(run.updates))

    def losses(self) -> pd.DataFrame:
        out = []
        for arm in self.products.fixed_size.arms:
            runs, active = self.plan.arm_runs[arm], self.plan.arms[arm].active
            for update in runs[0].milestones:
                operations = float(runs[0].operations(update))
                row = interval("loss", self.loss(arm, operations), 0.02, len(runs))
                where = {"set": "test", "split": "", "arm": arm, "seed": None, "iterate": "last", "k": active}
                for set_ in ("test", "validation"):
                    out.append(
                        where | {"set": set_, "update": update, "operations": operations, "run": self.ids(arm)} | row
                    )
        return pd.DataFrame(out).astype({"seed": "Int64"})

    def differences(self) -> pd.DataFrame:
        product, out = self.products.fixed_size, []
        for other in (*product.against, *product.also):
            seeds = min(len(self.plan.arm_runs[arm]) for arm in (product.soma, other))
            row = interval("difference", self.end(product.soma) - self.end(other), 0.005, seeds)
            out.append({"set": "test", "soma": product.soma, "other": other, "iterate": "last"} | row)
        return pd.DataFrame(out)

    def ngrams(self) -> pd.DataFrame:
        end = self.end(self.products.fixed_size.soma)
        out = [
            {"set": set_, "split": "", "model": model} | interval("loss", end + more, 0.02, 1)
            for set_ in ("test", "external") for model, more in (("unigram", 0.8), ("bigram", 0.2), ("trigram", -0.2))
        ]  # fmt: skip
        return pd.DataFrame(out)

    def walk(self) -> pd.DataFrame:
        """A walk in the first run of an arm, more than a walk in the others."""
        out = [
            {"run": run.id, "updates": 32, "initial_rms": 1.0, "rms": 4.2, "noise_rms": 4.21, "alpha": 0.3,
             "moved": 0.3, "ties": 0.01, "agreement": 0.0002 + 0.1 * i, "agreement_se": 0.0004}
            for arm in self.products.walk.arms for i, run in enumerate(self.plan.arm_runs[arm])
        ]  # fmt: skip
        return pd.DataFrame(out)

    def costs(self) -> pd.DataFrame:
        out = [
            {"arm": arm, "run": run.id, "update": u, "quantity": quantity,
             "value": self.seconds(run.operations(u)) * (1 + 0.1 * run.experts) / devices}
            for arm, runs in self.plan.arm_runs.items() for run in runs for u in run.milestones
            for quantity, devices in (("aggregate device time", 1), ("idealised elapsed time", run.experts))
        ]  # fmt: skip
        return pd.DataFrame(out)

    def paired(self) -> pd.DataFrame:
        out = []
        for phase, scale in (("early", -0.02), ("late", -0.0003)):
            arm = getattr(self.products.paired, phase)[0]
            runs = self.plan.arm_runs[arm]
            for i, update in enumerate(runs[0].milestones):
                losses = {"independent": 2.0 + scale * (i + 1), "summed": 2.0}
                row = losses | interval(
                    "difference", scale * (i + 1) / len(runs[0].milestones), abs(scale) / 4, len(runs)
                )
                out.append({"phase": phase, "update": update, "run": self.ids(arm), "paired": True} | row)
        out.append({"phase": "early minus late", "run": "all"} | interval("difference", -0.0197, 0.005, 1))
        return pd.DataFrame(out)

    def _seconds(self, run, n_pert: int, batch: int) -> float:
        return 1e-4 * n_pert * batch * run.experts * run.settings.width**2 * 1e-3

    def reference(self) -> pd.DataFrame:
        out = []
        for arm in self.products.reference.arms:
            for run in self.plan.arm_runs[arm]:
                for update in (0, run.updates):
                    settings = self.products.reference.settings
                    for n_pert, batch in settings if run.experts == 1 else settings[:1]:
                        error = 0.5 * run.model.size / n_pert * (1 + 4 / batch) * (1.2 if update == run.updates else 1)
                        error *= float(1 + 0.05 * self.noise.normal())
                        where = {"run": run.id, "update": update, "n_pert": n_pert, "batch": batch, "error": error}
                        out.append(
                            where
                            | {"experts": run.experts, "error_se": error * 0.1}
                            | {"aggregate_seconds": self._seconds(run, n_pert, batch)}
                            | {"device": "a processor", "threads": 1, "engine": "cpu", "cosine_distance": 0.01}
                            | {"reference_error": 0.005, "reference_sequences": 2048, "repeats": 8}
                        )
        return pd.DataFrame(out)

    def serving(self) -> pd.DataFrame:
        out = []
        for arm in self.products.inference.arms:
            runs = self.plan.arm_runs[arm]
            row = interval("loss", self.end(arm), 0.02, len(runs), "loss_")
            where = {"arm": arm, "update": runs[0].updates, "token_operations": token_operations(self.plan, arm)}
            out.append(where | {"run": self.ids(arm)} | row)
        return pd.DataFrame(out)

    def serving_at_one_cost(self) -> pd.DataFrame:
        out = []
        for arm in self.products.inference.arms:
            row = interval("loss", self.end(arm) + 0.1, 0.02, len(self.plan.arm_runs[arm]))
            where = {"arm": arm, "device_seconds": 5e4, "token_operations": token_operations(self.plan, arm)}
            out.append(where | {"run": self.ids(arm), "interpolated": True} | row)
        return pd.DataFrame(out)

    def inference(self) -> pd.DataFrame:
        runs = [run for arm in self.products.inference.arms for run in self.plan.arm_runs[arm]]
        speed = [2e8 / run.settings.width * (1 + 0.01 * run.seed) for run in runs]
        return pd.DataFrame({"run": [run.id for run in runs], "scored_bytes_per_second": speed})

    def sweep(self) -> pd.DataFrame:
        out = []
        for axis, value, arm in variants(self.plan):
            run = self.plan.arm_runs[arm][0]
            for update in run.milestones:
                operations = float(run.operations(update))
                each = operations / run.experts
                spent = {"operations": operations, "operations_per_expert": each}
                spent |= {"device_seconds": self.seconds(operations)}
                loss = 1.6 + 1.2 * (update / 4) ** -0.12 / (run.settings.n_pert * run.settings.batch) ** 0.05
                row = interval("loss", loss - 0.03 * np.log2(run.experts), 0.015, len(self.plan.arm_runs[arm]))
                where = {"axis": axis, "value": value, "update": update, "arm": arm, "run": self.ids(arm)}
                out.append(where | spent | {"elapsed_seconds": self.seconds(each)} | row)
        return pd.DataFrame(out)

    def crossings(self) -> pd.DataFrame:
        return crossings(self.plan, self.sweep())

    def best_counts(self) -> pd.DataFrame:
        ids = self.ids(self.products.fixed_size.soma)
        counts = sorted({self.plan.arms[arm].experts for arm in self.products.fixed_size.arms} | {1, 2})
        out = []
        for i, total in enumerate(np.geomspace(1e9, 1e12, 12)):
            for j, each in enumerate(np.geomspace(5e8, 4e11, 12)):
                if i == 0 and j < 4:
                    continue
                at = int(np.clip((i - j) / 12 * len(counts) + 0.5, 0, len(counts) - 1))
                row = interval("difference", -0.02, 0.01 if j > 1 else 0.05, 3)
                where = {"total": total, "per_expert": each, "best": counts[at], "second": counts[at - 1]}
                out.append(where | {"loss": 2.0, "run": ids} | row)
        return pd.DataFrame(out)

    def per_expert(self) -> pd.DataFrame:
        row = interval("difference", -0.1, 0.01, 3)
        arm = self.products.fixed_size.soma
        where = {"experts": 2, "fewest": 1, "arm": arm, "operations": 1e12, "run": self.ids(arm)}
        return pd.DataFrame([where | {"loss": 2.0, "other": 2.1} | row])

    def ablation(self) -> pd.DataFrame:
        product, out = self.products.ablation, []
        groups = {"base": (product.base,), "partition": product.partition}
        groups |= {"start": product.start, "head": product.head}
        for group, arms in groups.items():
            for i, arm in enumerate(arms):
                seeds = len(self.plan.arm_runs[arm])
                row = {"group": group, "arm": arm, "run": self.ids(arm), "loss": 2.0}
                if group != "base":
                    row |= interval("difference", -0.02 - 0.01 * i * len(group), 0.005, seeds)
                out.append(row)
        return pd.DataFrame(out)

    def ablation_curves(self) -> pd.DataFrame:
        product, out = self.products.ablation, []
        groups = {"base": (product.base,), "partition": product.partition}
        groups |= {"start": product.start, "head": product.head}
        for group, arms in groups.items():
            for i, arm in enumerate(arms):
                for run in self.plan.arm_runs[arm]:
                    for update in (25, 50, 100, 200):
                        behind = 0.0 if group == "base" else (0.3 + 0.1 * i) * (1 - update / 150)
                        where = {"group": group, "arm": arm, "seed": run.seed, "run": run.id, "update": update}
                        out.append(where | {"loss": 3.0 - 0.2 * np.log(update) + behind + 0.01 * run.seed})
        return pd.DataFrame(out)

    def variance(self) -> pd.DataFrame:
        out, product = [], self.products.variance
        for arm in product.arms:
            for run in self.plan.arm_runs[arm]:
                for update in sorted({run.milestones[0], run.updates}):
                    for chunk in range(product.chunks):
                        for precision in ("fp32 (cpu)", "fp64"):
                            for n in product.n_pert:
                                late = 1.3 if update == run.updates else 1.0
                                predicted = run.model.size / 2 / n * late
                                value = predicted * float(1 + 0.04 * self.noise.normal())
                                few = precision == "fp64" and n > product.probes // 8
                                where = {"run": run.id, "update": update, "chunk": chunk, "precision": precision}
                                sizes = {"experts": run.experts, "coordinates": run.experts * run.model.size}
                                found = {"variance": value, "variance_se": 0.02 * value, "grouped": value}
                                out.append(
                                    where | sizes | found
                                    | {"n_pert": n, "grouped_se": NAN if few else 0.05 * value, "predicted": predicted}
                                )  # fmt: skip
        return pd.DataFrame(out)

    def objective(self) -> pd.DataFrame:
        frames = []
        for run in self.plan.arm_runs[self.products.objective.arm]:
            experts = min(4, run.experts)
            own = float(150 * (1 + 0.02 * self.noise.normal()))
            predicted = [150.0, 150.0 * experts, float(experts)]
            found = pd.DataFrame(
                {
                    "quantity": ["independent", "summed", "ratio"],
                    "measured": [own, own * experts * 1.01, experts * 1.01],
                    "standard_error": [3.0, 12.0, 0.1],
                    "predicted": predicted,
                    "experts": experts,
                }
            )
            product, nu = self.products.objective.product, 8.3
            split = []
            for group in [g for g in (1, 2, 4) if g <= experts]:
                a = 128 * group - 1
                for batch in [1 << i for i in range(product.bit_length())]:
                    n = product // batch
                    value = a / n + nu / batch + a * nu / (n * batch)
                    best = (product * nu / a) ** 0.5
                    split.append(
                        {"group": group, "batch": batch, "n_pert": n, "error": value * 1.03, "error_se": 0.05 * value,
                         "predicted": value, "nu": nu,
                         "best_measured": 1 << round(np.log2(best)), "best_predicted": best}
                    )  # fmt: skip
            where = {"run": run.id, "seed": run.seed}
            frames += [found.assign(part="variance", **where), pd.DataFrame(split).assign(part="split", **where)]
        return pd.concat(frames, ignore_index=True)

    def active_losses(self) -> pd.DataFrame:
        out = []
        for arm in self.products.active.arms:
            runs = self.plan.arm_runs[arm]
            for k in range(1, runs[0].experts + 1):
                row = interval("loss", self.end(arm) + 0.05 / k + 0.0005 * k, 0.01, len(runs))
                out.append({"arm": arm, "experts": runs[0].experts, "k": k, "run": self.ids(arm)} | row)
        return pd.DataFrame(out)

    def active(self) -> pd.DataFrame:
        frames = [pd.DataFrame({"part": ["active"], "run": "r", "k": 1, "nats": 1.0, "bytes": 1})]
        for run in self.plan.arm_runs[self.products.active.pairs]:
            where = {"run": run.id, "experts": run.experts}
            pairs = list(combinations(range(run.experts), 2))
            alike = self.noise.uniform(-0.5, 0.5, len(pairs))
            gain = 0.03 - 0.02 * alike + 0.004 * self.noise.normal(size=len(pairs))
            rows = {"first": [a for a, _ in pairs], "second": [b for _, b in pairs], "gain": gain, "correlation": alike}
            frames.append(pd.DataFrame(rows | {"first_loss": 2.0, "second_loss": 2.1}).assign(part="pairs", **where))
            together = pd.DataFrame(
                {"spearman": [-0.61], "p_value": [1 / 10_001], "mean_gain": [gain.mean()], "permutations": 10_000}
            )
            frames.append(together.assign(part="complementarity", **where))
        return pd.concat(frames, ignore_index=True)

    def pair_groups(self) -> pd.DataFrame:
        return pair_groups(self.plan, self.active())

    def ratios(self) -> pd.DataFrame:
        product, out = self.products.paired, []
        for phase, arms in (("early", product.early), ("late", product.late)):
            for i, run in enumerate(run for arm in arms for run in self.plan.arm_runs[arm]):
                for state, update in (("start", 0), ("end", run.updates))[i > 0 :]:
                    for batch in range(product.batches):
                        for precision in ("fp32 (cpu)", "fp64"):
                            where = {"phase": phase, "state": state, "update": update, "batch": batch, "run": run.id}
                            ratio = {"ratio": run.experts * (1 + 0.1 * batch - 0.03 * i), "predicted": run.experts}
                            out.append(where | ratio | {"precision": precision, "experts": run.experts})
        return pd.DataFrame(out)

    def precision(self) -> pd.DataFrame:
        names = ("float32", "tf32", "bfloat16", "tf32 x3", "bfloat16 x3")
        steps, run = self.products.precision.eps, self.ids(self.products.precision.arm)
        out = [
            {"weights": w, "precision": name, "eps": eps, "error": 1e-6 * 10**i / eps**0.9, "directions": 4, "run": run}
            for w in ("initial", "trained") for i, name in enumerate(names) for eps in steps
        ]  # fmt: skip
        return pd.DataFrame(out)

    def sizes(self) -> pd.DataFrame:
        out = []
        arms = dict.fromkeys([*self.products.controls.sizes, *self.products.fixed_size.arms])
        for arm in arms:
            run = self.plan.arm_runs[arm][0]
            if run.settings.method != "spsa":
                continue
            kind = "ensemble" if run.experts > 1 else "monolith"
            where = {"kind": kind, "arm": arm, "experts": run.experts, "n_pert": run.settings.n_pert}
            where |= {"width": run.settings.width, "parameters": run.parameters, "run": self.ids(arm)}
            where |= {"operations": float(run.operations(run.updates))}
            for iterate, better in (("last", 0.0), ("average", 0.03)):
                loss = self.end(arm) - better - 0.05 * np.log(run.parameters / 1e5)
                out.append(where | {"iterate": iterate} | interval("loss", loss, 0.02, len(self.plan.arm_runs[arm])))
        return pd.DataFrame(out)

    def estimators(self) -> pd.DataFrame:
        out = []
        for i, arm in enumerate(self.products.estimators.arms):
            seeds = len(self.plan.arm_runs[arm])
            row = interval("loss", 2.0 + 0.01 * i, 0.02, seeds, "loss_") | {"arm": arm, "run": self.ids(arm)}
            row |= {"relative_variance": 100.0 * 1.4**i, "relative_variance_se": 8.0, "forwards": 32}
            nothing = dict.fromkeys(("difference", "low", "high", "seed_low", "seed_high"), NAN)
            out.append(row | (interval("difference", -0.01 * i, 0.004, seeds) if i else nothing))
        return pd.DataFrame(out)

    def carry(self) -> pd.DataFrame:
        """Losses of documents that fall a little with the windows carried."""
        out = [
            {"run": run.id, "seed": run.seed, "update": run.updates, "k": 1, "carried": carried, "document": d,
             "bytes": 1000, "nats": 1000 * (self.end(arm) + 0.02 * d - 0.01 * np.log2(carried) + 0.001 * run.seed)}
            for arm in self.products.fixed_size.arms if self.plan.arms[arm].method == "spsa"
            for run in self.plan.arm_runs[arm] for carried in (1, 4, 16) for d in range(5)
        ]  # fmt: skip
        return pd.DataFrame(out)

    def carried(self) -> pd.DataFrame:
        return horizon.carried(self.plan, self.carry())

    def recall(self) -> pd.DataFrame:
        """Backpropagation remembers over more bytes than SPSA."""
        out = [
            {"distance": distance, "method": method, "seed": seed, "lr": 0.01 * (1 + seed), "chance": np.log(2),
             "loss": np.log(2) * (1 - np.exp(-distance / reach)) + 0.001 * seed, "correct": np.exp(-distance / reach),
             "pairs": 64, "updates": 90, "operations": 2e10, "working_bytes": 1e4 * distance, "parameters": 3096}
            for distance in (16, 128, 1024) for method, reach in (("spsa", 30), ("bptt", 300)) for seed in (0, 1)
        ]  # fmt: skip
        return pd.DataFrame(out)

    def recalled(self) -> pd.DataFrame:
        return horizon.recalled(self.plan, self.recall())

    def combiner(self) -> pd.DataFrame:
        """Gates are a little better than the mean."""
        gain = {"mean": 0.0, "posterior": 0.01, "spsa": 0.015, "exact": 0.02, "nearest": -0.03}
        out = [
            {"run": run.id, "seed": run.seed, "update": run.updates, "k": self.plan.arms[arm].active, "rule": rule,
             "windows": 8, "document": d, "bytes": 1000, "operations": 1e9 * (rule in ("spsa", "exact")),
             "nats": 1000 * (self.end(arm) + 0.02 * d + 0.001 * run.seed - better)}
            for arm in self.products.fixed_size.arms if self.plan.arms[arm].experts > 1
            for run in self.plan.arm_runs[arm] for rule, better in gain.items() for d in range(5)
        ]  # fmt: skip
        return pd.DataFrame(out)

    def charged(self) -> pd.DataFrame:
        arms = [arm for arm in self.products.fixed_size.arms if self.plan.arms[arm].method == "spsa"][:2]
        out = []
        for total in (1e12, 5e12):
            for arm in arms:
                ends = {"loss_low": 1.9, "loss_high": 2.1, "loss_seed_low": NAN, "loss_seed_high": NAN}
                row = {"operations": total, "arm": arm, "updates": 90.0, "share": 0.1, "loss": 2.0} | ends
                gap = NAN if arm == arms[0] else -0.02
                out.append(row | interval("difference", gap, 0.01, 2) | {"run": self.ids(arm)})
        return pd.DataFrame(out)

    def frontier_losses(self) -> pd.DataFrame:
        """Losses by document that fall with the operations, and most for models of middling size."""

        def advantage(arm: str, run: RunSpec, update: int, iterate: str, k: int) -> float:
            beside = 0.01 * np.log(run.parameters / 3e4) ** 2
            return 2.5 - self.loss(arm, run.operations(update)) - beside + 0.01 * run.seed * np.sin(run.parameters)

        arms = self.products.frontier.arms
        return pd.concat([invented.losses(self.plan, arms, advantage, set_) for set_ in ("validation", "test")])

    def frontier(self) -> pd.DataFrame:
        return frontier.points(self.plan, self.frontier_losses())

    def frontier_fits(self) -> pd.DataFrame:
        return frontier.fits(self.plan, self.frontier_losses(), self.frontier())
