import pytest

from soma.errors import SomaError
from soma.report.pages import filled, opened, pages
from soma.report.summary import BEGIN, END
from tests.project import ROOT

METRICS = {"test loss": {"soma-n2": 2.20449}, "differences": {"C8": {"N=2: k=2 minus k=1": {"mean": -0.02864}}}}


def test_the_part_between_the_marks_is_replaced_and_its_links_lead_from_the_page():
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    campaign = f"# Campaign\n\n{BEGIN}\nnew [claims](tables/claims.md) [paper](https://x.org)\n{END}\nrule\n"
    expected = f"# Title\n\n{BEGIN}\nnew [claims](r/s/tables/claims.md) [paper](https://x.org)\n{END}\n\nafter\n"
    assert opened(page, campaign, "r/s") == expected
    assert opened(expected, campaign, "r/s") == expected
    with pytest.raises(SomaError, match="lacks the marks"):
        opened("# Title\n", campaign, "r/s")


def test_numbers_become_links_to_their_tables():
    text = "from {{test loss/soma-n2}} by {{differences/C8/N=2: k=2 minus k=1/mean:+.4f}}."
    expected = "from [2.204](../r/tables/table4.md) by [−0.0286](../r/tables/claims.md)."
    assert filled(text, METRICS, "../r") == expected
    with pytest.raises(SomaError, match="has no `test loss/soma-n3`"):
        filled("{{test loss/soma-n3}}", METRICS, "../r")


def test_the_pages_are_what_the_reference_campaign_makes(monkeypatch):
    """After a change of its results, or of a page: `make docs`."""
    monkeypatch.chdir(ROOT)
    assert [str(path) for path, text in pages().items() if path.read_text() != text] == []
