"""The catalogue: every measurement, summary, table, figure and claim of the package, as data.

The workflow's rules and targets, the groups of evaluated arms, the sections and captions of the report, the lists in
README.md and config/README.md, the digests of code and the tests derive from it. A new table is one function and one
entry here (docs/extending.md).

A function is named by its module and name: `fixed_size.losses` of a summary is in `soma.analysis`, `fixed_size.table4`
of a table in `soma.report.tables`, of a figure in `soma.report.figures`. It takes the plan of the campaign, then (in
tables and figures) the paper's values, then one argument for each of its `reads`. Only the standard library is used
and nothing is computed, because Snakemake reads this module before it runs anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

Set = Literal["validation", "test", "external"]


# --------------------------------------------------------------------------------------------- what a function reads


@dataclass(frozen=True)
class Losses:
    """Per-document losses of the arms of products on evaluation sets, as one table."""

    products: tuple[str, ...]
    """Names in `products` of the configuration."""
    sets: tuple[Set, ...]


@dataclass(frozen=True)
class Histories:
    """Learning histories of the runs of a product's arms, by run."""

    product: str


@dataclass(frozen=True)
class Facts:
    """JSON files that describe the evaluation sets (by role) or the clusters (one for every N)."""

    of: Literal["sets", "clusters"]


@dataclass(frozen=True)
class Verdicts:
    """All claims with their differences and verdicts, computed from the rows that the claims read."""


@dataclass(frozen=True)
class IfGiven:
    """The rows of a measurement or a summary, or None in a campaign that does not have them."""

    rows: str


Read = str | Losses | Histories | Facts | Verdicts | IfGiven
"""Something that a function reads; a text names the rows of a measurement or a summary."""


def rows_of(reads: Iterable[Read]) -> set[str]:
    """Return the names of the rows among what a function reads."""
    return {read.rows if isinstance(read, IfGiven) else read for read in reads if isinstance(read, str | IfGiven)}


# ------------------------------------------------------------------------------------------------------------ entries


@dataclass(frozen=True)
class Measurement:
    """Rows that are measured at saved checkpoints, by the module of this name in `soma.measurements`."""

    name: str
    product: str
    """Name in `products` of the configuration: the arms whose runs are opened, and the settings."""
    opens: Literal["all runs", "all runs and their starts", "first arm", "first run"] = "all runs"
    early: bool = False
    """True to measure at the first milestone too."""
    timed: bool = False
    """True if rows hold times: the measurement has the machine to itself, and its rows differ from run to run."""
    computes_with: Literal["an engine", "a runner"] = "an engine"
    """An engine of `soma.forward`, or a runner of `soma.inference`."""
    documents: bool = False
    """True to read whole documents of the validation text, of which the set has windows apart."""
    since: str | None = None
    """A column that rows of an older definition lack; verdicts that rest on such rows are superseded."""


@dataclass(frozen=True)
class Summary:
    """Rows that are computed from losses and other rows, by a function in `soma.analysis`."""

    name: str
    function: str
    reads: tuple[Read, ...]


@dataclass(frozen=True)
class Product:
    """A table or a figure."""

    name: str
    function: str
    title: str
    reads: tuple[Read, ...]
    caption: str
    """Explanation in the report: the content, and how to read it."""
    needs: tuple[str, ...] = ()
    """Names in `products` of the configuration that the function uses beside those behind its reads."""

    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """Name for readers: `Table 4`, `Figure 1`, or `Costs (table)` for a product without a number in the paper."""
        number = self.name.removeprefix(self.kind)
        return f"{self.kind} {number}".capitalize() if number.isdigit() else f"{self.name.capitalize()} ({self.kind})"

    @property
    def heading(self) -> str:
        """The title, with the number in the paper if it has one: `Figure 1. Equal total size: …`."""
        numbered = self.name.startswith(self.kind) and not self.title.startswith(self.label)
        return f"{self.label}. {self.title}" if numbered else self.title

    @property
    def subject(self) -> str:
        """The title without its number, as part of a sentence: `test loss at equal budget and total size`."""
        title = self.title.removeprefix(f"{self.label}. ")
        return title[0].lower() + title[1:]

    @property
    def entry(self) -> str:
        """The title in a menu: `Table 4 · test loss at equal budget`, or `Costs, in their six quantities (table)`."""
        if not self.name.startswith(self.kind):
            return f"{self.title} ({self.kind})"
        return f"{self.label} · {self.subject}"


class Table(Product):
    """A table, made by a function in `soma.report.tables`."""

    kind = "table"


