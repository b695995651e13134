"""Checks of a Slurm cluster: what the jobs ask for against what it has, and one short job on a node.

Every kind of request is put to Slurm itself (`sbatch --test-only`), in the words with which Snakemake's plugin would
submit it; `sinfo` and `sacctmgr` say what there is instead.
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from soma.config.base import read_as
from soma.config.training import Compute
from soma.errors import SomaError
from soma.preflight.checks import Check
from soma.preflight.jobs import Job
from soma.preflight.node import ANSWER, QUESTION, Facts, engine_check

_PATIENCE = 30.0
"""Seconds to wait for a command, and for a file that a node wrote on a network file system."""
_MINUTES = 10
"""Time limit of the short job."""
_UNSEEN = 83
"""Exit status of the short job on a node that does not see the folder."""
_NOT_YET = ("Resources", "Priority", "None", "BeginTime", "Dependency")
"""Reasons for which a job only waits its turn."""


@dataclass(frozen=True)
class Node:
    cores: int
    megabytes: int
    gpus: int


@dataclass(frozen=True)
class Partition:
    default: bool
    up: bool
    minutes: float
    """Longest time limit."""
    nodes: tuple[Node, ...]
    """Those that are not down or drained."""


@dataclass(frozen=True)
class Request:
    """What jobs of a rule ask for, the most of each."""

    rule: str
    jobs: int
    words: tuple[str, ...]
    """Options of sbatch, without the memory."""
    partition: str | None
    account: str | None
    minutes: int
    megabytes: int
    cores: int
    """Cores and GPUs of each node."""
    gpus: int

    @property
    def options(self) -> list[str]:
        return [*self.words, *(["--mem", str(self.megabytes)] if self.megabytes else [])]


def requests_of(jobs: Sequence[Job]) -> list[Request]:
    """Return the different requests of jobs, in the words of Snakemake's plugin.

    Raises:
        ModuleNotFoundError: if the plugin, the extra `cluster`, is not installed.
    """
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    kinds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        account, partition = (str(job.resources.get(f"slurm_{what}") or "") for what in ("account", "partition"))
        words = {"run_uuid": "preflight", "slurm_logfile": "/dev/null", "comment_str": job.rule, "workdir": None}
        words |= {"account": f"-A {shlex.quote(account)}" if account else ""}
        words |= {"partition": f"-p {shlex.quote(partition)}" if partition else ""}
        call = get_submit_command(SimpleNamespace(threads=job.threads, resources=job.resources), words)
        options = shlex.split(call + set_gres_string(job))[1:]
        options = [word for word in options if not word.startswith(("--parsable", "--signal"))]
        if "--mem" in options:
            at = options.index("--mem")
            del options[at : at + 2]
        kinds.setdefault(tuple(options), []).append(job)
    return [
        Request(
            same[0].rule,
            len(same),
            words,
            same[0].resources.get("slurm_partition"),
            same[0].resources.get("slurm_account"),
            same[0].number("runtime"),
            max(job.number("mem_mb") for job in same),
            same[0].threads // (same[0].number("nodes") or 1),
            same[0].gpus // (same[0].number("nodes") or 1),
        )
        for words, same in kinds.items()
    ]


def partitions() -> dict[str, Partition]:
    """Return the partitions of the cluster by name.

    Raises:
        SomaError: if Slurm does not answer.
    """
    return read_partitions(_output("sinfo", "--noheader", "--Node", "--format=%P|%a|%l|%T|%c|%m|%G"))


def gpus_in_reach(requests: Sequence[Request], known: Mapping[str, Partition]) -> int:
    """Count the GPUs of the partitions that requests with GPUs go to."""
    names = {_partition(request, known) for request in requests if request.gpus}
    return sum(node.gpus for name, partition in known.items() if name in names for node in partition.nodes)


def check_requests(requests: Sequence[Request], known: Mapping[str, Partition], at_once: int) -> list[Check]:
    """Check partitions, accounts, time limits and nodes; the first that is wrong with each is named."""
    problems: dict[str, str] = {}
    for request in requests:
        for name, sentence in _problems(request, known):
            problems.setdefault(name, sentence)
    names = dict.fromkeys(_partition(request, known) for request in requests)
    used = {name: known[name] for name in names if name in known}
    nodes = [node for partition in used.values() for node in partition.nodes]
    gpus = sum(node.gpus for node in nodes)
    longest, cores, megabytes, most = (
        max(getattr(request, what) for request in requests) for what in ("minutes", "cores", "megabytes", "gpus")
    )
    limits = ", ".join(f"{name} {_hours(partition.minutes)}" for name, partition in used.items())
    fine = {
        "partition": f"{', '.join(used)}: {len(nodes)} node(s) that work, with {gpus} GPU(s).",
        "time limit": f"jobs ask for at most {_hours(longest)}; limits: {limits}.",
        "nodes": f"there are some for jobs of {cores} core(s), of {megabytes / 1e3:.3g} GB, of {most} GPU(s).",
    }
    checks = {
        name: Check(name, "failed", problems[name]) if name in problems else Check(name, "ok", sentence)
        for name, sentence in fine.items()
    }
    refused = problems.get("account")
    account = Check("account", "failed", refused) if refused else _account(requests, at_once)
    return [checks["partition"], account, checks["time limit"], checks["nodes"]]


def read_partitions(text: str) -> dict[str, Partition]:
    """Read what sinfo says: a line for each node and partition, with %P|%a|%l|%T|%c|%m|%G."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) != 7:
            continue
        name, (up, limit, state, cores, megabytes, gres) = words[0].rstrip("*"), words[1:]
        known = partitions.get(name) or Partition(words[0].endswith("*"), up == "up", minutes_of(limit), ())
        gone = state.endswith("*") or re.match("down|drain|fail|unknown|maint|future", state) is not None
        own = Node(_least(cores), _least(megabytes), gpus_of(gres))
        partitions[name] = Partition(known.default, known.up, known.minutes, known.nodes + (own,) * (not gone))
    return partitions


