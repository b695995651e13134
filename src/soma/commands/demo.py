"""The command `soma demo`: one or two models in one HTML file."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from soma.commands.export import export
from soma.commands.models import shown
from soma.web.demo import demo as write_page

log = logging.getLogger("soma")


def demo(model: Sequence[str] | None, campaign: Path | None, output: Path) -> None:
    """Write the page of models' folders, or of a campaign's best model, and say how large it is."""
    if campaign is None:
        write_page(model or (), output)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            folders = [Path(scratch) / run for run in shown(campaign)]
            for folder in folders:
                export(campaign, folder.name, folder, iterate="last", k=None)
            write_page([str(folder) for folder in folders], output)
            log.info(f"models of {campaign}: {', '.join(folder.name for folder in folders)}")
    log.info(f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
