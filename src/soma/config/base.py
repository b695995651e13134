"""Behaviour of all settings: unknown keys and infinities are errors, and nothing changes after validation."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from soma.errors import SomaError
from soma.files.atomic import read_json


def _different(values: tuple[int, ...]) -> tuple[int, ...]:
    """Refuse a repeated seed: its runs would be the same run, and their spread none."""
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise ValueError(f"the seed {repeated[0]} is given twice; each seed is one run")
    return values


def _one_line(text: str) -> str:
    """Refuse text that no line of a table or figure, and no path, can hold."""
    if any(unicodedata.category(c) in _INVISIBLE for c in text):
        raise ValueError("the text holds a line break, a control character or half of a character")
    return text


_INVISIBLE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories: control characters (NUL, tabs and line breaks among them), lone surrogates, and separators."""

Line = Annotated[str, AfterValidator(_one_line)]
Positive = Annotated[int, Field(ge=1)]
Experts = Annotated[int, Field(ge=1, le=65_535)]  # labels of windows are uint16
Fraction = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_different)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        """Refuse truth for a number, which pydantic takes as 1."""
        for key, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(key)
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, bool) and field is not None and field.annotation is not bool:
                    raise ValueError(f"`{key}` is {str(each).lower()}, which is no number or text")
        return values


class Record(BaseModel):
    """What is read of a file that a program wrote; the rest of it is left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


T = TypeVar("T")


def read_as(kind: type[T], path: Path) -> T:
    """Read a JSON file that holds a value of this type.

    Raises:
        SomaError: if it is missing or damaged, or holds anything else.
    """
    value = read_json(path)
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(word) for word in first["loc"])
        why = f"{place}: {first['msg']}" if place else first["msg"]
        raise SomaError(
            f"{path} does not hold what it should ({why}); delete it and run the rule that makes it."
        ) from None