def _least(size: str) -> int:
    """Read a size of sinfo, which is the least of several as `4000+`."""
    return int(re.sub(r"\D", "", size) or 0)


def minutes_of(limit: str) -> float:
    """Read a time limit of Slurm: days-hours:minutes:seconds, of which the first parts may be missing."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit):
        return float("inf")  # infinite, n/a
    days, _, rest = limit.rpartition("-")
    hours, minutes, seconds = ([0, 0, 0] + [int(part) for part in rest.split(":")])[-3:]
    return 1440 * int(days or 0) + 60 * hours + minutes + seconds / 60


def gpus_of(gres: str) -> int:
    """Count the GPUs in the generic resources of a node, such as `gpu:h100:4(S:0-1),shard:8`."""
    each = [re.fullmatch(r"gpu(?::[^:]+?)??(?::(\d+))?", one) for one in re.sub(r"\(.*?\)", "", gres).split(",")]
    return sum(int(one[1] or 1) for one in each if one)


def _partition(request: Request, known: Mapping[str, Partition]) -> str:
    """Return the partition of a request, empty if it names none and there is no default."""
    return request.partition or next((name for name, partition in known.items() if partition.default), "")


def _problems(request: Request, known: Mapping[str, Partition]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a request, if anything: the name of the check, and a sentence."""
    name = _partition(request, known)
    partition = known.get(name)
    if partition is None:
        what = f"Slurm has no partition `{name}`" if name else "Slurm has no default partition"
        yield "partition", f"{what} (but {', '.join(sorted(known)) or 'none'}); set slurm_partition in the profile."
    elif not partition.up or not partition.nodes:
        what = "is without nodes that work" if partition.up else "is down"
        yield "partition", f"the partition `{name}` {what}; use another, or ask those who run the cluster."
    elif request.minutes > partition.minutes:  # Slurm may accept such a job and never start it (EnforcePartLimits)
        yield (
            "time limit",
            f"{request.rule} asks for {_hours(request.minutes)}, but `{name}` allows {_hours(partition.minutes)}; "
            f"set its runtime to {int(partition.minutes)} at most under set-resources in the profile.",
        )
    elif (answer := _run("sbatch", "--test-only", *request.options, "--wrap=true")).returncode:
        why = _last(answer.stderr)
        if "account" in why.lower():
            who = f"the account {request.account}" if request.account else "jobs that name no account"
            yield "account", f"Slurm refuses {who} ({why}); set slurm_account in the profile."
        elif "time limit" in why.lower():
            asked = f"{_hours(request.minutes)} for {request.rule}"
            yield "time limit", f"Slurm refuses {asked} ({why}); set a smaller runtime in the profile."
        elif "node configuration" in why:
            lacking = _lacking(request, partition)
            yield "nodes", f"no node of `{name}` has {lacking} for {request.rule}; change the profile."
        else:
            yield (
                "nodes",
                f"Slurm refuses {request.rule} ({why}); it would be asked with: {shlex.join(request.options)}",
            )