class Figure(Product):
    """A figure, drawn by a function in `soma.report.figures`."""

    kind = "figure"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, judged by differences that a function in `soma.analysis` returns."""

    name: str
    function: str
    text: str
    """The claim; as in `paper`, braces name numbers in config/paper_values.yaml."""
    paper: str
    """The paper's numbers, formatted as by `str.format`: `{table4[0][test]:.2f}`."""
    reads: tuple[str, ...]
    shown: tuple[str, ...]
    """Tables and figures that show it, the main one first."""
    short: str = ""
    """A line for lists: the claim, with all parts that follow it under one number; empty for these parts."""


# ------------------------------------------------------------------------------------------------- rows of the package

_MEASUREMENTS = (
    Measurement("variance", "variance", early=True),
    Measurement("objective", "objective"),
    Measurement("ratios", "paired", opens="all runs and their starts"),
    Measurement("reference", "reference", timed=True, since="reference_error"),
    Measurement("active", "active"),
    Measurement("inference", "inference", timed=True, computes_with="a runner"),
    Measurement("estimator-variance", "estimators", opens="first arm"),
    Measurement("precision", "precision", opens="first run"),
    Measurement("walk", "walk"),
    Measurement("carry", "horizon", documents=True),
    Measurement("recall", "horizon", opens="first run"),
    Measurement("combiner", "combiner"),
)
MEASUREMENTS = {measurement.name: measurement for measurement in _MEASUREMENTS}

CHOSEN = "tuning-test"
"""Rows of the step `evaluate-chosen`: the settings that the search of Table 6 chose, on test."""

_FIXED_SIZE = Losses(("fixed_size",), ("validation", "test", "external"))
_CONTROLS = Losses(("fixed_size", "controls"), ("test",))
_SWEEP = Losses(("sweep",), ("validation",))
_FRONTIER = Losses(("frontier",), ("validation", "test"))

_SUMMARIES = (
    Summary("losses", "fixed_size.losses", (_FIXED_SIZE,)),
    Summary("differences", "fixed_size.differences", (_FIXED_SIZE,)),
    Summary("ngrams", "fixed_size.ngrams", ("ngram-losses",)),
    Summary("controls", "controls.differences", (_CONTROLS, "costs")),
    Summary("sizes", "controls.sizes", (_CONTROLS,)),
    Summary("backpropagation", "backpropagation.compare", (Losses(("backpropagation",), ("validation",)),)),
    Summary("paired", "gradients.paired", (Losses(("paired",), ("test",)), Histories("paired"))),
    Summary("documents", "documents.compare", (Losses(("fixed_size", "paired"), ("test",)),)),
    Summary("allocation", "scaling.allocation", (Losses(("allocation",), ("test",)),)),
    Summary("ablation", "ablations.ablation", (Losses(("ablation",), ("test",)),)),
    Summary("ablation-curves", "ablations.curves", (Histories("ablation"),)),
    Summary("estimators", "gradients.estimators", (Losses(("estimators",), ("test",)), "estimator-variance")),
    Summary("tuning", "tuning.search", (Losses(("tuning",), ("validation",)),)),
    Summary("tuning-compared", "tuning.compare", ("tuning", CHOSEN)),
    Summary("rates", "rates.search", (Losses(("rates",), ("validation",)),)),
    Summary("rates-of-arms", "rates.of_arms", ("rates", IfGiven("tuning"))),
    Summary("widths", "tuning.search_widths", (Losses(("widths",), ("validation",)),)),
    Summary("sweep", "scaling.curves", (_SWEEP, "costs")),
    Summary("crossings", "scaling.crossings", ("sweep",)),
    Summary("sweep-differences", "scaling.differences", (_SWEEP,)),
    Summary("budgets", "scaling.budgets", (_SWEEP,)),
    Summary("best-counts", "scaling.best_counts", (Losses(("fixed_size",), ("validation",)),)),
    Summary("per-expert", "scaling.per_expert", (Losses(("fixed_size",), ("validation",)),)),
    Summary("serving", "inference.serving", (Losses(("inference",), ("test",)), "costs")),
    Summary("serving-at-one-cost", "inference.at_one_cost", (Losses(("inference",), ("test",)), "costs")),
    Summary("active-losses", "inference.active_losses", ("active",)),
    Summary("active-differences", "inference.active_differences", ("active",)),
    Summary("pair-groups", "inference.pair_groups", ("active",)),
    Summary("carried", "horizon.carried", ("carry",)),
    Summary("recalled", "horizon.recalled", ("recall",)),
    Summary("charged", "charged.curves", (Losses(("charged",), ("validation", "test")),)),
    Summary("combined", "combiner.compare", ("combiner",)),
    Summary("frontier", "frontier.points", (_FRONTIER,)),
    Summary("frontier-fits", "frontier.fits", (_FRONTIER, "frontier")),
    Summary("study", "study.differences", (Losses(("study",), ("test",)),)),
    Summary("frontier-differences", "frontier.differences", (_FRONTIER, "frontier")),
)
SUMMARIES = {summary.name: summary for summary in _SUMMARIES}
"""In this order: an arm of several products is evaluated with the first one (`Plan.groups`)."""


