"""Typed configuration of a campaign.

`config/config.yaml` is the base; an overlay (`config/toy.yaml`, `config/paper.yaml`, or your own) is merged over it.
Everything is validated before anything runs; an unknown key is an error that names it. The JSON schema under
`workflow/schemas/` and `config/README.md` are generated from the models of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator
from yaml.constructor import ConstructorError

from soma.catalogue import Catalogue
from soma.config.base import Fraction, Line, Model, Positive, Seed, Seeds
from soma.config.data import Data
from soma.config.products import Products
from soma.config.routing import Routing
from soma.config.training import Compute, Training
from soma.errors import SomaError


class Sampled(Training):
    """Training on every window of a shard, or on a fixed sample of them."""

    subset: Fraction = 1.0
    """Share of a shard's training windows that is used, evenly spaced; all windows are one shard for a single model."""


class SeedRun(Sampled):
    """The run that every expert starts from: one model, all windows, random initialisation, a trained head."""


class Arm(Sampled):
    """One line of a comparison, with one run per seed."""

    label: Line = ""
    """Name in tables and figures; empty: derived from the settings."""
    recipe: str | None = None
    """Named settings applied between `training` and this arm's own."""
    seeds: Seeds = (0,)
    """Seeds; each is an independent run with an independent seed run."""
    k: Positive | None = None
    """Experts whose predictions are averaged; null: min(4, N)."""
    counterpart: str | None = None
    """Row of the paper's Tables 4 and 9 to compare with this arm, as method-nN-pP (`soma-n2-p64`)."""

    @model_validator(mode="after")
    def _possible(self) -> Arm:
        if self.k is not None and self.k > self.experts:
            raise ValueError(f"k ({self.k}) must not be larger than the number of experts ({self.experts})")
        if self.updates is None and self.operations is None:
            raise ValueError("give the budget as `updates` or as `operations`")
        return self

    @property
    def active(self) -> int:
        """Number of experts that a prediction averages (k)."""
        return self.k if self.k is not None else min(4, self.experts)


