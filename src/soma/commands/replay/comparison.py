"""Results of a replay: equal bytes, equal digits, or the first field that differs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from soma.errors import SomaError

Status = Literal["identical", "agrees", "differs", "not here"]


@dataclass(frozen=True)
class Comparison:
    """The result of replaying one piece of a recorded run."""

    run: str
    part: str | None
    """None for an evaluation, which covers all parts."""
    what: str
    """The piece, such as `updates 1-25`, `last leg 2675-2720` or `test, 2 documents`."""
    status: Status
    digits: int | None = None
    """Number of decimal digits that agree, if the bytes differ."""
    reason: str = ""
    """Reason why digits suffice, or why nothing could be compared."""
    field: str | None = None
    """The first field that differs, located and quantified by the fields below."""
    expert: int | None = None
    update: int | None = None
    recorded: Any = None
    here: Any = None

    def line(self) -> str:
        """Return the result as a human-readable line."""
        return f"{' '.join(filter(None, (self.run, self.part)))}, {self.what}: {self._verdict()}"

    def _verdict(self) -> str:
        if self.status == "agrees":
            return f"agrees to {self.digits} digits ({self.reason})"
        if self.status == "not here":
            return f"not here ({self.reason})"
        if self.status == "identical":
            return self.status
        expert = "" if self.expert is None else f" of expert {self.expert}"
        update = "" if self.update is None else f" at update {self.update}"
        values = f": {self.reason}" if self.reason else f": recorded {self.recorded}, here {self.here}"
        digits = "" if self.digits is None else f" ({self.digits} digits agree)"
        return f"differs in {self.field}{expert}{update}{values}{digits}"


@dataclass(frozen=True)
class Allowed:
    """A reason why floats may differ in their bytes, and the number of digits that must agree."""

    reason: str
    digits: int = 4


class Different(Exception):
    """Raised if a field differs from the record; arguments as in `Comparison`."""

    def __init__(self, field: str, **details: Any) -> None:
        super().__init__(field)
        self.details = {"field": field, **details}


class NotHere(Exception):
    """Raised if a file needed for a replay is not in this clone."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is missing")
        self.path = path


class Agreement:
    """Field-by-field comparison that raises `Different` at the first difference and tracks how far floats agree."""

    def __init__(self, allowed: Allowed | None) -> None:
        self.allowed, self.worst = allowed, 0.0

    def same(self, field: str, recorded: Any, here: Any, **where: int) -> None:
        """Compare a field that must be equal."""
        if recorded != here:
            raise Different(field, recorded=recorded, here=here, **where)

    def close(self, field: str, recorded: float, here: float, **where: int) -> None:
        """Compare a number."""
        if np.float64(recorded).tobytes() != np.float64(here).tobytes():
            apart = 0.0 if recorded == here else abs(recorded - here) / max(abs(recorded), abs(here))
            self._take(apart, field, recorded, here, where)

    def close_tensor(self, field: str, recorded: Tensor, here: Tensor, **where: int) -> None:
        """Compare a tensor; its difference is relative to its largest element."""
        if recorded.shape != here.shape or recorded.dtype != here.dtype:
            shapes = (f"{t.dtype} {tuple(t.shape)}" for t in (recorded, here))
            raise Different(field, **dict(zip(("recorded", "here"), shapes, strict=True)), **where)
        if not torch.equal(recorded.view(torch.uint8), here.view(torch.uint8)):
            difference = (recorded.double() - here.double()).abs()
            at = int(difference.flatten().nan_to_num(nan=math.inf).argmax())
            known, repeated = (float(t.flatten()[at]) for t in (recorded, here))
            self._take(float(difference.max() / recorded.double().abs().max()), field, known, repeated, where)

    def digits(self) -> int | None:
        """Return how many digits agree in all numbers; None if all bytes agree."""
        return _digits(self.worst) if self.worst else None

    def _take(self, relative: float, field: str, recorded: float, here: float, where: dict[str, int]) -> None:
        digits = _digits(relative)
        if self.allowed is None or digits < self.allowed.digits:
            raise Different(field, recorded=recorded, here=here, digits=digits, **where)
        self.worst = max(self.worst, relative, 1e-17)  # zeros of opposite sign count as this far apart


@contextmanager
def reading(field: str) -> Iterator[None]:
    """Turn any error in reading files, which may have been edited, into a difference in that field."""
    try:
        yield
    except SomaError as error:
        raise Different(field, reason=str(error)) from None
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise Different(field, reason=f"{type(error).__name__}: {error}") from None


def _digits(relative: float) -> int:
    """Convert a relative difference to the number of decimal digits that agree."""
    if not math.isfinite(relative):
        return 0
    return 17 if relative == 0 else max(0, math.floor(-math.log10(relative)))
