import shlex
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from snakemake.sourcecache import LocalSourceFile

from soma import layout
from soma.accounting.schedule import nodes_of, warning_of, workers_of
from soma.accounting.size import training_megabytes
from soma.catalogue import CHOSEN, FRONT, METRICS, PAGE
from soma.cli import forks, image
from soma.config.campaign import BASE, merge, merged, resolve
from soma.errors import SomaError
from soma.files import disk_errors
from soma.files.atomic import read_json, write_bytes, write_json
from soma.plan import make_plan
from soma.training import finished
from soma.workflow import provenance
from soma.workflow.code import RunCode
from soma.workflow.contents import Contents
from soma.workflow.digests import code
from soma.workflow.manifest import write_manifest
from soma.workflow.report import mend
from soma.workflow.settings import StepSettings, settings_files


@contextmanager
def errors_as_one_sentence():
    """Show an error that stops the workflow itself as one sentence, without a trace."""
    try:
        yield
    except SomaError as error:
        raise WorkflowError(str(error)) from None
    except OSError as error:
        raise WorkflowError(disk_errors.sentence(error) or str(error)) from None


RULES = workflow.current_basedir


def own(name):
    """Return the path of a file of the workflow itself, which `--directory` does not move.

    It is relative where the workflow runs in its own place, since a file recorded by another name is a reason to run again.
    For the same reason, a file of a workflow that Snakemake reads from a repository (`--snakefile gh:…`, `git+file:…`) is
    copied below the working directory: Snakemake's own copy has another name in every run.
    """
    source = RULES.join(f"../../{name}")
    if isinstance(RULES, LocalSourceFile):
        place = Path(str(source))
        return name if place.resolve() == Path(name).resolve() else str(place)
    copy, content = (
        Path(".snakemake/soma", name),
        Path(workflow.sourcecache.get_path(source)).read_bytes(),
    )
    if not copy.exists() or copy.read_bytes() != content:
        write_bytes(copy, content)
    return str(copy)


# Whether another workflow uses this one: `module soma: snakefile: "…/Snakefile"`.
MODULE = not workflow.modifier.is_main_snakefile()
PATHS = workflow.modifier.path_modifier
# Whether every job runs in soma.sif, by `--sdm apptainer`.
IN_IMAGE = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method


def placed(path):
    """Return a path with the prefix of a module, which Snakemake puts before the files of rules but not into `params`."""
    return str(PATHS.replace_prefix(path))


with errors_as_one_sentence():
    # Snakemake merges overlays by rules of its own (a source would keep the keys of another) and overlooks a key that
    # stands twice, so its `config` is not used. In a module it is what the module was given, and all that it was given.
    RAW = merge(
        merged(
            Path(own(str(BASE))), *map(Path, [] if MODULE else workflow.configfiles)
        ),
        config if MODULE else workflow.config_settings.config,
    )
    CONFIG = resolve(RAW)
    PLAN, CATALOGUE = make_plan(CONFIG), CONFIG.catalogue
    RESULTS = f"results/{CONFIG.campaign}"
    if workflow.is_main_process:
        # Before Snakemake compares anything: results may have come with DVC, from a machine with records of its own.
        provenance.unpack(Path(placed(RESULTS)))

CORPUS, SETS, ROUTING = f"{RESULTS}/corpus", f"{RESULTS}/sets", f"{RESULTS}/routing"
SHARDS, RUNS, EVALUATION = (
    f"{RESULTS}/shards",
    f"{RESULTS}/runs",
    f"{RESULTS}/evaluation",
)
ROWS, TABLE_DIR, FIGURE_DIR = (
    f"{RESULTS}/measurements",
    f"{RESULTS}/tables",
    f"{RESULTS}/figures",
)
LOGS, BENCHMARKS, RESUME = (
    f"{RESULTS}/logs",
    f"{RESULTS}/benchmarks",
    f"{RESULTS}/resume",
)

# A folder's index names the hashes of its other files. Steps that read the folder have the index as their input, since
# Snakemake compares files by content and folders by date alone, which a copy or another clone changes.
TRAIN, FEATURES = f"{CORPUS}/train/manifest.json", f"{ROUTING}/features/features.json"
ROLES = ["validation", "test", "external"]
SETTINGS = StepSettings(settings_files(PLAN), Path(placed(RESULTS)) / "settings")
CODE = RunCode(PLAN, Path(placed(RUNS)))


@cache
def results():
    """Return the folder of the campaign for shell commands.

    A module has no `onstart`, so that its settings are written here, when the first job of a real run asks.
    """
    if MODULE and workflow.executor_plugin is not None and not workflow.dryrun:
        SETTINGS.write()
    return placed(RESULTS)


# What shell commands need of the globals: in a module they are formatted with those of the other workflow. As functions
# of `output`, these parameters are no reason to run again: Snakemake does not record them.
CALL = {
    "soma": lambda wc, output: (
        image.command() if IN_IMAGE else f"{shlex.quote(sys.executable)} -m soma.cli"
    ),
    "results": lambda wc, output: results(),
    "threads": lambda wc, output: CONFIG.compute.threads,
}


