"""What Snakemake prints of a run: events fed to the handler, and short real runs with a terminal and without."""

import io
import logging
import os
import pty
import subprocess
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_soma import LogHandler
from soma.workflow.progress.tally import Tally, duration
from tests import short_campaign
from tests.project import planned_jobs

START = 1000.0


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Run:
    """A handler, the stream that it prints to, and a clock."""

    def __init__(self, monkeypatch, stream=None, **settings):
        self.stream, self.now = stream or io.StringIO(), START
        monkeypatch.setattr("sys.stderr", self.stream)
        monkeypatch.setattr("sys.stdout", self.stream)
        plain = {"nocolor": False, "dryrun": False, "stdout": False, "quiet": None, "printshellcmds": False}
        plain |= {"verbose": False, "debug_dag": False, "show_failed_logs": True}
        self.handler = LogHandler(SimpleNamespace(**(plain | settings)), None)

    def tell(self, event=None, message="", level=logging.INFO, **fields):
        record = logging.LogRecord("snakemake", level, "x.py", 1, message, (), None)
        record.created = self.now
        vars(record).update(fields, **({"event": event} if event else {}))
        self.handler.emit(record)

    def start(self, job, rule, reason="Missing output files: a", **wildcards):
        self.tell(LogEvent.JOB_INFO, jobid=job, rule_name=rule, reason=reason, wildcards=wildcards)

    def finish(self, job, seconds):
        self.now += seconds
        self.tell(LogEvent.JOB_FINISHED, job_id=job)

    def fail(self, job, rule, log):
        error = (
            "RuleException:\nCalledProcessError in file x.smk, line 1:\nCommand 'soma' returned non-zero exit status 7."
        )
        self.tell(LogEvent.ERROR, error, logging.ERROR, exception="RuleException")
        self.tell(LogEvent.JOB_ERROR, "Error", logging.ERROR, jobid=job, rule_name=rule, rule_msg=None, log=[str(log)])

    def end(self):
        self.handler.close()
        return self.stream.getvalue()


def test_a_rule_is_a_line_and_the_run_one_per_minute(monkeypatch):
    run = Run(monkeypatch)
    run.tell(message="Building DAG of jobs...")
    run.tell(LogEvent.RUN_INFO, stats={"train": 3, "table": 1, "total": 4})
    run.start(1, "train", run="a")
    run.finish(1, 50)
    run.start(2, "train", run="b")
    run.finish(2, 50)
    run.start(3, "train", run="c")
    run.finish(3, 50)
    run.start(4, "table")
    run.finish(4, 50)
    run.tell(message="Elapsed time: 0:03:20")
    assert run.end().splitlines() == [
        "4 jobs of 2 rules",
        "2 of 4 jobs, 1 min 40 s elapsed, at least 50 s left; running: none",
        f"{'train':24}    3 jobs, 2 min 30 s",
        f"{'table':24}     1 job, 50 s",
        "4 jobs done in 3 min 20 s",
        "where the jobs' time went: train 2 min 30 s (75%), table 50 s (25%)",
    ]


def test_an_error_is_the_jobs_own_last_words_once(monkeypatch, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {i}\n" for i in range(50)))
    run = Run(monkeypatch)
    run.tell(LogEvent.RUN_INFO, stats={"train": 2, "total": 2})
    run.start(1, "train", run="a")
    run.fail(1, "train", log)
    run.fail(1, "train", log)
    run.tell(message="Exiting because a job execution failed. Look above for error messages", level=logging.ERROR)
    assert run.end().splitlines() == [
        "2 jobs of 1 rules",
        "failed: train (run=a), exit status 7",
        *(f"  line {i}" for i in range(30, 50)),
        f"  (the end of {log})",
    ]


def test_a_job_without_a_message_and_one_that_was_started_again(monkeypatch, tmp_path):
    run = Run(monkeypatch)
    run.tell(LogEvent.RUN_INFO, stats={"train": 1, "total": 1})
    for _ in range(2):
        run.start(1, "train")
        run.fail(1, "train", tmp_path / "none.log")
    assert run.end().count("failed: train, exit status 7\n  it wrote no message\n") == 2


def test_what_is_new_is_said(monkeypatch):
    run = Run(monkeypatch)
    run.tell(message="Nothing to be done (all requested files are present and up to date).")
    run.tell(LogEvent.ERROR, "WorkflowError:\nno such key", logging.ERROR, exception="WorkflowError")
    assert run.end() == (
        "Nothing to be done (all requested files are present and up to date).\nWorkflowError:\nno such key\n"
    )


def test_a_plan_is_one_line_per_rule_with_its_reasons(monkeypatch):
    run = Run(monkeypatch, dryrun=True, stdout=True)
    run.tell(LogEvent.WORKFLOW_STARTED, configfiles=[os.path.abspath("config/toy.yaml")])
    run.tell(LogEvent.RUN_INFO, stats={"train": 3, "table": 1, "total": 4})
    run.start(1, "train", "Code has changed since last execution; Missing output files: x")
    run.start(2, "train", "Missing output files: a, b, c; Input files updated by another job: d")
    run.start(3, "train", "Missing output files: e")
    run.start(4, "table", "Input files updated by another job: f")
    run.tell(message="This was a dry-run (flag -n).")
    assert run.end().splitlines() == [
        "rule    jobs  why",
        "train      3  missing output files (2); Code has changed since last execution (1)",
        "table      1  input files updated by another job",
        "total      4",
        "Operations, device-hours and disk: soma plan --configfile config/toy.yaml; the jobs' commands: add -p",
    ]


def test_a_terminal_shows_bars_the_total_and_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    run = Run(monkeypatch, Terminal())
    monkeypatch.setattr("time.time", lambda: run.now)
    run.tell(LogEvent.RUN_INFO, stats={"train": 3, "total": 3})
    run.start(1, "train")
    run.start(2, "train")
    run.finish(1, 60)
    run.handler._out._live.refresh()
    said = run.end()
    assert "1/3" in said
    assert "1 running" in said
    assert "1 of 3 jobs, 1 min elapsed, about 30 s left" in said


def test_the_time_left_follows_the_jobs_that_run_together():
    tally = Tally({"a": 4, "b": 1}, 0.0)
    assert tally.left(1.0) is None
    for job in (1, 2):
        tally.start(job, "a", 0.0)
    tally.finish(1, 10.0)
    tally.finish(2, 10.0)
    assert tally.left(10.0) == (10.0, False)  # two of 10 s, two at a time; nothing is known of b
    tally.start(3, "b", 10.0)
    tally.fail(3)
    tally.start(3, "b", 10.0)
    tally.finish(3, 14.0)
    assert tally.left(14.0) == pytest.approx((20 / (24 / 14), True))
    assert tally.shares(1) == [("a", 20.0, pytest.approx(20 / 24)), ("others", 4.0, pytest.approx(4 / 24))]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (185, "3 min 5 s"), (3600, "1 h"), (3605, "1 h"), (97200, "1 d 3 h")],
)
def test_durations_have_two_units(seconds, text):
    assert duration(seconds) == text


