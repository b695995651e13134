"""The command `soma demo`: one or two models in one HTML file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from soma.web.demo import demo as write_page

log = logging.getLogger("soma")


def demo(model: Sequence[str], output: Path) -> None:
    """Write the page and say how large it is."""
    write_page(model, output)
    log.info(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