# ----------------------------------------------------------------------------------------------------------- products

# fmt: off
SECTIONS: dict[str, tuple[Product, ...]] = {
    "What was reproduced": (
        Table(
            "claims", "claims.claims", "Claims, evidence and verdicts", (Verdicts(), IfGiven("reference")),
            "Each claim of the paper, what this campaign measured, and the verdict by the rule printed below the "
            "table. Read the column of differences first: a value below zero is for the claim.",
        ),
    ),
    "Settings and costs": (
        Table(
            "table1", "settings.table1", "Table 1. Settings", (Facts("sets"),),
            "Settings of the paper beside those of this campaign.",
        ),
        Table(
            "table2", "settings.table2", "Table 2. Parameters at fixed total size", (),
            "Numbers of parameters at fixed total size, counted from the tensors.",
        ),
        Table(
            "table3", "costs.table3", "Table 3. Conventions of device time", ("costs", "reference"),
            "Device time of the same runs under several conventions: a time means nothing without its convention.",
        ),
        Table(
            "costs", "costs.costs", "Costs, in their six quantities", ("costs",),
            "Six quantities that answer six questions; they are never added to one another.",
        ),
        Table(
            "steps", "costs.steps", "Seconds of a global step", ("costs",),
            "How long an update takes as N, n_pert or B grow. Compare the slowest expert with the paper's seconds.",
            needs=("sweep",),
        ),
        Table(
            "clusters", "settings.clusters", "Clusters of the training text", (Facts("clusters"),),
            "The words that distinguish each expert's shard, its size, and how often the routed prefix finds it.",
        ),
    ),
    "Equal size and budget": (
        Figure(
            "figure1", "fixed_size.figure1", "Equal total size: test loss against training cost",
            ("losses", "costs", "differences", IfGiven("sizes"), "ngrams"),
            "Test loss of models of equal total size: left against arithmetic operations, which are the same on any "
            "machine; right against device time on this one, with smaller monoliths at the end of the same budget "
            "(hollow) and n-gram models of the training text (dashed). Below: SOMA's loss minus that of each arm at "
            "the end of their budgets, paired over documents and seeds; left of zero SOMA is better. An interval there "
            "that excludes zero distinguishes two arms even where their bands overlap.",
        ),
        Table(
            "table4", "fixed_size.table4", "Table 4. Test loss at equal budget and total size",
            ("losses", "ngrams", IfGiven("walk")),
            "Test loss at equal arithmetic operations and equal total size, for the last and the averaged iterate. "
            "Rows in italics were not run. The last rows are n-gram models of the same training text: what counting "
            "reaches without any training.",
        ),
        Table(
            "documents", "fixed_size.documents", "Documents won, and intervals over their sources", ("documents",),
            "On how many documents one arm beats the other in every seed, and whether the difference survives when "
            "whole sources of documents are resampled instead of single documents.",
        ),
        Table(
            "table9", "fixed_size.table9", "Table 9. External corpus, frozen checkpoints", ("losses", "ngrams"),
            "The same frozen checkpoints on a corpus that training never touched.",
        ),
    ),
    "Controls of ours": (
        Table(
            "controls", "controls.controls", "Controls that the paper did not run",
            ("controls", IfGiven("precision"), "sizes"),
            "Beyond the paper: other explanations of the comparison at equal total size. Each row compares two arms.",
        ),
        Table(
            "sizes", "controls.sizes", "Size curve at equal operations (B7)", ("sizes", "controls"),
            "Beyond the paper: one budget of operations for every size. Does an ensemble lie below the monoliths' "
            "curve?",
        ),
        Figure(
            "sizes", "controls.sizes", "Size curve: which size for one budget of operations?", ("sizes",),
            "Beyond the paper: for one budget of operations, monoliths of several sizes (black) and arms of equal "
            "total size (coloured). Lower is better.",
        ),
        Table(
            "precision", "controls.precision", "Precision of the finite difference (B6)", ("precision",),
            "Beyond the paper: the error of a loss difference under coarser matrix products; at 1 no signal is left.",
        ),
        Figure(
            "precision", "controls.precision", "Precision of the finite difference L(θ+εz) − L(θ−εz)", ("precision",),
            "Beyond the paper: the error of a loss difference, relative to the difference, against ε for each "
            "arithmetic. Above the dashed line the error is larger than the difference itself.",
        ),
    ),
    "Backpropagation and tuning": (
        Table(
            "table5", "backpropagation.table5", "Table 5. Against backpropagation", ("backpropagation",),
            "The same experts trained by backpropagation, at equal operations. The sign of the difference says which "
            "is better.",
        ),
        Table(
            "table6", "tuning.table6", "Table 6. Equal search over lr and eps", ("tuning",),
            "The same search over lr and eps for one model and for two experts, on ensemble validation alone.",
        ),
        Table(
            "table7", "tuning.table7", "Table 7. Chosen settings on test", ("tuning-compared",),
            "The settings that the search chose, each run tested once.",
        ),
        Table(
            "rates", "rates.rates", "Searches for rates and settings", ("rates",),
            "Every search beside that of Table 6: the settings tried, what each reached on ensemble validation, and "
            "the chosen one. A choice at the edge of what was tried is marked: the best may lie beyond.",
        ),
        Table(
            "rates-of-arms", "rates.of_arms", "Where the rates of every arm come from", ("rates-of-arms",),
            "Which search chose each rate of each arm, and what is missing where none did or the arm differs.",
        ),
        Table(
            "widths", "tuning.widths", "EGGROLL at other widths", ("widths",),
            "The lowest ensemble-validation loss of EGGROLL's model at other widths than that of Table 4.",
        ),
    ),
    "Gradient estimates": (
        Figure(
            "figure4", "gradients.figure4",
            "Independent against summed losses at equal updates: test loss and paired difference", ("paired",),
            "The same experts, start, batches and probes; the difference is whether an expert's probe is multiplied "
            "by its own loss difference or by that of the sum. Below zero, independent losses are better.",
        ),
        Table(
            "variance-ratios", "gradients.ratios", "Summed over independent variance during training (Figure 4)",
            ("ratios",),
            "How many times more the estimate varies with summed losses, at the weights that the paired runs start "
            "from and end with. Rounding noise alone would also give N: compare the two precisions.",
        ),
        Table(
            "table8", "gradients.table8", "Table 8. Reference gradients", ("reference",),
            "Do two independent backpropagation references agree? Only then is the error of a step against them to be "
            "trusted.",
        ),
        Figure(
            "figure5", "gradients.figure5", "Error of one step's gradient estimate against its device time",
            ("reference",),
            "Distance of one step's estimate from the backpropagation gradient, against the time that the step takes. "
            "Lower left is better: compare N at the large points, and follow a line for more directions or sequences.",
        ),
        Figure(
            "figure10", "gradients.figure10", "Relative variance of the gradient estimate at equal total size",
            ("variance",),
            "Relative variance of the gradient estimate: left against N at equal total size, right against n_pert. It "
            "follows the coordinates that one expert perturbs, so it falls little where N grows but bodies hardly "
            "shrink. Lines are the prediction; the distance of the points from them tests it.",
        ),
        Figure(
            "figure11", "gradients.figure11", "A fixed separable objective", ("objective",),
            "Left: independent against summed losses on a fixed objective, and the ratio of both. Right: the error of "
            "every split of a fixed number of evaluations into directions and sequences; lines are each "
            "run's prediction.",
        ),
        Table(
            "estimators", "gradients.estimators", "Estimators at equal operations", ("estimators",),
            "Beyond the paper: estimators of the field at equal operations, by the loss they reach and the variance "
            "of one estimate.",
        ),
        Figure(
            "estimators", "gradients.estimators", "Estimators at equal operations", ("estimators",),
            "Beyond the paper: estimators of the field at equal operations: the loss reached, the first's minus each "
            "(negative: the first is better), and the relative variance of one estimate.",
        ),
    ),
    "Scaling and allocation": (
        Figure(
            "figure7", "scaling.figure7", "Loss against elapsed time, one setting at a time", ("sweep",),
            "Ensemble-validation loss as N, n_pert or B changes alone, against the time of the slowest expert. At one "
            "time, lower is better.",
        ),
        Figure(
            "figure8", "scaling.figure8", "Loss against aggregate cost, one setting at a time", ("sweep",),
            "The same runs against all that was spent, in device time and in operations. At one cost, lower is better.",
        ),
        Table(
            "table10", "scaling.table10", "Table 10. Best allocation under a budget", ("budgets",),
            "The allocation with the lowest ensemble-validation loss at each budget, among those whose curve covers "
            "it.",
        ),
        Figure(
            "figure13", "scaling.figure13", "What a loss costs under each allocation", ("sweep", "crossings"),
            "Every split into directions and sequences: the loss reached against operations. A ringed point was "
            "reached more cheaply by no other split; stars mark where a split reaches the target loss.",
        ),
        Table(
            "crossings", "scaling.crossings", "What it takes to reach one loss (Figure 13)", ("crossings",),
            "The cost of each allocation of the sweeps until its loss reaches the target that Figure 13 draws.",
        ),
        Figure(
            "figure14", "scaling.figure14", "The best N of equal total size under two budgets, by ensemble validation",
            ("best-counts",),
            "Models of equal total size: the N with the lowest loss under a total budget (across) and a budget for "
            "each expert (up), where the curves of at least two cover them. In brackets where the difference to the "
            "second best is not decided.",
        ),
        Table(
            "per-expert", "scaling.per_expert", "Equal work per expert at equal total size (C15)", ("per-expert",),
            "Experts of equal total size that have each done the same work: more experts have done more in all.",
        ),
        Table(
            "table11", "scaling.table11", "Table 11. Continuations at equal operations", ("allocation",),
            "The same operations spent on more directions or on more sequences: every loss, then every pair.",
        ),
    ),
    "Ablations": (
        Figure(
            "figure9", "ablations.figure9",
            "Ablations under backpropagation: expert validation loss during training", ("ablation-curves",),
            "Under backpropagation, the loss of the base and of arms with one change, against training steps. Where a "
            "curve crosses the base's, the order of the two turns.",
        ),
        Table(
            "ablation", "ablations.ablation", "Ablations under backpropagation (Figure 9)",
            ("ablation", "ablation-curves"),
            "Partition, start and head under backpropagation, each compared with the same base; below zero the base "
            "is better. The last column says when one overtakes the other for good.",
        ),
    ),
    "Inference and averaging": (
        Table(
            "table12", "inference.table12", "Table 12. Throughput of inference", ("inference",),
            "Throughput of complete requests of arms of equal total size: route, gather, run, average.",
        ),
        Table(
            "table13", "inference.table13", "Table 13. Inference and training cost", ("serving", "inference", "costs"),
            "What an ensemble costs to train, the loss that it reaches, and how fast it answers: at the end of its "
            "budget and, for the arm with the most experts, where it has trained about as long as the arm with few.",
        ),
        Figure(
            "figure6", "inference.figure6",
            "Equal total size: loss against time of training and throughput of inference",
            ("losses", "costs", "inference"),
            "Ensemble-validation loss of arms of equal total size: left against the elapsed time of training with one "
            "device for each expert, in the middle against the device time of all experts together. Right: the lowest "
            "loss that each arm had at a milestone, against the throughput of complete requests, routing included. "
            "Lower left is better on the left and in the middle, lower right on the right.",
        ),
        Figure(
            "figure15", "inference.figure15", "Test loss against the operations of a byte",
            ("serving", "serving-at-one-cost"),
            "Test loss of arms of equal total size against the operations that a byte costs in the k experts that are "
            "averaged, without routing: left after the same device time of training, right at the ends of the runs. "
            "Lower left is better.",
        ),
        Figure(
            "figure16", "inference.figure16", "How many of the nearest experts to average", ("active-losses",),
            "Ensemble-validation loss when the k nearest experts of a request are averaged, for every k: left "
            "ensembles of one width, as in the paper, right those of equal total size. The dashed line is k = 4, the "
            "paper's choice.",
        ),
        Figure(
            "figure17", "inference.figure17", "Pairs of experts: gain of averaging against similarity of errors",
            ("active", "pair-groups"),
            "What averaging two experts gains on all ensemble-validation text, without routing, against the similarity "
            "of their errors. Pale: every pair of a run; joined points: means of pairs of similar x. A line that falls "
            "to the right means that unlike experts gain more.",
        ),
    ),
    "Open questions": (
        Table(
            "carried", "horizon.carried", "State carried over several windows", ("carried",),
            "Beyond the paper: is a window of state too short? Trained ensembles read held-out documents with the "
            "state zeroed every window (the control, as everywhere else) or less often; the same bytes are scored by "
            "the same experts. That longer state helps is false if a difference lies above zero.",
        ),
        Table(
            "recall", "horizon.recall", "A rare early event at equal operations", ("recalled",),
            "Beyond the paper: is the first byte of a sequence remembered until it decides one far ahead? Controls: "
            "chance, which no model without memory can beat, and backpropagation of the same cell. That SPSA learns "
            "over a distance is false where its loss is not below chance and that of backpropagation is.",
        ),
        Figure(
            "horizon", "horizon.horizon", "Longer state: carried over windows, and over a synthetic distance",
            ("carried", "recalled"),
            "Beyond the paper: left, what carrying state over more windows changes for trained ensembles; right, "
            "what one cell learns to remember, by SPSA and by backpropagation at equal operations.",
        ),
        Table(
            "combiner", "combiner.combiner", "A learned gate over the routed experts", ("combined",),
            "Beyond the paper: do experts gain by seeing how well the others predicted? Controls: the plain mean, the "
            "nearest expert, and the posterior, which needs no training. That a learned gate helps is false where its "
            "difference from the mean is not below zero, and that it must be learned where the posterior does as well.",
        ),
        Table(
            "charged", "charged.charged", "Test loss under totals that pay for everything", ("charged",),
            "Beyond the paper: does the first arm keep its lead where one total pays for seed run, routing, training "
            "and validation, and validation alone says where to stop? Controls: the other arms, charged alike. That it "
            "leads is false where a difference lies above zero.",
        ),
    ),
    "Which model for a budget": (
        Figure(
            "frontier", "frontier.frontier", "The frontier: loss against size and against operations",
            ("frontier", "frontier-fits"),
            "Beyond the paper: left, the test loss of single models (filled) and of ensembles (hollow) against their "
            "parameters, at each budget; right, the lowest loss of each kind against the operations, with the fits "
            "extrapolated (dashed) to a larger budget. Lower is better.",
        ),
        Table(
            "frontier", "frontier.frontier", "The frontier: which model is best under a budget", ("frontier",),
            "Beyond the paper: the test loss of every arm at every budget of operations, with its parameters, the "
            "memory that they take and the operations of a served byte, where ensembles pay too.",
        ),
        Table(
            "frontier-fits", "frontier.fits", "The frontier: best size, best N and the extrapolation",
            ("frontier-fits",),
            "Beyond the paper: the size of a single model and the number of experts with the lowest loss, as functions "
            "of the budget, and what they predict for a larger one.",
        ),
        Table(
            "frontier-questions", "statements.frontier", "The frontier: statements, and what would falsify them",
            ("frontier-differences",),
            "Beyond the paper: each statement as differences that it says are negative, what would falsify it, and the "
            "verdict by the rule of the claims.",
        ),
    ),
    "A study of one's own": (
        Table(
            "study", "statements.study", "Statements of one's own, and what would falsify them", ("study",),
            "Beyond the paper: statements that the configuration makes (products.study), each as differences that it "
            "says are negative, what would falsify it, and the verdict by the rule of the claims.",
        ),
    ),
}
# fmt: on
"""Sections of the report in the paper's order, and the products of each."""

