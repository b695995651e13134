"""The one kind of error that is meant for users, also for packages that an extra of this one brings."""

from __future__ import annotations


class SomaError(Exception):
    """One sentence that says what is wrong, where, and how to fix it; the command line prints it and exits with 1."""


_WORKFLOW = (
    "dvc", "filelock", "jinja2", "markdown_it", "matplotlib", "pandas", "pathspec", "pyarrow", "rich", "shtab",
    "snakemake", "snakemake_interface_logger_plugins", "yaml",
)  # fmt: skip
EXTRAS = {
    "huggingface_hub": "hub",
    "lm_eval": "harness",
    "snakemake_executor_plugin_slurm": "cluster",
    **dict.fromkeys(_WORKFLOW, "workflow"),
}
"""The extra that brings each package which a trained ensemble does not need, by the name that is imported."""


def lacks_extra(what: str, error: ImportError) -> SomaError | None:
    """Return the sentence for a failed import, as an error of `what`; None if no extra brings the package."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = EXTRAS[package]
    return SomaError(
        f"{what} needs the {extra} extra ({package} is not installed); run: pip install 'soma-repro[{extra}]'."
    )
