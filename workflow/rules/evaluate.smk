# Losses per document, then their summaries.


TUNING = CONFIG.products.tuning
PRECISION_RUN = PLAN.arm_runs[CONFIG.products.precision.arm][0]


def head_source(run):
    """The run whose frozen head a run shares, or nothing."""
    return None if PLAN.runs[run].trains_head else PLAN.runs[run].start


def routed(run):
    return "clusters" in run.shards


rule evaluate:
    input:
        windows=f"{SETS}/{{role}}.parquet",
        checkpoints=lambda wc: checkpoints_of(PLAN.runs[wc.run]),
        start=lambda wc: (
            checkpoints_of(PLAN.runs[head_source(wc.run)])
            if head_source(wc.run)
            else []
        ),
        router=lambda wc: (
            f"{ROUTING}/router-n{PLAN.runs[wc.run].experts}"
            if routed(PLAN.runs[wc.run])
            else []
        ),
        features=lambda wc: f"{ROUTING}/features" if routed(PLAN.runs[wc.run]) else [],
    output:
        f"{EVALUATION}/{{role}}/{{run}}.parquet",
    log:
        f"{LOGS}/evaluate-{{role}}-{{run}}.log",
    threads: CONFIG.compute.threads
    resources:
        mem_mb=8000,
        runtime=720,
    params:
        code=code("evaluate"),
        settings=lambda wc: settings(f"run-{wc.run}"),
        file=lambda wc: SETTINGS.path(f"run-{wc.run}"),
        active=lambda wc: PLAN.active_counts(PLAN.arm_of[wc.run]),
        parts=lambda wc: parts_of(PLAN.runs[wc.run]),
        start=lambda wc: (
            flag("start", start_folder(PLAN.runs[wc.run]))
            if head_source(wc.run)
            else ""
        ),
        router=lambda wc, input: flag("router", input.router),
        features=lambda wc, input: flag("features", input.features),
        compute=SETTINGS.path("compute"),
    message:
        "Evaluating {wildcards.run} on the {wildcards.role} set"
    shell:
        "{SOMA} evaluate --log {log} --settings {params.file} --role {wildcards.role} --windows {input.windows}"
        " --parts {params.parts} {params.start} {params.router} {params.features} --active {params.active}"
        " --compute {params.compute} --threads {threads} --output {output}"


def validation_of(arms):
    """Validation rows of every run of some arms."""
    return [
        f"{EVALUATION}/validation/{run.id}.parquet"
        for arm in arms
        for run in PLAN.arm_runs[arm]
    ]


TUNED = [name for base in (TUNING.soma, TUNING.spsa) for name in TUNING.variants(base)]


rule summarise_backpropagation:
    input:
        evaluations=validation_of(
            [arm for pair in CONFIG.products.backpropagation.pairs for arm in pair]
        ),
    output:
        f"{MEASUREMENTS}/backpropagation.parquet",
    log:
        f"{LOGS}/summarise-backpropagation.log",
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Comparing with backpropagation at equal operations"
    shell:
        "{SOMA} summarise-backpropagation --log {log} --settings {params.file} --evaluations {input.evaluations}"
        " --output {output}"


rule search:
    input:
        evaluations=validation_of(TUNED),
    output:
        f"{MEASUREMENTS}/tuning.parquet",
    log:
        f"{LOGS}/search.log",
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Choosing lr and eps on ensemble validation"
    shell:
        "{SOMA} search --log {log} --settings {params.file} --evaluations {input.evaluations} --output {output}"


rule evaluate_chosen:
    input:
        tuning=f"{MEASUREMENTS}/tuning.parquet",
        windows=f"{SETS}/test.parquet",
        checkpoints=[
            f
            for arm in TUNED
            for run in PLAN.arm_runs[arm]
            for f in checkpoints_of(run)
        ],
        features=f"{ROUTING}/features",
        routers=sorted(
            {
                f"{ROUTING}/router-n{run.experts}"
                for arm in TUNED
                for run in PLAN.arm_runs[arm]
                if routed(run)
            }
        ),
    output:
        f"{MEASUREMENTS}/tuning-test.parquet",
    log:
        f"{LOGS}/evaluate-chosen.log",
    threads: CONFIG.compute.threads
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        code=code("select"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
        compute=SETTINGS.path("compute"),
    message:
        "Evaluating the chosen settings on test, once"
    shell:
        "{SOMA} evaluate-chosen --log {log} --settings {params.file} --tuning {input.tuning} --windows {input.windows}"
        " --runs {RUNS} --routing {ROUTING} --compute {params.compute} --threads {threads} --output {output}"


rule measure_precision:
    input:
        train=f"{CORPUS}/train",
        checkpoints=checkpoints_of(PRECISION_RUN)[0],
    output:
        f"{MEASUREMENTS}/precision.parquet",
    log:
        f"{LOGS}/measure-precision.log",
    threads: CONFIG.compute.threads
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        code=code("measure"),
        settings=settings("precision"),
        file=SETTINGS.path("precision"),
        part=parts_of(PRECISION_RUN)[0],
        compute=SETTINGS.path("compute"),
    message:
        "Measuring the precision of the finite difference"
    shell:
        "{SOMA} measure-precision --log {log} --settings {params.file} --train {input.train} --part {params.part}"
        " --compute {params.compute} --threads {threads} --output {output}"


rule summarise_losses:
    input:
        evaluations=[
            f"{EVALUATION}/{role}/{run.id}.parquet"
            for role in ROLES
            for arm in CONFIG.products.fixed_size.arms
            for run in PLAN.arm_runs[arm]
        ],
    output:
        losses=f"{MEASUREMENTS}/losses.parquet",
        differences=f"{MEASUREMENTS}/differences.parquet",
    log:
        f"{LOGS}/summarise-losses.log",
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Bootstrapping losses and differences over documents"
    shell:
        "{SOMA} summarise-losses --log {log} --settings {params.file} --evaluations {input.evaluations}"
        " --losses {output.losses} --differences {output.differences}"


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
        f"{MEASUREMENTS}/costs.parquet",
    log:
        f"{LOGS}/summarise-costs.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
        parts=[folder for run in PLAN.runs.values() for folder in parts_of(run)],
    message:
        "Adding up the six cost quantities"
    shell:
        "{SOMA} summarise-costs --log {log} --settings {params.file} --parts {params.parts}"
        " --benchmarks {input.benchmarks} --output {output}"
