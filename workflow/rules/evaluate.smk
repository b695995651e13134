# Losses per document, measurements at checkpoints, and summaries of both.


def opened(runs, milestones=False):
    """Return the files that a step needs to open trained runs: their weights, and those of the heads they share."""
    names = ["weights", "milestones"][: 1 + milestones]
    return [
        f"{folder}/{name}.safetensors"
        for run in PLAN.files(runs)
        for folder in parts_of(run)
        for name in names
    ]


def routers_of(runs):
    """Return the routers that choose among the experts of runs."""
    counts = sorted({run.clusters for run in runs if run.clusters is not None})
    return [FEATURES for _ in counts[:1]] + [
        f"{ROUTING}/router-n{n}/router.json" for n in counts
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
        **CALL,
        code=lambda wc: CODE.evaluate(group_runs(wc.group)),
        settings=lambda wc: settings(f"evaluate-{wc.group}"),
        file=lambda wc: SETTINGS.path(f"evaluate-{wc.group}"),
        compute=SETTINGS.path("compute"),
    message:
        "Evaluating {wildcards.group} on the {wildcards.role} set"
    shell:
        "{params.soma} evaluate --log {log} --settings {params.file} --role {wildcards.role} --windows {input.windows}"
        " --runs {params.results}/runs --routing {params.results}/routing --compute {params.compute} --threads {threads} --output {output}"


# Reference lines, which cost nothing to train: n-gram models of the same training text, on the same scored bytes.
rule evaluate_ngrams:
    input:
        TRAIN,
        validation=f"{SETS}/validation.parquet",
        test=f"{SETS}/test.parquet",
        external=f"{SETS}/external.parquet",
    output:
        f"{ROWS}/ngram-losses.parquet",
    log:
        f"{LOGS}/evaluate-ngrams.log",
    resources:
        mem_mb=2000,
        runtime=240,
    params:
        **CALL,
        code=code("evaluate-ngrams"),
    message:
        "Evaluating n-gram models of the training text"
    shell:
        "{params.soma} evaluate-ngrams --log {log} --train {params.results}/corpus/train --validation {input.validation} --test {input.test}"
        " --external {input.external} --output {output}"


rule measure:
    input:
        TRAIN,
        f"{SETS}/validation.parquet",
        checkpoints=lambda wc: opened(
            PLAN.measured_runs(wc.measurement),
            milestones=CATALOGUE.measurements[wc.measurement].early,
        ),
        shards=lambda wc: shards_of(PLAN.measured_runs(wc.measurement)),
        routers=lambda wc: routers_of(PLAN.measured_runs(wc.measurement)),
        documents=lambda wc: (
            [f"{CORPUS}/validation/manifest.json"]
            if CATALOGUE.measurements[wc.measurement].documents
            else []
        ),
    output:
        f"{ROWS}/{{measurement}}.parquet",
    log:
        f"{LOGS}/measure-{{measurement}}.log",
    wildcard_constraints:
        measurement="|".join(CATALOGUE.measurements) or "(?!)",
    threads: lambda wc: threads_of_measurement(wc.measurement)
    resources:
        mem_mb=16000,
        runtime=1440,
    params:
        **CALL,
        code=lambda wc: CODE.measure(wc.measurement),
        settings=lambda wc: settings(f"measure-{wc.measurement}"),
        file=lambda wc: SETTINGS.path(f"measure-{wc.measurement}"),
        compute=SETTINGS.path("compute"),
    message:
        "Measuring: {wildcards.measurement}"
    shell:
        "{params.soma} measure --log {log} --name {wildcards.measurement} --settings {params.file} --results {params.results}"
        " --compute {params.compute} --threads {params.threads} --output {output}"


rule summarise:
    input:
        lambda wc: files_of(CATALOGUE.summaries[wc.summary].reads),
    output:
        f"{ROWS}/{{summary}}.parquet",
    log:
        f"{LOGS}/summarise-{{summary}}.log",
    wildcard_constraints:
        summary="|".join(CATALOGUE.summaries),
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        **CALL,
        code=lambda wc: code(f"summarise/{wc.summary}"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Summarising: {wildcards.summary}"
    shell:
        "{params.soma} summarise --log {log} --name {wildcards.summary} --settings {params.file} --results {params.results}"
        " --output {output}"


if CATALOGUE.has(CHOSEN):

    # The choice is a file of its own, so that nothing but the search is a reason to open the test set again.
    rule choose:
        input:
            f"{EVALUATION}/validation/tuning.parquet",
        output:
            f"{ROWS}/chosen.json",
        log:
            f"{LOGS}/choose.log",
        resources:
            mem_mb=4000,
            runtime=60,
        params:
            **CALL,
            code=code("choose"),
            settings=settings("choose"),
            file=SETTINGS.path("choose"),
        message:
            "Choosing the best setting of the search"
        shell:
            "{params.soma} choose --log {log} --settings {params.file} --validation {input} --output {output}"

    rule evaluate_chosen:
        input:
            chosen=f"{ROWS}/chosen.json",
            windows=f"{SETS}/test.parquet",
            checkpoints=opened(group_runs("tuning"), milestones=True),
            routers=routers_of(group_runs("tuning")),
        output:
            f"{ROWS}/{CHOSEN}.parquet",
        log:
            f"{LOGS}/evaluate-chosen.log",
        threads: CONFIG.compute.threads
        resources:
            mem_mb=8000,
            runtime=240,
        params:
            **CALL,
            code=lambda wc: CODE.evaluate(group_runs("tuning")),
            compute=SETTINGS.path("compute"),
        message:
            "Evaluating the chosen settings on test, once"
        shell:
            "{params.soma} evaluate --log {log} --settings {input.chosen} --role test --windows {input.windows}"
            " --runs {params.results}/runs --routing {params.results}/routing --compute {params.compute} --threads {threads} --output {output}"


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
                *(["join-train"] if PART else []),
                "fit-features",
                *[
                    f"{rule}-n{n}"
                    for rule in ("fit-router", "describe-clusters", "shard-clusters")
                    for n in PLAN.expert_counts
                ],
            ]
        ]
        + by_part(f"{BENCHMARKS}/encode-train{PART}.tsv")
        + by_part(f"{BENCHMARKS}/transform{PART}.tsv")
        + by_part(f"{BENCHMARKS}/assign-n{{n}}{PART}.tsv", n=PLAN.expert_counts),
    output:
        f"{ROWS}/costs.parquet",
    log:
        f"{LOGS}/summarise-costs.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CALL,
        code=code("summarise-costs"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Adding up the six cost quantities"
    shell:
        "{params.soma} summarise-costs --log {log} --settings {params.file} --runs {params.results}/runs --benchmarks {input.benchmarks}"
        " --output {output}"
