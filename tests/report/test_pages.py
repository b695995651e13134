import pytest

from soma.catalogue import CLAIMS
from soma.errors import SomaError
from soma.report.pages import filled, opened, pages
from soma.report.summary import BEGIN, END
from tests.project import ROOT

METRICS = {
    "test loss": {"soma-n2": 2.20449, "soma-n4": 2.1},
    "differences": {"C8": {"N=2: k=2 minus k=1": {"mean": -0.02864, "speaks": "for"}}},
    "claims": {"C1": "reproduced"},
}


def test_the_part_between_the_marks_shows_every_claim_of_the_paper_once():
    page, statuses = f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n", {claim.name: "not run" for claim in CLAIMS}
    statuses |= {"C1a": "reproduced, superseded", "C1b": "not reproduced", "C3": "inconclusive"}
    made = opened(page, statuses, "r/s")
    assert opened(made, statuses, "r/s") == made
    lines = made.split("<sub>")[1].split("<br>")
    assert len(lines) == 16
    assert lines[0].startswith("✓° ✗ <b>C1</b> ")
    assert [line.split()[0] for line in lines[2:4]] == ["?", "–"]
    assert "old" not in made
    assert "](r/s/tables/claims.md)" in made
    with pytest.raises(SomaError, match="lacks the marks"):
        opened("# Title\n", statuses, "r/s")


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
