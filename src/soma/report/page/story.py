"""What a campaign found, in words: the text of docs/results.template.md, with its numbers as links to their cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from soma.errors import SomaError
from soma.report.page.products import place
from soma.report.pages import checked, numbered

Target = Callable[[str, Any], str]
"""Return the place in the page of a number, given its name and value."""
_PRODUCT = re.compile(r"\]\((?:\.\./)?results/[^/]+/(?P<kind>table|figure)s/(?P<name>[a-z0-9-]+)\.\w+\)")


def sections(template: str, metrics: Mapping[str, Any], target: Target) -> dict[str, str]:
    """Return the text below every heading of the template, as Markdown.

    A paragraph that the campaign's rows no longer support is left out, and a sentence in its place says so.
    """
    out = {"": ""}
    heading = ""
    for paragraph in template.split("\n\n"):
        if paragraph.startswith("#"):
            heading = paragraph.lstrip("#").strip()
            out[heading] = ""
        else:
            out[heading] += _paragraph(paragraph, metrics, target) + "\n\n"
    return out


def _paragraph(paragraph: str, metrics: Mapping[str, Any], target: Target) -> str:
    try:
        text = numbered(checked(paragraph, metrics), metrics, target)
    except SomaError as error:
        return f"*A paragraph is left out here, because it is not true of these results: {error}*"
    return _PRODUCT.sub(lambda match: f"](#{place(match['kind'], match['name'])})", text)