TARGET = "results/calm/corpus/train/manifest.json"


def test_a_run_with_a_terminal_and_without(project):
    arm = {"method": "spsa"}
    overlay = short_campaign.checkout(project, "calm", {}, {"soma-n2": arm, "spsa-n1-p8": arm})
    words = [*project.command("snakemake", TARGET, "--cores", "1"), "--configfile", overlay]
    plain = project.snakemake(TARGET, config=overlay, cores=1).stderr
    assert "\x1b" not in plain
    assert "2 jobs done in " in plain
    assert "Reason" not in plain
    assert "Nothing to be done" in project.snakemake(TARGET, "-n", config=overlay, cores=1).stdout

    reader, writer = pty.openpty()
    environment = project.environment | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*words[:-2], "--forceall", *words[-2:]], cwd=project.folder, env=environment, stdout=writer, stderr=writer
    )
    os.close(writer)
    said = b""
    while True:
        try:
            piece = os.read(reader, 65536)
        except OSError:  # Linux says so at the end
            break
        if not piece:
            break
        said += piece
    os.close(reader)
    assert process.wait() == 0, said
    assert b"\x1b[" in said
    assert b"2 jobs done in " in said
    assert b"Reason" not in said

    missing = project.overlay({"campaign": "calm", "data": {"train": {"source": "text", "path": "nowhere"}}})
    failed = project.snakemake(TARGET, "--forceall", config=missing, cores=1, check=False)
    assert failed.returncode == 1
    assert failed.stderr.count("failed: download (source=train), exit status 1") == 1
    assert failed.stderr.count("nowhere") == 1


OTHER = """
from snakemake_interface_logger_plugins.base import LogHandlerBase


class LogHandler(LogHandlerBase):
    writes_to_stream = True
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def emit(self, record):
        print("another logger has an event")
"""


def test_what_snakemakes_users_ask_for_is_as_they_know_it(project):
    arm = {"method": "spsa"}
    overlay = short_campaign.checkout(project, "calm", {}, {"soma-n2": arm, "spsa-n1-p8": arm})

    def said(*words):
        """What Snakemake printed, but for its first words, which come before any logger."""
        done = project.snakemake(TARGET, *words, config=overlay, cores=1)
        lines = (done.stdout + done.stderr).splitlines()
        return "\n".join(line for line in lines if not line.startswith("Using workflow specific profile"))

    commands = said("-n", "-p")
    assert commands.count("-m soma.cli download --log") == 1
    assert planned_jobs(commands) == {"download": 1, "encode": 1}
    table = said("-n", "--quiet", "rules")
    assert "Job stats:\njob" in table
    assert planned_jobs(table) == {"download": 1, "encode": 1}
    assert "Reason: Missing output files" in said("-n", "--quiet", "host")
    other = project.folder / "src/snakemake_logger_plugin_other/__init__.py"
    other.parent.mkdir()
    other.write_text(OTHER)
    assert set(said("-n", "--logger", "other").splitlines()) == {"another logger has an event"}
    assert said("--quiet", "all") == ""
    (project.folder / "results/calm/front.rst").write_text("What the report begins with.\n")
    assert "Report created." in said("--report", "calm.html")
