# Losses per document, measurements at checkpoints, and what is summarised from them.

PRODUCTS = CONFIG.products


def opened(runs, milestones=False):
    """Files that a step needs to open trained runs: their weights, and those of the heads they share."""
    names = ["weights", "milestones"][: 1 + milestones]
    return [
        f"{folder}/{name}.safetensors"
        for run in PLAN.files(runs)
        for folder in parts_of(run)
        for name in names
    ]


def routers_of(runs):
    """Routers that choose among the experts of runs."""
    counts = sorted({run.experts for run in runs if "clusters" in run.shards})
    return [f"{ROUTING}/features" for _ in counts[:1]] + [
        f"{ROUTING}/router-n{n}" for n in counts
    ]


def group_runs(group):
    return [run for run, _ in PLAN.group_runs(group).values()]


rule evaluate:
    input:
        windows=f"{SETS}/{{role}}.parquet",
        checkpoints=lambda wc: opened(group_runs(wc.group), milestones=True),
        routers=lambda wc: routers_of(group_runs(wc.group)),
    output:
        f"{EVALUATION}/{{role}}/{{group}}.parquet",
    log:
        f"{LOGS}/evaluate-{{role}}-{{group}}.log",
    threads: CONFIG.compute.threads
    resources:
        mem_mb=8000,
        runtime=1440,
    params:
        code=lambda wc: CODE.evaluate(group_runs(wc.group)),
        settings=lambda wc: settings(f"evaluate-{wc.group}"),
        file=lambda wc: SETTINGS.path(f"evaluate-{wc.group}"),
        compute=SETTINGS.path("compute"),
    message:
        "Evaluating {wildcards.group} on the {wildcards.role} set"
    shell:
        "{SOMA} evaluate --log {log} --settings {params.file} --role {wildcards.role} --windows {input.windows}"
        " --runs {RUNS} --routing {ROUTING} --compute {params.compute} --threads {threads} --output {output}"


rule measure:
    input:
        train=f"{CORPUS}/train",
        validation=f"{SETS}/validation.parquet",
        checkpoints=lambda wc: opened(
            PLAN.measured_runs(wc.measured), milestones=wc.measured in EARLY
        ),
        shards=lambda wc: sorted(
            {f"{SHARDS}/{run.shards}" for run in PLAN.measured_runs(wc.measured)}
        ),
        routers=lambda wc: routers_of(PLAN.measured_runs(wc.measured)),
    output:
        f"{MEASUREMENTS}/{{measured}}.parquet",
    log:
        f"{LOGS}/measure-{{measured}}.log",
    wildcard_constraints:
        measured="|".join(MEASURED),
    threads: lambda wc: threads_of_measurement(wc.measured)
    resources:
        mem_mb=16000,
        runtime=1440,
    params:
        code=lambda wc: CODE.measure(wc.measured),
        settings=lambda wc: settings(f"measure-{wc.measured}"),
        file=lambda wc: SETTINGS.path(f"measure-{wc.measured}"),
        compute=SETTINGS.path("compute"),
    message:
        "Measuring: {wildcards.measured}"
    shell:
        "{SOMA} measure --log {log} --name {wildcards.measured} --settings {params.file} --results {RESULTS}"
        " --compute {params.compute} --threads {CONFIG.compute.threads} --output {output}"


def evaluated(role, arms):
    """Per-document losses of arms."""
    groups = dict.fromkeys(PLAN.group_of[arm] for arm in arms)
    return [f"{EVALUATION}/{role}/{group}.parquet" for group in groups]


