# Losses per document, then their summaries.


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