PRODUCTS: tuple[Product, ...] = tuple(product for products in SECTIONS.values() for product in products)
TABLES: dict[str, Table] = {p.name: p for p in PRODUCTS if isinstance(p, Table)}
FIGURES: dict[str, Figure] = {p.name: p for p in PRODUCTS if isinstance(p, Figure)}

RATES = "rates-of-arms"
"""Summary that says, of all verdicts, whether the compared arms have rates that were searched for."""
METRICS: tuple[Read, ...] = ("losses", Verdicts(), IfGiven("controls"), IfGiven("sizes"), "ngrams")
"""Inputs of the step `metrics`."""
FRONT: tuple[Read, ...] = (
    Verdicts(),
    IfGiven("controls"),
    IfGiven("precision"),
    IfGiven("sizes"),
    "costs",
    IfGiven("reference"),
    IfGiven("inference"),
)
"""Inputs of the step `summary`, beside the records of the runs."""
PAGE: tuple[Read, ...] = ("costs", IfGiven("reference"), IfGiven("inference"))
"""Inputs of the step `page`, beside all products and the records of the runs."""


# ------------------------------------------------------------------------------------------------------------- claims

# fmt: off
CLAIMS = (
    Claim(
        "C1a", "fixed_size.against_spsa",
        "At equal budget and total size SOMA N=2 has lower test loss than monolithic SPSA.",
        "{table4[0][test]:.2f} against {table4[1][test]:.2f}, {table4[2][test]:.2f}, {table4[3][test]:.2f}",
        ("differences",), ("table4", "figure1"),
        "lower loss than SPSA (a), EGGROLL (b)",
    ),
    Claim(
        "C1b", "fixed_size.against_eggroll",
        "At equal budget and total size SOMA N=2 has lower test loss than EGGROLL.",
        "{table4[0][test]:.2f} against {table4[4][test]:.2f}",
        ("differences",), ("table4", "figure1"),
    ),
    Claim(
        "C2a", "fixed_size.on_external_text_against_spsa",
        "The same frozen checkpoints of SOMA and SPSA keep that order on an external corpus.",
        "{table9[0][test]:.2f} against {table9[1][test]:.2f}, {table9[2][test]:.2f}, {table9[3][test]:.2f}",
        ("differences",), ("table9",),
        "the same on an external corpus",
    ),
    Claim(
        "C2b", "fixed_size.on_external_text_against_eggroll",
        "The same frozen checkpoints of SOMA and EGGROLL keep that order on an external corpus.",
        "{table9[0][test]:.2f} against {table9[4][test]:.2f}",
        ("differences",), ("table9",),
    ),
    Claim(
        "C3", "tuning.equally_tuned",
        "With equal tuning SOMA N=2 wins in every seed.",
        "mean difference {table7[mean_difference]}, {claims[C3][seeds_won]} of {claims[C3][seeds]} seeds",
        ("tuning-compared",), ("table7", "table6"),
        "the same with equal tuning, in every seed",
    ),
    Claim(
        "C4", "gradients.independence",
        "On a separable objective independent losses have 1/N of the summed loss's relative gradient variance.",
        "{figure11[independent_over_summed]} times at N={figure4[early][n]}, predicted {figure11[predicted]:.2f}",
        ("objective",), ("figure11",),
        "1/N of the variance on a separable objective",
    ),
    Claim(
        "C5", "gradients.independent_minus_summed",
        "Independent losses lower test loss more than summed losses at equal compute; the gain shrinks late.",
        "{claims[C5][early]} after {figure4[early][updates]:,} updates, {claims[C5][late]} late",
        ("paired",), ("figure4",),
        "independent losses beat summed ones",
    ),
    Claim(
        "C6", "gradients.variance_by_count",
        "Relative gradient variance at fixed total size falls with N and as 1/n_pert.",
        "{figure10[ratio_n1_to_n256][updates_10k]} times from N=1 to N=256",
        ("variance",), ("figure10",),
        "variance falls with N and with directions",
    ),
    Claim(
        "C7", "gradients.estimation_error",
        "More shards lower the gradient error, in less device time than more directions or sequences take; more "
        "directions lower it more than larger batches.",
        "plain error at N=256 {claims[C7][error_reduction]:.1%} below the monolith; n_pert "
        "-{figure5[n_pert_64_to_1024_reduction]:.0%}, B -{figure5[batch_64_to_1024_reduction][updates_10k]:.0%}",
        ("reference",), ("table8", "figure5"),
        "a step's error falls with N, cheaply",
    ),
    Claim(
        "C8", "scaling.neighbours",
        "At fixed expert width loss falls with N, n_pert and B, but not at every aggregate budget.",
        "N=1 to 256: {figure7[n_sweep_at_4M_updates][n1]} to {figure7[n_sweep_at_4M_updates][n256]} at 4M updates",
        ("sweep-differences",), ("figure7", "figure8"),
        "loss falls with N, directions and batch",
    ),
    Claim(
        "C9", "inference.many_against_few",
        "At equal total size N=256 infers much faster than N=8 at slightly lower loss, for far more training.",
        "{inference[n256_over_n8]} times faster, {table13[2][test]} against {table13[0][test]}, "
        "{inference[training_compute_ratio]} times the compute",
        ("inference", "serving"), ("table12", "figure6"),
        "many experts answer faster, with lower loss",
    ),
    Claim(
        "C10", "inference.few_active_experts",
        "k=4 active experts catch most of the gain of averaging; averaging all is worse at the largest N.",
        "{figure16[n256_k4_to_k12_gain]} from k=4 to k=12 at N=256, and all 256 worse",
        ("active-differences",), ("figure16",),
        "averaging four experts is enough",
    ),
    Claim(
        "C11", "inference.unlike_pairs",
        "Averaging a pair of experts helps more when their errors are less similar.",
        "mean gain {figure17[mean_gain]} over all pairs",
        ("active",), ("figure17",),
        "unlike experts gain more from averaging",
    ),
    Claim(
        "C12", "ablations.base_minus_ablation",
        "Semantic clusters beat random shards and global IID; warm start and a trained head help (BPTT).",
        "decoder-only head costs {figure9[decoder_only_penalty]}",
        ("ablation",), ("ablation", "figure9"),
        "clusters, warm start and trained head help",
    ),
    Claim(
        "C13", "gradients.best_split",
        "The optimal split of a fixed n_pert B is B* = sqrt(K nu / (d - 1)).",
        "minima at B={figure11[best_batch_measured][four]}, {figure11[best_batch_measured][two]}, "
        "{figure11[best_batch_measured][one]} for {figure11[best_batch_predicted][four]}, "
        "{figure11[best_batch_predicted][two]}, {figure11[best_batch_predicted][one]}",
        ("objective",), ("figure11",),
        "the best split is the predicted one",
    ),
    Claim(
        "C14", "scaling.equal_continuations",
        "Equal-compute continuations with different (n_pert, B) end equal: no two means are further apart than the "
        "paper's, {claims[C14][spread]:.5f}.",
        "{table11[0][test]}, {table11[1][test]}, {table11[2][test]}",
        ("allocation",), ("table11",),
        "different splits end equal",
    ),
    Claim(
        "C15", "scaling.equal_work_per_expert",
        "Under a budget per expert more shards can be best.",
        "a map of best N over two budgets",
        ("per-expert",), ("per-expert", "figure14"),
        "more experts win at equal work per expert",
    ),
    Claim(
        "C16", "backpropagation.far_better",
        "Backpropagation is far better at every budget.",
        "{table5[0][h100][bptt]}, {table5[1][h100][bptt]}, {table5[2][h100][bptt]} against {table5[0][h100][soma]}, "
        "{table5[1][h100][soma]}, {table5[2][h100][soma]}",
        ("backpropagation",), ("table5",),
        "backpropagation is far better",
    ),
)
# fmt: on