FIXED_SIZE = [
    file for role in ROLES for file in evaluated(role, PRODUCTS.fixed_size.arms)
]
CONTROLS = evaluated("test", (*PRODUCTS.fixed_size.arms, *PRODUCTS.controls.arms))
COSTS = f"{MEASUREMENTS}/costs.parquet"
SUMMARISED = {
    "losses": FIXED_SIZE,
    "differences": FIXED_SIZE,
    "controls": [*CONTROLS, COSTS],
    "sizes": CONTROLS,
    "backpropagation": evaluated("validation", PRODUCTS.backpropagation.arms),
    "tuning": evaluated("validation", PLAN.groups["tuning"]),
    "populations": evaluated("validation", PLAN.groups["populations"]),
    "paired": [
        *evaluated("test", PRODUCTS.paired.arms),
        *[
            f"{folder}/history.parquet"
            for arm in PRODUCTS.paired.arms
            for run in PLAN.arm_runs[arm]
            for folder in parts_of(run)
        ],
    ],
    "allocation": evaluated("test", PRODUCTS.allocation.arms),
    "active-losses": [f"{MEASUREMENTS}/active.parquet"],
    "active-differences": [f"{MEASUREMENTS}/active.parquet"],
    "serving": evaluated("test", PRODUCTS.inference.arms),
    "tuning-compared": [
        f"{MEASUREMENTS}/tuning.parquet",
        f"{MEASUREMENTS}/tuning-test.parquet",
    ],
    "ablation": evaluated("test", PRODUCTS.ablation.arms),
    "sweep": [*evaluated("validation", PLAN.groups["sweep"]), COSTS],
    "crossings": [f"{MEASUREMENTS}/sweep.parquet"],
    "sweep-differences": evaluated("validation", PLAN.groups["sweep"]),
    "budgets": evaluated("validation", PLAN.groups["sweep"]),
    "best-counts": evaluated("validation", PLAN.groups["sweep"]),
    "estimators": [
        *evaluated("test", PRODUCTS.estimators.arms),
        f"{MEASUREMENTS}/estimator-variance.parquet",
    ],
}


rule summarise:
    input:
        lambda wc: SUMMARISED[wc.summary],
    output:
        f"{MEASUREMENTS}/{{summary}}.parquet",
    log:
        f"{LOGS}/summarise-{{summary}}.log",
    wildcard_constraints:
        summary="|".join(SUMMARISED),
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        code=code("summarise"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Summarising: {wildcards.summary}"
    shell:
        "{SOMA} summarise --log {log} --name {wildcards.summary} --settings {params.file} --evaluation {EVALUATION}"
        " --measurements {MEASUREMENTS} --runs {RUNS} --output {output}"


# What was chosen is a file of its own, so that nothing but the search is a reason to open the test set again.
rule choose:
    input:
        f"{EVALUATION}/validation/tuning.parquet",
    output:
        f"{MEASUREMENTS}/chosen.json",
    log:
        f"{LOGS}/choose.log",
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        code=code("choose"),
        settings=settings("choose"),
        file=SETTINGS.path("choose"),
    message:
        "Choosing the best setting of the search"
    shell:
        "{SOMA} choose --log {log} --settings {params.file} --validation {input} --output {output}"


rule evaluate_chosen:
    input:
        chosen=f"{MEASUREMENTS}/chosen.json",
        windows=f"{SETS}/test.parquet",
        checkpoints=opened(group_runs("tuning"), milestones=True),
        routers=routers_of(group_runs("tuning")),
    output:
        f"{MEASUREMENTS}/tuning-test.parquet",
    log:
        f"{LOGS}/evaluate-chosen.log",
    threads: CONFIG.compute.threads
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        code=lambda wc: CODE.evaluate(group_runs("tuning")),
        compute=SETTINGS.path("compute"),
    message:
        "Evaluating the chosen settings on test, once"
    shell:
        "{SOMA} evaluate --log {log} --settings {input.chosen} --role test --windows {input.windows}"
        " --runs {RUNS} --routing {ROUTING} --compute {params.compute} --threads {threads} --output {output}"


rule summarise_costs:
    input:
        costs=[
            f"{folder}/cost.json"
            for run in PLAN.runs.values()
            for folder in parts_of(run)
        ],
        benchmarks=[
            f"{BENCHMARKS}/{name}.tsv"
            for name in [
                "download-train",
                "encode-train",
                "features",
                "vectors",
                *[
                    f"{rule}-n{n}"
                    for rule in ("router", "assign", "shard-clusters")
                    for n in PLAN.expert_counts
                ],
            ]
        ],
    output:
        COSTS,
    log:
        f"{LOGS}/summarise-costs.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("summarise-costs"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Adding up the six cost quantities"
    shell:
        "{SOMA} summarise-costs --log {log} --settings {params.file} --runs {RUNS} --benchmarks {input.benchmarks}"
        " --output {output}"
