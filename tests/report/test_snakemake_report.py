"""What is mended in Snakemake's report; tests/workflow looks at a whole one in a browser."""

import pytest

from soma.errors import SomaError
from soma.workflow.report import _MENDS, mend


def test_each_part_is_replaced_once(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("\n".join(old for old, _ in _MENDS))
    mend(path)
    assert path.read_text() == "\n".join(new for _, new in _MENDS)


def test_a_report_of_another_version_stays_as_it_was(tmp_path):
    path = tmp_path / "report.html"
    for text in ("nothing of it", "\n".join(old for old, _ in (*_MENDS, _MENDS[1]))):
        path.write_text(text)
        with pytest.raises(SomaError, match="is not as the pinned version of Snakemake writes it"):
            mend(path)
        assert path.read_text() == text