scattergather:
    windows=CONFIG.compute.parts,


# Jobs that divide the training windows have one file each; one job alone has the name of the whole.
PART = "-{scatteritem}" if CONFIG.compute.parts > 1 else ""


def by_part(pattern, **wildcards):
    """Return the files of all jobs that each treat a part of the windows."""
    gathered = gather.windows if PART else expand
    return gathered(pattern, **wildcards)


VECTORS = by_part(f"{ROUTING}/vectors{PART}.npy")


wildcard_constraints:
    role="train|validation|test|external",
    partition="clusters|random|iid",
    n=r"\d+",
    part=r"\d+-\d+",
    run=r"[a-z0-9.-]+",
    group=r"[a-z0-9.-]+",
    name=r"[a-z0-9-]+",


def settings(name):
    """Return the digest of the settings that a step reads; a change of it is a reason to run again."""
    return SETTINGS.digest(name)


def files_of(reads):
    """Return the files that a function of the catalogue reads."""
    return [f"{RESULTS}/{file}" for file in layout.files(reads, PLAN)]


def files_in(folder, *names):
    return [f"{folder}/{name}" for name in names]


def folder_of(file):
    return str(Path(file).parent)


def shards_of(runs):
    """Return the indices of the shards that runs train on."""
    return sorted({f"{SHARDS}/{run.shards}/shards.json" for run in runs})


def parts_of(run):
    """Return the folders of a run's training jobs."""
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
# Runs that also publish the resume state from which their last leg can be replayed. If there are none, a pattern that
# matches nothing: Snakemake would read an empty one as no constraint.
LEGS = "|".join(run.id for run in PLAN.runs.values() if run.leg is not None) or "(?!)"


def started_from(run, part):
    """Return the weights of other runs that the experts of a part start from, and of the head that they share."""
    run = PLAN.runs[run]
    folders = [*PLAN.start_folders(run, part), *filter(None, [PLAN.head_folder(run)])]
    return [f"{RUNS}/{folder}/weights.safetensors" for folder in dict.fromkeys(folders)]


def planned(wildcards, what):
    """Return what a training job asks for, by a function of soma.accounting.schedule."""
    return what(PLAN.runs[wildcards.run], wildcards.part, CONFIG.compute)


def megabytes_of(wildcards):
    """Return the memory that a training job needs on each of its nodes."""
    run, part = PLAN.runs[wildcards.run], wildcards.part
    of_each = planned(wildcards, workers_of) // planned(wildcards, nodes_of)
    return training_megabytes(run, part, CONFIG.compute.device) * of_each


def slurm_options(wildcards):
    """Return options of sbatch: the warning before the time limit, and GPUs that are equally many on every node."""
    signal = f"--signal=TERM@{planned(wildcards, warning_of)}"
    nodes, workers = planned(wildcards, nodes_of), planned(wildcards, workers_of)
    if nodes == 1 or CONFIG.compute.device == "cpu":
        return signal
    return f"{signal} --gpus-per-node={workers // nodes}"


def threads_of_measurement(name):
    """Give the whole machine to a measurement of times."""
    return (
        workflow.cores if CATALOGUE.measurements[name].timed else CONFIG.compute.threads
    )


def write_report():
    """Write Snakemake's own report, one HTML file that opens offline."""
    target = Path(RESULTS) / "report.html"
    # Snakemake would write in place, and so through a link into DVC's cache if the old report is one.
    target.unlink(missing_ok=True)
    overlay = Path(RESULTS) / "settings" / "overlay.json"
    write_json(overlay, RAW)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--nolock",
        "--cores",
        "1",
        "--snakefile",
        workflow.main_snakefile,
    ]
    command += ["--configfile", str(overlay), "--report", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        mend(target)
    else:
        logger.error(
            f"{done.stderr}The report was not written; see above, or run: {' '.join(command)}"
        )


def finish():
    """Write the records of a run that succeeded and, if the campaign is complete, its report and manifest.

    Then say what became of the claims, and which page to open.
    """
    folder = Path(placed(RESULTS))
    with errors_as_one_sentence():
        contents = Contents(folder)
        complete = all(Path(f).exists() for f in rules.all.input)
        if complete:
            if not MODULE:  # Snakemake's report is of the whole workflow
                write_report()
            write_manifest(folder, contents)
        provenance.pack(folder, contents)
        known = provenance.records(folder)
        finished.forget(
            Path(placed(RESUME)), lambda record: placed(f"{RUNS}/{record}") in known
        )
        if complete:
            logger.info(
                f"claims: {read_json(folder / 'numbers.json')['counts']['text']}"
            )
            logger.info(f"read: {folder / 'index.html'}")


def flag(name, value):
    """Return a command-line option, or nothing for None; a list becomes several words."""
    value = value if isinstance(value, str) or value is None else " ".join(value)
    return f"--{name} {value}" if value else ""
