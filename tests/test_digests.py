"""Digests of code: which edits they ignore and which they must not, and that every label of a campaign has one."""

import ast
import json
import shutil
from pathlib import Path

import pytest

from soma.catalogue import FIGURES, MEASUREMENTS, SUMMARIES, TABLES
from soma.config.campaign import load
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.plan import make_plan
from soma.workflow import meaning
from soma.workflow.code import RunCode
from soma.workflow.digests import LEFT_OUT, STEPS, Package, code
from tests.project import ROOT

TRAIN = "train/spsa/cpu"
CATALOGUE = "catalogue.py"
SPSA, ENGINE, TRITON = "estimators/spsa.py", "forward/csrc/engine.cpp", "forward/triton_kernels.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a copy of the package to edit."""
    folder = tmp_path_factory.mktemp("digests") / "soma"
    shutil.copytree(ROOT / "src/soma", folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (folder / "forward/csrc/flags.json").write_text('{"all": ["-O3"]}')
    return folder


@pytest.fixture
def changes(source):
    """Return True if an edit of a file changes the digest of a label."""
    kept: dict[Path, str] = {}

    def changed(label: str, file: str, old: str, new: str) -> bool:
        before = Package(source).digest(label)
        path = source / file
        text = kept.setdefault(path, path.read_text())
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        return Package(source).digest(label) != before

    yield changed
    for path, text in kept.items():
        path.write_text(text)


CENTRAL = "return _over_experts(losses[..., 0] - losses[..., 1], loss) / (2 * np.array(eps)[:, None])"
TURN = "def turn("


@pytest.mark.parametrize(
    ("label", "file", "old", "new"),
    [
        (TRAIN, SPSA, "    return Estimate(", "    # a comment\n    return Estimate("),
        (TRAIN, SPSA, "[L+ - L-] / (2 eps) for", "Central differences for"),
        (TRAIN, SPSA, "(2 * np.array(eps)[:, None])", "(\n        2 * np.array(eps)[:, None]\n    )"),
        (TRAIN, SPSA, TURN, f"def unused():\n    pass\n\n\n{TURN}"),
        (TRAIN, SPSA, "experts: Experts,", "experts: 'Experts | None',"),
        (TRAIN, SPSA, "CURVATURE_ROOT: Final = 10", "CURVATURE_ROOT: int = 10"),
        (TRAIN, ENGINE, "#include <atomic>", "// a comment\n#include <atomic>  /* another */"),
        (TRAIN, "forward/csrc/simd.h", "VL = 16, ROWS = 8;", "VL=16,\n    ROWS   =   8 ;"),
        (TRAIN, "forward/csrc/flags.json", '{"all"', '{\n  "all"'),
        ("train/spsa/triton", TRITON, "sign = 1 - 2", "sign = 1  -  2"),
        (TRAIN, TRITON, "sign = 1 - 2", "sign = 1 + 2"),
        (TRAIN, "forward/torch_engine.py", "_TIME_CHUNK = 64", "_TIME_CHUNK = 32"),
        (TRAIN, "estimators/bptt.py", "def gradient(", "def other(): pass\ndef gradient("),
        (TRAIN, "training/methods/bptt.py", "return body", "return -body"),
        (TRAIN, "estimators/eggroll.py", "1", "2"),
        (TRAIN, "data/sources/package.py", "return", "return None or"),
        (TRAIN, "data/download.py", "FORMAT = 1", "FORMAT = 2"),
        (TRAIN, "training/learner.py", "LEARNERS = {", 'LEARNERS = {\n    "another": "some.where:Learner",'),
        (TRAIN, "files/hashes.py", "is missing although its manifest lists it", "is not there"),
        (TRAIN, "accounting/cost.py", "time.monotonic()", "time.perf_counter()"),
        ("train/eggroll", ENGINE, "int", "long"),
        ("download/sotu", "data/sources/fineweb.py", "return", "return None or"),
        ("encode", "data/sources/package.py", "return", "return None or"),
        ("evaluate/cpu", SPSA, CENTRAL, "return 0"),
        ("measure-active/cpu", "measurements/objective.py", "return", "return None or"),
        ("table/table4", "report/figures/gradients.py", 'xlabel("updates")', 'xlabel("steps")'),
        ("table/table4", CATALOGUE, "Table 5. Against", "Table 5. Beside"),
        ("table/table4", "analysis/gradients.py", "ALLOWED = 0.1", "ALLOWED = 0.2"),
        ("summarise/losses", "analysis/fixed_size.py", "def against_spsa", "def other(): pass\ndef against_spsa"),
        ("summarise/losses", "analysis/gradients.py", "return", "return None or"),
        (TRAIN, CATALOGUE, "Summary(", "Summary(\n        "),
    ],
)
def test_what_can_change_no_byte_does_not_count(changes, label, file, old, new):
    assert not changes(label, file, old, new)


@pytest.mark.parametrize(
    ("label", "file", "old", "new"),
    [
        (TRAIN, SPSA, "losses[..., 0] - losses[..., 1]", "losses[..., 0] + losses[..., 1]"),
        (TRAIN, SPSA, "CURVATURE_ROOT: Final = 10", "CURVATURE_ROOT: Final = 5"),
        (TRAIN, SPSA, "difference.sum(axis=0)", "difference.sum(axis=1)"),
        (TRAIN, SPSA, "@dataclass(frozen=True)", "@dataclass"),
        (TRAIN, SPSA, "side: int = 1,", "side: int = -1,"),
        (TRAIN, SPSA, "import numpy as np", "import jax.numpy as np"),
        (TRAIN, SPSA, "    loss: NDArray[np.float64]", "    loss: NDArray[np.float32]"),
        (TRAIN, "forward/cpu.py", 'name = "cpu"', 'name = "CPU"'),
        (TRAIN, "forward/csrc/simd.h", "VL = 16, ROWS = 8;", "VL = 16, ROWS = 4;"),
        (TRAIN, "forward/csrc/network.h", '#include "simd.h"', '#define F (x)\n#include "simd.h"'),
        (TRAIN, "forward/csrc/flags.json", "-O3", "-O2"),
        (TRAIN, "training/methods/spsa.py", "scheduled(s.eps)", "scheduled(s.lr)"),
        (TRAIN, "training/adam.py", "_root(corrected)", "corrected"),
        (TRAIN, "config/training.py", "gt=0, lt=1", "gt=0, le=1"),
        (TRAIN, "numerics/rng.py", "_M0", "_M0 = 1\n_M0"),
        (TRAIN, "models/spec.py", "VOCABULARY", "print()\nVOCABULARY"),
        (TRAIN, "training/__init__.py", "", "import torch\ntorch.set_num_threads(3)\n"),
        ("train/spsa/triton", TRITON, "sign = 1 - 2", "sign = 1 + 2"),
        ("train/eggroll", "estimators/eggroll.py", "return", "return None or"),
        ("download/sotu", "data/sources/package.py", "return", "return None or"),
        ("summarise-costs", "accounting/cost.py", "time.monotonic()", "time.perf_counter()"),
        ("measure-reference/cpu", "accounting/machine.py", "return", "return None or"),
        ("measure-inference/cpu+torch", "inference/csrc/infer.cpp", "#include <numeric>", ""),
        ("page", "report/page/page.css", "--good:", "--fine:"),
        ("page", "report/page/page.js", "On paper everything is open", "On paper"),
        ("page", "report/page/page.html.jinja2", "How to check a number", "How to check"),
        ("measure-inference/cpu+torch", "forward/csrc/network.h", "#include <vector>", ""),
        ("figure/figure4", "report/figures/gradients.py", 'xlabel("updates")', 'xlabel("steps")'),
        ("table/table4", CATALOGUE, "Table 4. Test loss", "Table 4. Loss"),
        ("table/claims", CATALOGUE, "With equal tuning", "Equally tuned"),
        ("table/claims", "analysis/gradients.py", "ALLOWED = 0.1", "ALLOWED = 0.2"),
        ("metrics", "analysis/tuning.py", "return [difference_of(", "return [] and [difference_of("),
        ("summary", CATALOGUE, "Table 5. Against", "Table 5. Beside"),
        ("summarise/sizes", "analysis/controls.py", '"monolith"', '"one model"'),
    ],
)
def test_what_can_change_a_byte_counts(changes, label, file, old, new):
    assert changes(label, file, old, new)


def function(source: str) -> str:
    return meaning.of_statement(ast.parse(source).body[0]).text


LOCALS = """
def f(p):
    x = g(p)
    y = [x * v for v in x]
    def h():
        nonlocal x
        x = y
    return h, x
"""


@pytest.mark.parametrize(("old", "new"), [("x", "other"), ("y", "other"), ("v", "other")])
def test_names_of_local_variables_mean_nothing(old, new):
    assert function(LOCALS) == function(LOCALS.replace(old, new))
    assert function(LOCALS) != function(LOCALS.replace("return h, x", f"return h, {new}"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x", "def f(y): return y"),  # a caller may use it as a keyword
        ("def f():\n x = 1; y = 2\n return x", "def f():\n x = 1; y = 2\n return y"),
        ("def f():\n x = 1\n return x, y", "def f():\n y = 1\n return y, y"),
        ("def f():\n global x\n x = 1", "def f():\n global y\n y = 1"),
        ("def f():\n x = 1\n return locals()", "def f():\n y = 1\n return locals()"),
        ("def f():\n x = 1\n class C: x = 2", "def f():\n y = 1\n class C: y = 2"),
        ("def f():\n import x\n return x.y", "def f():\n import z as x\n return x.y"),
        ("def f(a): return a.x", "def f(a): return a.y"),
        ("def f(): return g(x=1)", "def f(): return g(y=1)"),
        ("def f(a): return [x for x in a], x", "def f(a): return [y for y in a], y"),
        ("def f(): return None", "def f(): return 0"),
        ("def f(): return []", "def f(): return [[]]"),
        ("class C:\n x: int = 1", "class C:\n x: float = 1"),
        ("@d\ndef f(x: int): pass", "@d\ndef f(x: float): pass"),
        ("def f(x=1): pass", "def f(x=1.0): pass"),
    ],
)
def test_what_may_mean_something_stays(one, other):
    assert function(one) != function(other)


def test_what_a_function_uses_is_told_from_what_it_binds():
    found = meaning.of_statement(
        ast.parse(
            "def f(a, b=default):\n"
            "    from soma import late\n"
            "    a = mine = np.zeros(a)\n"
            "    with open(a) as mine: pass\n"
            "    def g(c=lambda w: w, *args): return w + args\n"
            "    return [inner(q) for q in q], late.x.y, lambda z: z + outer.attribute.more"
        ).body[0]
    )
    assert found.names == {"default", "np.zeros", "open", "inner", "q", "w", "outer.attribute.more"}
    assert (found.imports, found.loads) == ({"soma.late.x.y"}, {"soma.late"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a+ +b", "a++b"),
        ('"//"', '""'),
        ('"a b"', '"ab"'),
        ("'\"' /* x */ a", "'\"' a b"),
        ('R"(a // b)"', 'R"(a )"'),
        ("#define F(x) 1\n", "#define F (x) 1\n"),
        ("#define A\nint b;", "#define A int b;"),
        ("1'000 + 'a'", "1'000 + 'b'"),
        ("a >> b", "a > > b"),
    ],
)
def test_words_of_cpp_that_differ(one, other):
    assert meaning.of_cpp(one) != meaning.of_cpp(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a + b; // c\\\n d\ne", "a+b;/* c */e"),
        ("int  a\n ;", "int a;"),
        ("#define A 1  // one\nb", "#define A 1\nb"),
        ("x = 1'000;", "x = 1'000 ; // it's"),
    ],
)
def test_words_of_cpp_that_are_the_same(one, other):
    assert meaning.of_cpp(one) == meaning.of_cpp(other)