class Config(Model):
    campaign: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$")]
    """Name; outputs are written to results/<campaign>/."""
    watermark: Line = ""
    """Text over every figure and under every table; empty: none."""
    seed: Seed = 0
    """Seed of every random stream that does not belong to a run: splits, router, bootstrap."""
    compute: Compute = Compute()
    """Device, parallelism and engine."""
    data: Data = Data()
    """Corpora, windows, splits."""
    routing: Routing = Routing()
    """Features, clusters, router."""
    bootstrap_draws: Positive = 10_000
    """Paired bootstrap draws over documents for a 95 % interval."""
    training: Training = Training()
    """Defaults of every run."""
    seed_run: SeedRun
    """Changes to `training` for the seed run; sizes come from the arm it serves."""
    recipes: dict[str, Training] = Field(default_factory=dict)
    """Named changes to `training` that arms can share."""
    arms: dict[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$")], Arm]
    """Named runs; each merges training < recipe < its own keys."""
    products: Products
    """Arms shown in each table and figure."""
    rates_given: Line = ""
    """Where the rates of all arms come from, if not from the searches of this campaign; empty: from these."""
    untestable: dict[Annotated[str, Field(pattern="^C[0-9]+[ab]?$")], Line] = Field(default_factory=dict)
    """Claims that this campaign is too small to test, each with the reason printed on the claims page."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.seed_run.updates is None:
            raise ValueError("seed_run.updates is missing: give the seed run's budget in updates")
        for name in (*self.products.arms, *self.products.bases):
            if name not in self.arms and name not in self._swept_in_active():
                raise ValueError(f"products names the arm `{name}`, which `arms` does not define")
        if self.products.precision and self.arms[self.products.precision.arm].head != "local":
            raise ValueError(
                f"products.precision.arm is `{self.products.precision.arm}`, which does not have its own head"
            )
        self._check_products()
        for name, arm in self.arms.items():
            self._check_start(name, arm)
        for name, run in [("seed_run", self.seed_run), *self.arms.items()]:
            if run.crop > self.data.window:
                raise ValueError(f"{name}: crop ({run.crop} bytes) must not exceed data.window ({self.data.window})")
        return self

    @cached_property
    def catalogue(self) -> Catalogue:
        """What this campaign measures, shows and judges."""
        return Catalogue(self.products.given)

    @cached_property
    def searched(self) -> dict[str, Arm]:
        """Arms that the searches of `products.rates` derive, by name; the order of the searches means nothing."""
        out: dict[str, Arm] = {}
        for where, search in sorted(self.products.rates.items()):
            for name, change in search.variants.items():
                try:
                    out[name] = Arm.model_validate(merge(self.arms[search.arm].model_dump(), change))
                except ValidationError as error:
                    raise ValueError(f"products.rates.{where}: {_sentence(error.errors()[0])}") from None
        return out

    @cached_property
    def swept(self) -> dict[str, Arm]:
        """Arms that the sweep derives, by name; none without a sweep."""
        sweep = self.products.sweep
        if not sweep:
            return {}
        base = self.arms[sweep.arm]
        return {name: base.model_copy(update=change) for name, change in sweep.variants(base).items()}

    def _swept_in_active(self) -> set[str]:
        """Return the derived arms of the sweep that Figure 16 shows, and no other product."""
        p = self.products
        if not (p.active and p.sweep and p.sweep.arm in self.arms):
            return set()
        others = {arm for name, product in p if name != "active" for arm in getattr(product, "arms", ())}
        return (self.swept.keys() & {*p.active.arms}) - others

    def _check_start(self, name: str, arm: Arm) -> None:
        """Check that an arm which continues another can take over its weights."""
        if arm.start in ("seed", "random"):
            return
        other = self.arms.get(arm.start)
        if other is None:
            raise ValueError(f"arms.{name}.start is `{arm.start}`; use seed, random or the name of an arm")
        if other.start not in ("seed", "random"):
            raise ValueError(f"arms.{name}.start is `{arm.start}`, which is itself a continuation")
        for key in ("method", "width", "depth", "embedding", "head", "partition"):
            if getattr(arm, key) != getattr(other, key):
                raise ValueError(f"arms.{name} continues `{arm.start}`, so its `{key}` must be the same")
        if arm.experts > other.experts:
            raise ValueError(
                f"arms.{name} has {arm.experts} experts and continues `{arm.start}`, which has {other.experts}; a "
                "continuation takes the first experts of another arm, or all"
            )

    def _check_products(self) -> None:
        p = self.products
        measured = [product for product in (p.objective, p.variance, p.reference, p.estimators) if product]
        for name in [arm for product in measured for arm in product.arms] + ([p.sweep.arm] if p.sweep else []):
            if self.arms[name].method != "spsa":
                raise ValueError(f"products measure the SPSA estimate of `{name}`, which trains by another method")
        for name in p.inference.arms if p.inference else ():
            if name not in p.fixed_size.arms:
                raise ValueError(f"products.inference.arms names `{name}`, which is not among products.fixed_size")
        for kind, members in (p.frontier.kinds if p.frontier else {}).items():
            for name in members:
                if (self.arms[name].experts > 1) != (kind == "ensemble"):
                    raise ValueError(f"products.frontier lists `{name}` as {kind}, which its number of experts is not")
        served = [(f"rates.{name}", arm) for name, search in p.rates.items() for arm in search.serves]
        tuned = p.tuning.serves.values() if p.tuning else ()
        for where, name in served + [("tuning", arm) for arms in tuned for arm in arms]:
            if name not in self.arms:
                raise ValueError(f"products.{where}.serves names the arm `{name}`, which `arms` does not define")
        names = [name for search in p.rates.values() for name in search.variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"products.rates runs the setting `{name}` twice")
        _ = self.searched  # every setting must make a valid arm
        for name in p.walk.arms if p.walk else ():
            if self.arms[name].method != "eggroll":
                raise ValueError(f"products.walk.arms names `{name}`, which is not an `eggroll` arm")
        for where, product in (("horizon", p.horizon), ("combiner", p.combiner), ("charged", p.charged)):
            for name in product.arms if product else ():
                if self.arms[name].method not in ("spsa", "bptt"):
                    raise ValueError(
                        f"products.{where}.arms names `{name}`, which is neither an `spsa` nor a `bptt` arm"
                    )
        for name in p.charged.arms if p.charged else ():
            if self.arms[name].start in self.arms:
                raise ValueError(f"products.charged.arms names `{name}`, which continues another arm")
        for name in p.combiner.arms if p.combiner else ():
            if self.arms[name].active < 2:
                raise ValueError(f"products.combiner.arms names `{name}`, which has one active expert")
        if p.widths and self.arms[p.widths.arm].method != "eggroll":
            raise ValueError(f"products.widths.arm is `{p.widths.arm}`, which is not an `eggroll` arm")
        if p.active and (self.arms | self.swept)[p.active.pairs].experts < 3:
            raise ValueError(f"products.active.pairs is `{p.active.pairs}`, which has fewer than three experts")
        for batch in p.sweep.batch if p.sweep else ():
            base = self.arms[p.sweep.arm].batch
            if batch > base and batch % base:
                raise ValueError(f"products.sweep.batch holds {batch}, which is not a multiple of the arm's {base}")


# ------------------------------------------------------------------------------------------------------ reading


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Merge an overlay deeply over a base; a different `source` replaces the whole source, and `rates` all searches,
    whose settings and budgets suit the arms of one campaign.

    A `null` under `arms`, `recipes` or `untestable` removes the entry (in `resolve`); under `products` it leaves out a
    product.
    """
    out = dict(base)
    for key, value in overlay.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            other_source = isinstance(value.get("source"), str) and value["source"] != old.get("source")
            out[key] = dict(value) if other_source or key == "rates" else merge(old, value)
        else:
            out[key] = value
    return out


def resolve(raw: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Validate a merged configuration and complete its arms (training < recipe < arm).

    Raises:
        SomaError: one sentence per problem, each naming the key.
    """
    raw = dict(raw)
    training, recipes, arms = (_given(raw.get(key)) for key in ("training", "recipes", "arms"))
    if all(isinstance(part, Mapping) for part in (training, recipes, arms)):
        for name, arm in arms.items():
            if not isinstance(arm, Mapping):
                continue
            recipe = arm.get("recipe")
            if recipe is not None and (not isinstance(recipe, str) or recipe not in recipes):
                known = ", ".join(sorted(recipes)) or "none"
                raise SomaError(
                    f"{where}: arms.{name}.recipe is `{recipe}`, which `recipes` does not define (it defines: {known})."
                )
            arms[name] = merge(merge(training, recipes.get(recipe) or {}), arm)
        if isinstance(raw.get("seed_run"), Mapping):
            raw["seed_run"] = merge(training, raw["seed_run"])
    raw["recipes"], raw["arms"] = recipes, arms
    raw["untestable"] = _given(raw.get("untestable"))
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise SomaError(f"{where}: " + "; ".join(_sentence(e) for e in _first(error.errors()))) from None


def _given(value: Any) -> Any:
    """Return a mapping without the keys that an overlay set to null; whatever else stands in its place is kept."""
    return (
        {k: v for k, v in value.items() if v is not None}
        if isinstance(value, Mapping)
        else {}
        if value is None
        else value
    )


def _first(errors: Sequence[Any]) -> list[Any]:
    """Return the errors without those that only follow from others: that arms and the seed run take over from
    `training`, and that a list is too short because of a bad value in it.
    """
    inherited = {"arms": 2, "recipes": 2, "seed_run": 1}  # lengths of the paths of what `training` is merged into
    shared = {(error["loc"][1:], error["type"]) for error in errors if error["loc"][:1] == ("training",)}

    def own(error: Any) -> bool:
        path = error["loc"]
        if error["type"] == "too_short" and any(e["loc"][:-1] == path for e in errors):
            return False
        length = inherited.get(path[0]) if path else None
        return length is None or (path[length:], error["type"]) not in shared

    return [error for error in errors if own(error)]


def _sentence(error: Any) -> str:
    path = ".".join(str(p) for p in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key `{path}`; config/README.md lists every key"
    if error["type"] == "missing":
        return f"`{path}` is missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"`{path}` is {error['input']!r}: {message[0].lower()}{message[1:]}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that reads `1e-3` and `8.33e6` as numbers, as YAML 1.2 specifies; PyYAML reads them as strings.

    It refuses what would change a setting without a word: a key that stands twice, of which the last would win, and the
    numbers of YAML 1.1 that mean another (`012` is ten there, `1:30` ninety).
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be one word", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"the key `{key.value}` stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def decimal(self, node: Any) -> int:
        if not re.fullmatch("[-+]?(0|[1-9][0-9]*)", node.value):
            raise ConstructorError(
                None, None, f"`{node.value}` is no decimal number; write one, or put text in quotes", node.start_mark
            )
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.decimal)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping with the safe loader."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise SomaError(f"{path} does not exist; name a configuration file that does.") from None
    except RecursionError:
        raise SomaError(f"{path} nests too deeply to be read; write it in a plainer form.") from None
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, or no date or number that Python has
        raise SomaError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(value, dict):
        raise SomaError(f"{path} must contain a mapping of keys at its top level.")
    return value


BASE = Path("config/config.yaml")
"""The base file, from the folder of the project."""


def merged(base: Path, *overlays: Path) -> dict[str, Any]:
    """Read the base file with overlays merged over it, in order."""
    raw = read_yaml(base)
    for overlay in overlays:
        raw = merge(raw, read_yaml(overlay))
    return raw


def load(base: Path, *overlays: Path) -> Config:
    """Load the base file with overlays merged over it, in order."""
    return resolve(merged(base, *overlays), where=str(overlays[-1] if overlays else base))
