# Training windows to features, clusters and shards.


rule fit_features:
    input:
        train=f"{CORPUS}/train",
    output:
        directory(f"{ROUTING}/features"),
    log:
        f"{LOGS}/fit-features.log",
    benchmark:
        f"{BENCHMARKS}/fit-features.tsv"
    resources:
        mem_mb=16000,
        runtime=120,
    params:
        code=code("fit-features"),
        settings=settings("features"),
        file=SETTINGS.path("features"),
    message:
        "Fitting tf-idf and SVD on a sample of the training windows"
    shell:
        "{SOMA} fit-features --log {log} --settings {params.file} --train {input.train} --output {output}"


rule transform:
    input:
        train=f"{CORPUS}/train",
        features=f"{ROUTING}/features",
    output:
        f"{ROUTING}/vectors.npy",
    log:
        f"{LOGS}/transform.log",
    benchmark:
        f"{BENCHMARKS}/transform.tsv"
    threads: CONFIG.compute.workers
    resources:
        mem_mb=16000,
        runtime=720,
    params:
        code=code("transform"),
        settings=settings("vectors"),
        file=SETTINGS.path("vectors"),
    message:
        "Computing the features of every training window"
    shell:
        "{SOMA} transform --log {log} --settings {params.file} --train {input.train}"
        " --features {input.features} --output {output} --workers {threads}"


rule fit_router:
    input:
        features=f"{ROUTING}/features",
        vectors=f"{ROUTING}/vectors.npy",
    output:
        directory(f"{ROUTING}/router-n{{n}}"),
    log:
        f"{LOGS}/fit-router-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/fit-router-n{{n}}.tsv"
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        code=code("fit-router"),
        settings=settings("router"),
        file=SETTINGS.path("router"),
    message:
        "Fitting {wildcards.n} balanced clusters"
    shell:
        "{SOMA} fit-router --log {log} --settings {params.file} --features {input.features}"
        " --vectors {input.vectors} --experts {wildcards.n} --output {output}"


rule assign:
    input:
        train=f"{CORPUS}/train",
        features=f"{ROUTING}/features",
        vectors=f"{ROUTING}/vectors.npy",
        router=f"{ROUTING}/router-n{{n}}",
    output:
        labels=f"{ROUTING}/labels-n{{n}}.npy",
        clusters=f"{ROUTING}/clusters-n{{n}}.json",
    log:
        f"{LOGS}/assign-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/assign-n{{n}}.tsv"
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        code=code("assign"),
        settings=settings("assign"),
        file=SETTINGS.path("assign"),
    message:
        "Assigning every training window to one of {wildcards.n} clusters"
    shell:
        "{SOMA} assign --log {log} --settings {params.file} --train {input.train} --features {input.features}"
        " --vectors {input.vectors} --router {input.router} --labels {output.labels} --clusters {output.clusters}"


rule shard:
    input:
        train=f"{CORPUS}/train",
        labels=lambda wc: (
            f"{ROUTING}/labels-n{wc.n}.npy" if wc.partition == "clusters" else []
        ),
    output:
        directory(f"{SHARDS}/{{partition}}-n{{n}}"),
    log:
        f"{LOGS}/shard-{{partition}}-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/shard-{{partition}}-n{{n}}.tsv"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        code=code("shard"),
        settings=settings("shard"),
        file=SETTINGS.path("shard"),
        labels=lambda wc, input: flag("labels", input.labels),
    message:
        "Dividing the training windows among {wildcards.n} experts ({wildcards.partition})"
    shell:
        "{SOMA} shard --log {log} --settings {params.file} --train {input.train}"
        " --partition {wildcards.partition} --experts {wildcards.n} {params.labels} --output {output}"