def test_the_order_of_definitions_means_nothing(source, tmp_path):
    folder = tmp_path / "soma"
    shutil.copytree(source, folder)
    path = folder / SPSA
    tree = ast.parse(path.read_text())
    tree.body.sort(key=lambda s: not isinstance(s, ast.Import | ast.ImportFrom))
    imports = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    tree.body = [*imports, *reversed(tree.body[len(imports) :])]
    path.write_text(ast.unparse(tree))
    assert Package(folder).digest(TRAIN) == Package(source).digest(TRAIN)


def test_training_reaches_its_own_method_and_engine_and_no_other():
    reached = Package(ROOT / "src/soma").reached(TRAIN)
    assert {"forward/csrc/engine.cpp", "soma.estimators.spsa.estimate", "soma.training.loop.Trainer"} <= reached.keys()
    others = ("soma.forward.t", "soma.forward.reference", "soma.data.sources", "soma.data.download", "soma.inference")
    methods = ("soma.training.methods.bptt", "soma.training.methods.eggroll", "soma.estimators.eggroll")
    products = ("soma.analysis", "soma.report", "soma.config.campaign", "soma.plan", "soma.cli", "soma.catalogue")
    assert [name for name in reached if name.startswith((*others, *methods, *products))] == []
    assert not reached.keys() & LEFT_OUT.keys()