CONTROLS = {
    "B1": "Do semantic clusters matter, or do random shards do as well?",
    "B2": "Does an ensemble beat one monolith of a single expert's size at the same operations?",
    "B3": "Does the comparison hold for averaged iterates, or is it noise of the last one?",
    "B4": "How much of the gain is averaging: the mixture against its nearest expert alone?",
    "B5": "Does it hold when the seed run and the preprocessing are charged?",
    "B6": "How small may ε be before coarser matrix products lose the difference?",
    "B7": "For one budget of operations, which size, and how many experts?",
}
"""Questions of the controls that the paper did not run."""


@dataclass(frozen=True)
class Question:
    """A statement that a study beyond the paper tests; its differences are negative if it holds."""

    statement: str
    falsified_by: str
    zero: bool = False
    """True if the statement is that nothing differs, so that an interval without zero on either side falsifies it."""


QUESTIONS = {
    "F1": Question(
        "The best ensemble has a lower loss than the best single model of any size at the same operations.",
        "an interval above zero at any budget: a single model is the better use of it",
    ),
    "F2": Question(
        "The ensemble's advantage grows with the budget.",
        "a slope above zero: its advantage shrinks",
    ),
    "F3": Question(
        "Ensembles on semantic clusters have a lower loss than the same on random shards.",
        "an interval above zero: random shards do better",
    ),
    "F4": Question(
        "The best size of a single model grows with the budget.",
        "an exponent below zero: larger budgets want smaller models",
    ),
    "F5": Question(
        "A larger run ends at the loss that the fits predicted before it was made.",
        "an interval of outcome minus prediction, with both uncertainties, without zero",
        zero=True,
    ),
    "F6": Question(
        "The schedule of the largest budget costs a smaller budget nothing.",
        "an interval without zero between a run with its own schedule and the milestone of a longer one",
        zero=True,
    ),
}
"""Questions of the campaign `frontier`, in the order of its table."""


