import pytest

from soma.errors import SomaError
from soma.report.pages import filled, opened, pages
from soma.report.summary import BEGIN, END
from tests.project import ROOT

METRICS = {
    "test loss": {"soma-n2": 2.20449, "soma-n4": 2.1},
    "differences": {"C8": {"N=2: k=2 minus k=1": {"mean": -0.02864, "speaks": "for"}}},
    "claims": {"C1": "reproduced"},
}


def test_the_part_between_the_marks_is_replaced_and_its_links_lead_from_the_page():
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    campaign = f"# Campaign\n\n{BEGIN}\nnew [claims](tables/claims.md) [paper](https://x.org)\n{END}\nrule\n"
    expected = f"# Title\n\n{BEGIN}\nnew [claims](r/s/tables/claims.md) [paper](https://x.org)\n{END}\n\nafter\n"
    assert opened(page, campaign, "r/s") == expected
    assert opened(expected, campaign, "r/s") == expected
    with pytest.raises(SomaError, match="lacks the marks"):
        opened("# Title\n", campaign, "r/s")


def test_numbers_become_links_to_their_tables():
    text = "<!-- method -->\nfrom {{test loss/soma-n2}} by {{differences/C8/N=2: k=2 minus k=1/mean:+.4f}}."
    expected = "from [2.204](../r/tables/table4.md) by [−0.0286](../r/tables/claims.md)."
    assert filled(text, METRICS, "../r") == expected
    with pytest.raises(SomaError, match="has no `test loss/soma-n3`"):
        filled("<!-- method -->\n{{test loss/soma-n3}}", METRICS, "../r")


@pytest.mark.parametrize(
    "holds",
    [
        "test loss/soma-n2 < 2.21",
        "test loss/soma-n2 > test loss/soma-n4",
        "test loss/soma-n2 = 2.20449; claims/C1 = reproduced",
        "differences/C8/N=2: k=2 minus k=1/mean < 0;\ndifferences/C8/N=2: k=2 minus k=1/speaks = for",
    ],
)
def test_a_sentence_that_holds_is_printed_without_what_it_rests_on(holds):
    assert filled(f"# Title\n\n<!-- holds: {holds} -->\nIt is so.\n", METRICS, "r") == "# Title\n\nIt is so.\n"


@pytest.mark.parametrize(
    "fails",
    [
        "test loss/soma-n2 < 2.2",
        "test loss/soma-n2 < test loss/soma-n4",
        "test loss/soma-n2 = 2.2",
        "claims/C1 = inconclusive",
        "test loss/soma-n2 > 2; claims/C1 = not run",
    ],
)
def test_a_page_that_would_say_something_false_is_not_written(fails):
    with pytest.raises(SomaError, match=r"is not so any more; rewrite the paragraph that rests on it, `SOMA wins"):
        filled(f"<!-- holds: {fails} -->\nSOMA wins everywhere.", METRICS, "r")


def test_a_paragraph_must_say_what_it_rests_on():
    with pytest.raises(SomaError, match=r"`SOMA wins everywhere\.…` begins with neither"):
        filled("# Title\n\nSOMA wins everywhere.", METRICS, "r")
    with pytest.raises(SomaError, match="is no comparison"):
        filled("<!-- holds: claims/C1 -->\nSOMA wins.", METRICS, "r")
    with pytest.raises(SomaError, match="has no `claims/C9`"):
        filled("<!-- holds: claims/C9 = reproduced -->\nSOMA wins.", METRICS, "r")


def test_the_pages_are_what_the_reference_campaign_makes(monkeypatch):
    """After a change of its results, or of a page: `make docs`."""
    monkeypatch.chdir(ROOT)
    assert [str(path) for path, text in pages().items() if path.read_text() != text] == []
