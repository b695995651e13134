"""`soma export`: a trained run of a campaign as a model folder, with the campaign's measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from soma.analysis.bootstrap import DocumentBootstrap, percentile_interval
from soma.config.base import Record, read_as
from soma.errors import SomaError
from soma.evaluation.published import Published
from soma.files.artefact import check
from soma.files.tables import read_rows
from soma.inference.card import COSTS, Card, Cost, Loss, Text
from soma.inference.folder import export as write_folder
from soma.inference.manifest import Manifest
from soma.numerics.rng import Stream
from soma.runs import Iterate, RunSpec, recorded
from soma.training.names import MILESTONES

_TEXTS = {
    "sotu": Text(licence="public domain (works of the US federal government)", licence_id="other", language="en"),
    "ovos-wiki": Text(licence="CC BY-SA 4.0 (Wikipedia)", licence_id="cc-by-sa-4.0", language="en"),
    "fineweb-edu": Text(
        licence="ODC-By 1.0 (the collection; each page keeps its own)",
        licence_id="odc-by",
        language="en",
        datasets=("HuggingFaceFW/fineweb-edu",),
    ),
    "wikitext": Text(
        licence="CC BY-SA 3.0 and GFDL (Wikipedia)",
        licence_id="cc-by-sa-3.0",
        language="en",
        datasets=("Salesforce/wikitext",),
    ),
    "text": Text(licence="not recorded (the user's own files)"),
}
"""What is known of each source; a licence that the hub has no name for is `other`, with its own words."""

_DRAWS = 1000  # of the interval of a loss that no table shows


class _Windows(Record):
    prefix: int
    window: int


class _Source(Record):
    source: str


class _Corpus(Record):
    source: _Source
    documents: int
    text_bytes: int
    source_text_sha256: str


def export(campaign: Path, run: str, output: Path, iterate: Iterate, k: int | None) -> None:
    """Write a run's model folder, with a card based on the campaign's files."""
    if not run or Path(run).name != run:
        raise SomaError(f"--run is {run!a}; give the name of a folder in {campaign / 'runs'}, such as soma-n8-s0.")
    parts = sorted(path.parent for path in (campaign / "runs" / run).glob("*/run.json"))
    if not parts:
        raise SomaError(f"{campaign} has no trained run `{run}`; name a folder of {campaign / 'runs'}, or train it.")
    record = recorded(parts[0])
    export_run(record, parts, _head_part(record, campaign), campaign, output, iterate=iterate, k=k)


def refusal(run: RunSpec) -> str | None:
    """Return why a run cannot be a model folder, None if it can."""
    if run.settings.method == "eggroll":
        return "is a gated recurrent model of EGGROLL; only LSTM ensembles can be exported"
    if run.family != "lstm":
        return "is made of torch modules of your own; only LSTM ensembles can be exported"
    if run.clusters is not None and run.clusters != run.experts:
        return (
            f"has the first {run.experts} experts of {run.clusters}, which its router would not choose from alone; "
            f"export the run that it continues, {run.start}"
        )
    return None


def export_run(
    run: RunSpec,
    parts: Sequence[Path],
    head: Path | None,
    campaign: Path,
    output: Path,
    *,
    iterate: Iterate = "last",
    k: int | None = None,
) -> Manifest:
    """Write the model folder of a published run at the end of its budget and return `ensemble.json`.

    Args:
        parts: folders of the run's parts, `runs/<run>/<part>`.
        head: folder of the part whose final head the experts share, for a run without its own heads.
        campaign: folder with `routing/`, `sets/`, `corpus/train/` and, if measured, `measurements/`.
        k: number of experts averaged by default; None: min(4, N).

    Raises:
        SomaError: if the run does not consist of LSTM experts, or a needed file is missing or damaged.
    """
    if reason := refusal(run):
        raise SomaError(f"{run.id} {reason}.")
    absent = [part / MILESTONES for part in parts if not (part / MILESTONES).is_file()]
    if iterate == "average" and absent:
        raise SomaError(
            f"the averaged weights of {run.id} are in {absent[0]}, which is missing, because campaigns may be shared "
            f"without it; `snakemake --cores all --configfile YOURS -- {' '.join(map(str, absent))}` trains the run "
            "again and keeps it (leave --configfile out for campaign small); or export --iterate last."
        )
    runs = campaign / "runs"
    names = {part: str(part.relative_to(runs)) for part in (*parts, *([head] if head else []))}
    entry = {
        "run": run.model_dump(mode="json"),
        "parts": [names[p] for p in parts],
        "head": names[head] if head else None,
    }
    opened = Published.open(entry, runs, milestones=iterate == "average")
    windows = read_as(_Windows, campaign / "sets" / "validation.json")
    routing = campaign / "routing"
    folders = None if run.clusters is None else (routing / "features", routing / f"router-n{run.experts}")
    sources = {name: _source_hash(part, "last" if part == head else iterate) for part, name in names.items()}
    for kind, folder in zip(("features", "router"), folders or (), strict=False):
        sources[f"routing/{folder.name}"] = check(folder, kind, contents=False)["id"]
    return write_folder(
        opened.experts(iterate=iterate),
        output,
        run=run.id,
        iterate=iterate,
        update=run.updates,
        k=min(4, run.experts) if k is None else k,
        prefix=windows.prefix,
        window=windows.window,
        features=folders and folders[0],
        router=folders and folders[1],
        facts=_facts(campaign, run, iterate),
        sources=sources,
    )


def _source_hash(part: Path, iterate: Iterate) -> str | None:
    """Return the hash of the file that a part's weights come from."""
    digest: str | None = read_as(dict[str, Any], part / "run.json").get(
        f"{'weights' if iterate == 'last' else 'milestones'}_sha256"
    )
    return digest