def test_what_is_left_out_is_there():
    """A stale name would silently exclude nothing."""
    package = Package(ROOT / "src/soma")
    for full in LEFT_OUT:
        _, module, name = package.locate(full)
        assert name is None or name in module.definitions, full


@pytest.mark.parametrize("overlay", ["toy", "paper"])
def test_every_label_of_a_campaign_has_a_digest(overlay, tmp_path):
    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / f"config/{overlay}.yaml"))
    codes = RunCode(plan, tmp_path)
    found = {codes.train(run, plan.parts(run)[0]) for run in plan.runs.values()}
    found |= {codes.evaluate([run for run, _ in plan.group_runs(group).values()]) for group in plan.groups}
    found |= {codes.measure(name) for name in plan.config.catalogue.measurements}
    found |= {code(step) for step, facts in STEPS.items() if not facts.varies and not facts.lists}
    listed = {"summarise": SUMMARIES, "table": TABLES, "figure": FIGURES}
    found |= {code(f"{step}/{name}") for step, names in listed.items() for name in names}
    found |= {code(f"download/{source}") for source in ("sotu", "ovos-wiki", "text", "fineweb-edu", "wikitext")}
    labels = {label.partition(":")[0] for label in found}
    engine = "cpu" if overlay == "toy" else "triton"
    assert {f"train/spsa/{engine}", f"train/bptt/{engine}", "train/eggroll", f"evaluate/{engine}"} <= labels
    left_out = MEASUREMENTS.keys() - plan.config.catalogue.measurements.keys()
    assert {label.split("/")[0] for label in labels} == set(STEPS) - {f"measure-{name}" for name in left_out}
    assert all(code(label) in found for label in labels)  # a label is enough to compute it again


@pytest.mark.parametrize(
    "label",
    [
        "",
        "trains",
        "train",
        "train/spsa",
        "train/spsa/gpu",
        "train/eggroll/cpu",
        "encode/sotu",
        "evaluate/",
        "table",
        "table/table99",
    ],
)
def test_a_label_that_is_none_is_refused(label):
    with pytest.raises(SomaError, match="the code"):
        code(label)


def test_the_engine_is_the_one_that_a_run_recorded(tmp_path):
    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/toy.yaml"))
    run, codes = plan.runs["soma-n2-s0"], RunCode(plan, tmp_path)
    (part,) = plan.parts(run)
    trained = codes.train(run, part)
    assert repr(trained) == repr(code("train/spsa/cpu"))
    write_json(tmp_path / run.id / part / "run.json", {"engine": "torch"})
    assert codes.train(run, part) == code("train/spsa/torch")
    assert repr(trained) == repr(code("train/spsa/torch"))  # Snakemake records it when the job is done
    assert codes.evaluate([run]) == code("evaluate/torch")
    assert codes.evaluate([run, plan.runs["soma-n4-s0"]]) == code("evaluate/cpu+torch")
    assert json.loads(json.dumps(trained)) == "" + trained
