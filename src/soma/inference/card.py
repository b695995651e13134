"""Model card: training data, costs, losses and limits of a model, and how to load it.

A card contains only the given facts: a number that was not measured reads `not measured`. The facts that a model hub
searches (licence, data sets, losses with their intervals) stand at its top as YAML too.
"""

from __future__ import annotations

from pydantic import Field

from soma.config.base import Model
from soma.inference.hub import library
from soma.inference.manifest import Manifest

COSTS = (
    "arithmetic operations",
    "aggregate device time",
    "idealised elapsed time",
    "actual elapsed time",
    "initialisation",
    "preprocessing",
)
"""The six quantities of soma.accounting.cost, which are never merged."""
_NONE = "not measured"


class Loss(Model):
    """A measured loss."""

    set: str
    """Evaluation set, for example `test`."""
    k: int
    """Experts averaged."""
    nats: float
    """Nats per byte."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval over documents."""
    bytes: int | None = None
    documents: int | None = None


class Text(Model):
    """The training text, as a model hub names it; what is unknown is empty."""

    licence: str = ""
    """Its licence, in words."""
    licence_id: str = ""
    """The hub's name of this licence, under which the model is offered too."""
    language: str = ""
    """ISO 639-1 code."""
    datasets: tuple[str, ...] = ()
    """Data sets of the hub that it comes from."""


class Cost(Model):
    """One of the six quantities."""

    value: float
    unit: str
    convention: str = ""
    """Counting convention."""


class Card(Model):
    """Facts for a model card."""

    data: tuple[str, ...] = ()
    """Sentences about the training text."""
    text: Text = Text()
    losses: tuple[Loss, ...] = ()
    costs: dict[str, Cost] = Field(default_factory=dict)
    """Costs by quantity (`COSTS`)."""
    machine: str = ""
    """Machine on which the times were measured."""
    limits: tuple[str, ...] = ()
    """Sentences, in addition to those that hold for every model of this kind."""


def card(about: Manifest, facts: Card, name: str) -> str:
    """Return README.md of a model's folder, from `ensemble.json` and the given facts.

    Raises:
        SomaError: if huggingface_hub is not installed.
    """
    n, k, prefix, window = about.experts, about.k, about.prefix, about.window
    chosen = (
        f"a router reads the first {prefix} bytes of a text and chooses {k} of them, whose predictions are averaged"
        if about.routing
        else f"the first {k} serve every text (there is no router), and their predictions are averaged"
    )
    lines = [
        f"---\n{_metadata(facts, name)}\n---",
        "",
        f"# {name}",
        "",
        f"A byte-level language model: {n} LSTM expert{'s' if n > 1 else ''} of width {about.width} and depth "
        f"{about.depth}, {about.parameters:,} parameters in all; {chosen}. Weights: run `{about.run}`, "
        f"`{about.iterate}` iterate, update {about.update}.",
        "",
        "## Use",
        "",
        "```python",
        "from soma.inference import Ensemble",
        "",
        'model = Ensemble.load("path/to/this/folder")  # or "owner/name" of a repository on the Hub',
        'print(model.score("A text of at least a few hundred bytes ...").bits)',
        'print(b"".join(model.sample("My fellow citizens", 200, seed=1)).decode(errors="replace"))',
        "```",
        "",
        "On the command line: `soma score`, `soma sample`, `soma route`, each with `--model path/to/this/folder`.",
        "",
        "## Data",
        "",
        *(facts.data or ("Training text: not recorded.",)),
        "",
        f"Licence of the training text: {facts.text.licence or 'not recorded'}.",
        "",
        "## Losses",
        "",
        *_losses(facts),
        "",
        "## Cost",
        "",
        *_costs(facts),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in (*_limits(prefix, window), *facts.limits)),
        "",
        "## Files",
        "",
        "Tensors are safetensors, the rest JSON; no file contains code. `ensemble.json` has the SHA-256 of "
        "every file but this one, and loading checks them.",
    ]
    return "\n".join(lines) + "\n"


def _metadata(facts: Card, name: str) -> str:
    """Return the facts that a hub searches, as YAML."""
    hub, text = library(), facts.text
    results = [
        hub.EvalResult(
            task_type="text-generation",
            dataset_type=loss.set,
            dataset_name=loss.set,
            dataset_config=f"{loss.k} expert{'s' if loss.k > 1 else ''} averaged",  # results of one are merged
            dataset_args={"experts_averaged": loss.k},
            metric_type="nats_per_byte",
            metric_name="nats per byte",
            metric_value=loss.nats,
            metric_args={
                "interval_95": None if loss.low is None or loss.high is None else [loss.low, loss.high],
                "bytes": loss.bytes,
                "documents": loss.documents,
            },
        )
        for loss in facts.losses
    ]
    data = hub.ModelCardData(
        model_name=name,
        library_name="soma-repro",
        pipeline_tag="text-generation",
        tags=["byte-level", "lstm", "mixture-of-experts", "zeroth-order-optimization"],
        license=text.licence_id or None,
        license_name=text.licence if text.licence_id == "other" else None,
        language=text.language or None,
        datasets=list(text.datasets) or None,
        metrics=["nats_per_byte"] if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _limits(prefix: int, window: int) -> tuple[str, ...]:
    return (
        f"Trained and evaluated on windows of {window} bytes, each from the zero state; longer samples extrapolate.",
        f"A text is routed once, on its first {prefix} bytes; scores leave those bytes out.",
        "It continues text of the kind that it was trained on. It was not trained to be right, useful or harmless.",
        "It can repeat pieces of its training text.",
    )


def _losses(facts: Card) -> list[str]:
    if not facts.losses:
        return [f"Losses: {_NONE}."]
    lines = [
        "| set | experts averaged | nats per byte [95 %] | scored bytes | documents |",
        "| --- | --- | --- | --- | --- |",
    ]
    for loss in facts.losses:
        interval = _NONE if loss.low is None or loss.high is None else f"{loss.low:.4f}, {loss.high:.4f}"
        counts = [_NONE if x is None else f"{x:,}" for x in (loss.bytes, loss.documents)]
        lines.append(f"| {loss.set} | {loss.k} | {loss.nats:.4f} [{interval}] | {counts[0]} | {counts[1]} |")
    return lines


def _costs(facts: Card) -> list[str]:
    lines = ["| quantity | value | counted as |", "| --- | --- | --- |"]
    for quantity in COSTS:
        cost = facts.costs.get(quantity)
        value = _NONE if cost is None else f"{cost.value:.3g} {cost.unit}"
        lines.append(f"| {quantity} | {value} | {cost.convention if cost else ''} |")
    return [*lines, "", f"Times were measured on: {facts.machine or 'not recorded'}."]
