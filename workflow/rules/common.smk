import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from soma.workflow import provenance
from soma.files import disk_errors as unwritable
from soma.workflow.digests import code
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.plan import EARLY, TIMED
from soma.plan import MEASUREMENTS as MEASUREMENTS_OF_RUNS
from soma.plan import make_plan, settings_files
from soma.commands.campaign import write_manifest
from soma.workflow.code import RunCode, Settings, campaign_config


@contextmanager
def told():
    """What stops the workflow itself becomes one sentence."""
    try:
        yield
    except SomaError as error:
        raise WorkflowError(str(error)) from None
    except OSError as error:
        raise WorkflowError(unwritable.sentence(error) or str(error)) from None


with told():
    CONFIG = campaign_config(Path("config/config.yaml"), config)
    PLAN = make_plan(CONFIG)
    RESULTS = f"results/{CONFIG.campaign}"
    if workflow.is_main_process:
        # Before Snakemake compares anything: results may have come with DVC, from a machine with records of its own.
        provenance.unpack(Path(RESULTS))

CORPUS, SETS, ROUTING = f"{RESULTS}/corpus", f"{RESULTS}/sets", f"{RESULTS}/routing"
SHARDS, RUNS, EVALUATION = (
    f"{RESULTS}/shards",
    f"{RESULTS}/runs",
    f"{RESULTS}/evaluation",
)
MEASUREMENTS, TABLE_DIR, FIGURE_DIR = (
    f"{RESULTS}/measurements",
    f"{RESULTS}/tables",
    f"{RESULTS}/figures",
)
LOGS, BENCHMARKS, RESUME = (
    f"{RESULTS}/logs",
    f"{RESULTS}/benchmarks",
    f"{RESULTS}/resume",
)

MEASURED = list(MEASUREMENTS_OF_RUNS)

ROLES = ["validation", "test", "external"]
SETTINGS = Settings(settings_files(PLAN), Path(RESULTS) / "settings")
CODE = RunCode(PLAN, Path(RUNS))
SOMA = f"{shlex.quote(sys.executable)} -m soma.cli"


wildcard_constraints:
    role="train|validation|test|external",
    partition="clusters|random|iid",
    n=r"\d+",
    part=r"\d+-\d+",
    run=r"[a-z0-9.-]+",
    group=r"[a-z0-9.-]+",
    name=r"[a-z0-9-]+",


def settings(name):
    """Digest of what a rule reads; a change of it is a reason to run again."""
    return SETTINGS.digest(name)


def parts_of(run):
    """Folders of a run's training jobs."""
    return [f"{RUNS}/{run.id}/{part}" for part in PLAN.parts(run)]


TRAINED = {
    name: f"{RUNS}/{{run}}/{{part}}/{file}"
    for name, file in {
        "weights": "weights.safetensors",
        "milestones": "milestones.safetensors",
        "history": "history.parquet",
        "cost": "cost.json",
        "record": "run.json",
    }.items()
}
# Runs that also publish the resume state from which their last leg can be replayed. Without any, what nothing matches:
# Snakemake takes an empty pattern for no constraint.
LEGS = "|".join(run.id for run in PLAN.runs.values() if run.leg is not None) or "(?!)"


def started_from(run, part):
    """Weights of other runs that the experts of a part start from, and of the head that they share."""
    run = PLAN.runs[run]
    folders = [*PLAN.start_folders(run, part), *filter(None, [PLAN.head_folder(run)])]
    return [f"{RUNS}/{folder}/weights.safetensors" for folder in dict.fromkeys(folders)]


def workers_of(run):
    """Processes that share a run's directions: distributed perturbations are for one expert (the paper's DDPP)."""
    return (
        CONFIG.compute.ddpp if run.experts == 1 and run.settings.method == "spsa" else 1
    )


def threads_of_measurement(name):
    """What measures time has the machine to itself."""
    return workflow.cores if name in TIMED else CONFIG.compute.threads


def write_report():
    """Snakemake's own report, one HTML file that opens offline."""
    target = Path(RESULTS) / "report.html"
    # It would be written in place, and through a link into DVC's cache if that is what the old one is.
    target.unlink(missing_ok=True)
    overlay = Path(RESULTS) / "settings" / "overlay.json"
    write_json(overlay, config)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--nolock",
        "--quiet",
        "all",
        "--cores",
        "1",
    ]
    command += ["--configfile", str(overlay), "--report", str(target)]
    if subprocess.run(command, check=False).returncode:
        print(
            f"The report was not written; see above, or run: {' '.join(command)}",
            file=sys.stderr,
        )


def finish():
    """What a run that succeeded leaves: of a whole campaign the report and the manifest, of any what travels with it."""
    with told():
        if all(Path(f).exists() for f in rules.all.input):
            write_report()
            write_manifest(Path(RESULTS))
        provenance.pack(Path(RESULTS))


def flag(name, value):
    """A command-line option, or nothing; a list becomes several words."""
    value = value if isinstance(value, str) or value is None else " ".join(value)
    return f"--{name} {value}" if value else ""
