"""Places of a campaign's files, relative to its folder: the rules declare them, the steps read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from soma.catalogue import RATES, Facts, Histories, IfGiven, Losses, Read, Verdicts
from soma.plan import Plan

EVALUATED = ("validation", "test")
"""Sets whose facts tables show."""


def rows(name: str) -> str:
    """Return the file of the rows of a measurement or summary."""
    return f"measurements/{name}.parquet"


def losses(read: Losses, plan: Plan) -> list[str]:
    """Return the files of per-document losses, one for each set and group of arms."""
    arms = [arm for product in read.products for arm in plan.product_arms(product)]
    groups = dict.fromkeys(plan.group_of[arm] for arm in arms)
    return [f"evaluation/{set_}/{group}.parquet" for set_ in read.sets for group in groups]


def histories(read: Histories, plan: Plan) -> dict[str, list[str]]:
    """Return the histories of a product's runs, by run."""
    runs = [run for arm in plan.product_arms(read.product) for run in plan.arm_runs[arm]]
    return {run.id: [f"runs/{folder}/history.parquet" for folder in plan.folders(run)] for run in runs}


def facts(read: Facts, plan: Plan) -> dict[str, str]:
    """Return JSON files by the role of an evaluation set, or by the number of clusters."""
    if read.of == "sets":
        return {role: f"sets/{role}.json" for role in EVALUATED}
    return {str(n): f"routing/clusters-n{n}.json" for n in plan.expert_counts}


def files(reads: Iterable[Read], plan: Plan) -> list[str]:
    """Return every file behind what a function of the catalogue reads."""
    return list(dict.fromkeys(file for read in reads for file in _files(read, plan)))


def _files(read: Read, plan: Plan) -> Iterator[str]:
    match read:
        case str():
            yield rows(read)
        case IfGiven():
            if plan.config.catalogue.has(read.rows):
                yield rows(read.rows)
        case Losses():
            yield from losses(read, plan)
        case Histories():
            yield from (file for files_ in histories(read, plan).values() for file in files_)
        case Facts():
            yield from facts(read, plan).values()
        case Verdicts():
            yield from (rows(name) for claim in plan.config.catalogue.claims for name in claim.reads)
            yield rows(RATES)
