"""Snakemake's own report, mended: `python -m soma.workflow.report results/small/report.html`.

The page that it opens with cannot be scrolled to its top (Snakemake issue 2782: it centres what is larger than the
window), its search knows files alone, and its menu is in alphabetical order, so that entries begin with their place.
The text that is replaced is that of the version of Snakemake that pyproject.toml pins.
"""

from __future__ import annotations

import sys
from pathlib import Path

from soma.errors import SomaError
from soma.files.atomic import write_bytes

_STYLE = """
#app .h-screen.items-center { align-items: flex-start; justify-content: flex-start; }
#app .h-screen.items-center > * { margin: auto; }
@media (max-width: 700px) {
  #app .h-screen.items-center > .flex { flex-wrap: wrap; padding-top: 2rem; }
  #app .prose { max-width: calc(100vw - 1.5rem); }
}
"""
_MENDS = (
    # Centre only what is smaller than the window.
    ("</style>\n\n</head>", f"</style>\n<style>{_STYLE}</style>\n\n</head>"),
    # A phone has no room for the menu beside the page.
    ("this.state = { hideNavbar: false,", "this.state = { hideNavbar: innerWidth < 700,"),
    # Look for a word in the titles too, whatever its case.
    ("return text.includes(term);", "return text.toLowerCase().includes(term.toLowerCase());"),
    (
        "if (searchFunc(path)) {",
        "if (searchFunc(path) || Object.values(result.labels || {}).some(searchFunc)) {",
    ),
    # Show titles without their place.
    ("const value = result.labels[label];", 'const value = result.labels[label].replace(/^\\d\\d /, "");'),
    (
        "\n                            labelValue\n",
        '\n                            labelValue.replace(/^\\d\\d /, "")\n',
    ),
)


def mend(path: Path) -> None:
    """Mend a report in place.

    Raises:
        SomaError: if it is not as the pinned version of Snakemake writes it; it stays as it was.
    """
    page = path.read_text(encoding="utf-8")
    for old, new in _MENDS:
        if page.count(old) != 1:
            raise SomaError(
                f"{path} is not as the pinned version of Snakemake writes it: `{old.strip()}` occurs "
                f"{page.count(old)} times, not once. It stays as it was."
            )
        page = page.replace(old, new)
    write_bytes(path, page.encode())


if __name__ == "__main__":
    mend(Path(sys.argv[1]))