def _lacking(request: Request, partition: Partition) -> str:
    """Say what no node has, or that no node has all of it."""
    wanted = {
        "GPU(s)": (request.gpus, "gpus"),
        "core(s)": (request.cores, "cores"),
        "MB": (request.megabytes, "megabytes"),
    }
    lacking = [
        f"{want} {unit} (the most is {most})"
        for unit, (want, what) in wanted.items()
        if want > (most := max(getattr(node, what) for node in partition.nodes))
    ]
    return " and ".join(lacking) or f"all of: {shlex.join(request.options)}"


def _account(requests: Sequence[Request], at_once: int) -> Check:
    """Compare the accounts of requests, and the number of jobs at once, with the user's associations."""
    accounts = sorted({request.account for request in requests if request.account})
    named = ", ".join(accounts) or "none is named, so jobs are on the cluster's default"
    filters = ["associations", f"user={getpass.getuser()}", "format=Account,MaxSubmitJobs"]
    command = ["sacctmgr", "--noheader", "--parsable2", "show", *filters]
    answer = _run(*command) if shutil.which("sacctmgr") else None
    if answer is None or answer.returncode or not answer.stdout.strip():
        return Check("account", "ok", f"{named}; Slurm accepts the jobs and keeps no accounts that can be read.")
    limits = dict(line.partition("|")[::2] for line in answer.stdout.splitlines())
    if wrong := [account for account in accounts if account not in limits]:
        known = ", ".join(sorted(limits))
        return Check(
            "account", "failed", f"you may not use {wrong[0]} (but {known}); set slurm_account in the profile."
        )
    for name in accounts or sorted(limits):
        if limits[name].isdigit() and int(limits[name]) < at_once:
            most = f"{name} may have {limits[name]} jobs in Slurm at a time"
            return Check("account", "warning", f"{most}; set jobs to that, instead of {at_once}, in the profile.")
    return Check("account", "ok", f"{named}.")


