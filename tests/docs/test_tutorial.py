"""docs/tutorial.md runs on the reference campaign, prints what it says, and is a notebook."""

import re

import pytest
from tests.examples import blocks, module_at
from tests.project import ROOT

TUTORIAL = module_at(ROOT / "docs/tutorial.py")
NUMBER = re.compile(r"\d+\.\d+")


def test_the_tutorial_prints_what_it_says():
    """Losses may differ in their last printed digit: other instruction sets round differently."""
    made, written = TUTORIAL.page(), TUTORIAL.PAGE.read_text()
    assert NUMBER.sub("#", made) == NUMBER.sub("#", written), "run `python docs/tutorial.py`"
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (made, written)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.0011)
    assert made.count("```text") > 5
    assert "```text\n```" not in made, "a block prints nothing"
    assert "differs" not in made


def test_jupytext_reads_it_as_a_notebook():
    jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed: make docs-tools")
    cells = [cell["source"] for cell in jupytext.read(TUTORIAL.PAGE)["cells"] if cell["cell_type"] == "code"]
    code = [block.rstrip("\n") for block in blocks("tutorial.md", "python")]
    assert [cell for cell in cells if not cell.startswith("%%")] == code
    assert [cell.split("\n")[0] for cell in cells if cell.startswith("%%")] == ["%%sh"]