# --------------------------------------------------------------------------------------------- the part of a campaign


class Catalogue:
    """What one campaign measures, summarises, shows and judges: every entry all of whose products it has."""

    def __init__(self, given: Collection[str]) -> None:
        """Take the names of the products that the campaign's configuration gives."""
        self._given = frozenset(given)
        self.measurements = {name: entry for name, entry in MEASUREMENTS.items() if entry.product in self._given}
        self.summaries = {name: entry for name, entry in SUMMARIES.items() if self._has_all(entry.reads)}
        self.sections = {
            section: own
            for section, products in SECTIONS.items()
            if (own := tuple(p for p in products if self._has_all(p.reads) and self._given.issuperset(p.needs)))
        }
        self.products = tuple(product for products in self.sections.values() for product in products)
        self.tables = {p.name: p for p in self.products if isinstance(p, Table)}
        self.figures = {p.name: p for p in self.products if isinstance(p, Figure)}
        self.claims = tuple(claim for claim in CLAIMS if self._has_all(claim.reads))

    def has(self, rows: str) -> bool:
        """Return if the campaign has the rows of a measurement, a summary or another step."""
        if rows in MEASUREMENTS:
            return MEASUREMENTS[rows].product in self._given
        if rows in SUMMARIES:
            return self._has_all(SUMMARIES[rows].reads)
        return rows != CHOSEN or "tuning" in self._given

    def _has_all(self, reads: Iterable[Read]) -> bool:
        return all(self._has(read) for read in reads)

    def _has(self, read: Read) -> bool:
        match read:
            case str():
                return self.has(read)
            case Losses():
                return self._given.issuperset(read.products)
            case Histories():
                return read.product in self._given
            case _:
                return True