def check_node(request: Request, compute: Compute, results: Path, patience: float) -> list[Check]:
    """Run one short job with the request of training: does its node see the folder, and is its engine right?

    Args:
        results: folder in which the job leaves its answer.
        patience: seconds to wait for the job.
    """
    with _own_folder(results) as folder:
        (folder / QUESTION).write_text(folder.name)
        here, question, log = (shlex.quote(str(path)) for path in (Path.cwd(), folder / QUESTION, folder / "log"))
        node = [sys.executable, "-m", "soma.preflight.node", str(folder), compute.engine, compute.device]
        script = f"cd {here} && test -f {question} || exit {_UNSEEN}\n{shlex.join(node)} > {log} 2>&1"
        options = [word for word in request.options if word != "--exclusive"]
        answer = _run("sbatch", "--parsable", *options, f"--time={_MINUTES}", f"--wrap={script}")
        if answer.returncode:
            return [Check("short job", "failed", f"Slurm does not take it: {_last(answer.stderr)}.")]
        job = answer.stdout.split(";")[0].strip()
        try:
            state = _ended(job, patience)
        finally:
            _run("scancel", job)
        if state.get("JobState") in ("PENDING", "CONFIGURING", "RUNNING"):
            reason = state.get("Reason", "None")
            what = f"it did not end within {patience:.0f} s ({state['JobState'].lower()}, {reason})"
            wait = reason in _NOT_YET or state["JobState"] != "PENDING"
            advice = "wait longer (--wait)" if wait else "it would wait forever: change the request, or ask"
            return [Check("short job", "warning" if wait else "failed", f"{what}; {advice}.")]
        return _judged(folder, state)


@contextmanager
def _own_folder(results: Path) -> Iterator[Path]:
    """Make a folder for the questions and answers of a job, and leave nothing of it."""
    made = [path for path in (results, *results.parents) if not path.exists()]
    results.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".preflight-", dir=results, ignore_cleanup_errors=True) as folder:
            yield Path(folder).resolve()
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _ended(job: str, patience: float) -> dict[str, str]:
    """Wait until a job has ended, and return what scontrol says of it: JobState, Reason, ExitCode, NodeList."""
    until = time.monotonic() + patience
    while True:
        answer = _run("scontrol", "show", "job", "--oneliner", job)
        state = dict(word.partition("=")[::2] for word in answer.stdout.split())
        ended = state.get("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        if answer.returncode or ended or time.monotonic() > until:
            return state
        time.sleep(0.5)


def _judged(folder: Path, state: dict[str, str]) -> list[Check]:
    """Read the answer of the short job, of which Slurm says this."""
    root, node, status = Path.cwd(), state.get("NodeList", "a node"), state.get("ExitCode", "unknown")
    if status.startswith(f"{_UNSEEN}:"):
        return [
            Check("folder", "failed", f"the node {node} does not see {root}; work in a folder that all nodes share.")
        ]
    wait_until = time.monotonic() + _PATIENCE
    while not (folder / ANSWER).exists() and not (folder / "log").exists() and time.monotonic() < wait_until:
        time.sleep(0.5)
    if not (folder / ANSWER).exists():
        log = folder / "log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        why = (
            last[0] if last else f"{state.get('JobState')}, exit code {status}, and nothing that it wrote arrived here"
        )
        return [Check("short job", "failed", f"it failed on the node {node}: {why}.")]
    facts = read_as(Facts, folder / ANSWER)
    if facts.question != folder.name:
        return [
            Check("folder", "failed", f"the node {node} reads another {root}; work in a folder that all nodes share.")
        ]
    return [Check("folder", "ok", f"the node {facts.host} reads and writes {root}."), engine_check(facts)]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm."""
    try:
        return subprocess.run(
            words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE
        )
    except FileNotFoundError:
        raise SomaError(f"{words[0]} is not here; run this on a machine with the commands of Slurm.") from None
    except subprocess.TimeoutExpired:
        raise SomaError(f"{words[0]} gave no answer within {_PATIENCE:.0f} s; try again when Slurm answers.") from None


def _output(*words: str) -> str:
    """Return what a command of Slurm prints.

    Raises:
        SomaError: if it fails.
    """
    answer = _run(*words)
    if answer.returncode:
        raise SomaError(f"{words[0]} fails ({_last(answer.stderr)}); run this on a machine where it works.")
    return answer.stdout


def _last(text: str) -> str:
    """Return the last line of an error, without what Slurm puts before it."""
    line = (text.strip().splitlines() or ["no reason given"])[-1]
    return re.sub(r"^(sbatch: |error: |allocation failure: |Batch job submission failed: )+", "", line)


def _hours(minutes: float) -> str:
    return "no limit" if minutes == float("inf") else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.3g} h"
