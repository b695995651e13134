# Training windows to features, clusters and shards.


rule fit_features:
    input:
        TRAIN,
    output:
        files_in(
            f"{ROUTING}/features", "features.json", "features.npz", "vocabulary.json"
        ),
    log:
        f"{LOGS}/fit-features.log",
    benchmark:
        f"{BENCHMARKS}/fit-features.tsv"
    resources:
        mem_mb=16000,
        runtime=120,
    params:
        **CALL,
        code=code("fit-features"),
        settings=settings("features"),
        file=SETTINGS.path("features"),
    message:
        "Fitting tf-idf and SVD on a sample of the training windows"
    shell:
        "{params.soma} fit-features --log {log} --settings {params.file} --train {params.results}/corpus/train --output {params.results}/routing/features"


rule transform:
    input:
        TRAIN,
        FEATURES,
    output:
        f"{ROUTING}/vectors{PART}.npy",
    log:
        f"{LOGS}/transform{PART}.log",
    benchmark:
        f"{BENCHMARKS}/transform{PART}.tsv"
    threads: CONFIG.compute.workers
    resources:
        mem_mb=16000,
        runtime=720,
    params:
        **CALL,
        code=code("transform"),
        settings=settings("vectors"),
        file=SETTINGS.path("vectors"),
    message:
        "Computing the features of the training windows"
    shell:
        "{params.soma} transform --log {log} --settings {params.file} --train {params.results}/corpus/train"
        " --features {params.results}/routing/features --output {output} --workers {threads}"
        + (" --part {wildcards.scatteritem}" if PART else "")


rule fit_router:
    input:
        FEATURES,
        vectors=VECTORS,
    output:
        files_in(f"{ROUTING}/router-n{{n}}", "router.json", "router.npz"),
    log:
        f"{LOGS}/fit-router-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/fit-router-n{{n}}.tsv"
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        **CALL,
        code=code("fit-router"),
        settings=settings("router"),
        file=SETTINGS.path("router"),
    message:
        "Fitting {wildcards.n} balanced clusters"
    shell:
        "{params.soma} fit-router --log {log} --settings {params.file} --features {params.results}/routing/features"
        " --vectors {input.vectors} --experts {wildcards.n} --output {params.results}/routing/router-n{wildcards.n}"


rule assign:
    input:
        TRAIN,
        FEATURES,
        f"{ROUTING}/router-n{{n}}/router.json",
        vectors=f"{ROUTING}/vectors{PART}.npy",
    output:
        f"{ROUTING}/labels-n{{n}}{PART}.npy",
    log:
        f"{LOGS}/assign-n{{n}}{PART}.log",
    benchmark:
        f"{BENCHMARKS}/assign-n{{n}}{PART}.tsv"
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        **CALL,
        code=code("assign"),
        settings=settings("vectors"),
        file=SETTINGS.path("vectors"),
    message:
        "Assigning the training windows to {wildcards.n} clusters"
    shell:
        "{params.soma} assign --log {log} --settings {params.file} --train {params.results}/corpus/train --features {params.results}/routing/features"
        " --vectors {input.vectors} --router {params.results}/routing/router-n{wildcards.n} --output {output}"
        + (" --part {wildcards.scatteritem}" if PART else "")


rule describe_clusters:
    input:
        TRAIN,
        FEATURES,
        f"{ROUTING}/router-n{{n}}/router.json",
        labels=by_part(f"{ROUTING}/labels-n{{n}}{PART}.npy", n="{n}"),
    output:
        f"{ROUTING}/clusters-n{{n}}.json",
    log:
        f"{LOGS}/describe-clusters-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/describe-clusters-n{{n}}.tsv"
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        **CALL,
        code=code("describe-clusters"),
        settings=settings("clusters"),
        file=SETTINGS.path("clusters"),
    message:
        "Describing the {wildcards.n} clusters"
    shell:
        "{params.soma} describe-clusters --log {log} --settings {params.file} --train {params.results}/corpus/train"
        " --features {params.results}/routing/features --router {params.results}/routing/router-n{wildcards.n} --labels {input.labels} --output {output}"


rule shard:
    input:
        TRAIN,
        labels=lambda wc: (
            by_part(f"{ROUTING}/labels-n{{n}}{PART}.npy", n=wc.n)
            if wc.partition == "clusters"
            else []
        ),
    output:
        files_in(
            f"{SHARDS}/{{partition}}-n{{n}}",
            "shards.json",  # of text.bin too, which need not be there
            "train.npy",
            "validation.npy",
        ),
    log:
        f"{LOGS}/shard-{{partition}}-n{{n}}.log",
    benchmark:
        f"{BENCHMARKS}/shard-{{partition}}-n{{n}}.tsv"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        **CALL,
        folder=lambda wc, output: folder_of(output[0]),
        code=code("shard"),
        settings=settings("shard"),
        file=SETTINGS.path("shard"),
        labels=lambda wc, input: flag("labels", input.labels),
    message:
        "Dividing the training windows among {wildcards.n} experts ({wildcards.partition})"
    shell:
        "{params.soma} shard --log {log} --settings {params.file} --train {params.results}/corpus/train"
        " --partition {wildcards.partition} --experts {wildcards.n} {params.labels} --output {params.folder}"