def _head_part(run: RunSpec, campaign: Path) -> Path | None:
    """Return the part folder of the run whose head the experts share, None if they use their own."""
    if run.trains_head or run.head_from is None:
        return None
    folders = sorted(path.parent for path in (campaign / "runs" / run.head_from).glob("*/run.json"))
    if not folders:
        raise SomaError(f"{run.id} shares the head of {run.head_from}, which {campaign} does not contain; train it.")
    return folders[0]


def _facts(campaign: Path, run: RunSpec, iterate: Iterate) -> Card:
    """Collect a run's facts from the campaign's files, leaving out those that are missing."""
    corpus = campaign / "corpus" / "train" / "manifest.json"
    data: tuple[str, ...] = ()
    text = Text()
    if corpus.exists():
        known = read_as(_Corpus, corpus)
        source = known.source.source
        data = (
            f"Training text: `{source}`, {known.documents:,} documents, {known.text_bytes:,} bytes "
            f"(SHA-256 of the text {known.source_text_sha256[:16]} ...).",
        )
        text = _TEXTS.get(source, text)
    costs: dict[str, Cost] = {}
    machines = set()
    for row in _rows(campaign / "measurements" / "costs.parquet", run, {}).to_dict("records"):
        if row["quantity"] in COSTS and not isnan(row["value"]):
            costs[row["quantity"]] = Cost(value=row["value"], unit=row["unit"], convention=row["convention"])
            machines.add(f"{row['device']}, {row['threads']} thread(s), engine {row['engine']}")
    limits: tuple[str, ...] = ()
    settings = campaign / "settings" / "campaign.json"
    if settings.exists() and (mark := read_as(dict[str, Any], settings).get("watermark")):
        limits = (f"Its campaign is marked `{mark}`: its size supports no conclusion.",)
    return Card(
        data=data,
        text=text,
        losses=tuple(_losses(campaign, run, iterate)),
        costs=costs,
        machine="; ".join(sorted(machines)),
        limits=limits,
    )


def _losses(campaign: Path, run: RunSpec, iterate: Iterate) -> Iterator[Loss]:
    """Yield a run's losses: of the campaign's tables, or if they have none, of its evaluated documents."""
    rows = _rows(campaign / "measurements/losses.parquet", run, {"iterate": iterate, "seed": run.seed})
    for row in rows.to_dict("records") or _evaluated(campaign, run, iterate):
        name = f"{row['set']} ({row['split']})" if row["split"] else row["set"]
        yield Loss(
            set=name, k=row["k"], nats=row["loss"], low=row["low"], high=row["high"], bytes=row["bytes"],
            documents=row["documents"],
        )  # fmt: skip


def _evaluated(campaign: Path, run: RunSpec, iterate: Iterate) -> Iterator[dict[str, Any]]:
    """Yield the losses of a run that no table shows by itself, such as a control's, one for each set, split and k."""
    for path in sorted((campaign / "evaluation").glob("*/*.parquet")):
        rows = _rows(path, run, {"iterate": iterate})
        for (set_, split, k), documents in rows.groupby(["set", "split", "k"]) if len(rows) else ():
            each = documents.groupby("document").agg({"nats": "sum", "bytes": "first"})
            draws = DocumentBootstrap(each["bytes"].to_numpy(float), _DRAWS, Stream.named(0, "card", set_, split))
            loss = float(each["nats"].sum() / each["bytes"].sum())
            interval = percentile_interval(loss, draws.ratios(each[["nats"]].to_numpy(float))[:, 0])
            sizes = {"bytes": int(each["bytes"].sum()), "documents": len(each)}
            yield {
                "set": set_,
                "split": split,
                "k": k,
                "loss": loss,
                "low": interval.low,
                "high": interval.high,
                **sizes,
            }


def _rows(path: Path, run: RunSpec, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return a measurement's rows for one run at the end of its budget; none if it was not measured."""
    if not path.exists():
        return pd.DataFrame()
    rows = read_rows(path)
    for column, value in {"run": run.id, "update": run.updates, **where}.items():
        rows = rows[rows[column] == value]
    return rows
