"""The outcome of a check, which is one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """What was checked, how it went, and one sentence: what there is, or what is wrong and what to do."""

    name: str
    status: Status
    sentence: str

    def line(self) -> str:
        return f"{self.status:8} {self.name:12} {self.sentence}"
