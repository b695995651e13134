# Sources to documents, documents to bytes, bytes to evaluation sets.


def kind_of(source):
    """Return the kind of a source, such as `sotu`."""
    return SETTINGS.values[f"source-{source}"]["source"]["source"]


def source_of(role):
    """Return the source that a role reads; a set that is held out by position reads the training source."""
    return role if f"source-{role}" in SETTINGS.values else "train"


rule download:
    output:
        f"{CORPUS}/source-{{source}}/manifest.json",  # of the other files there, whose number is not known before
    log:
        f"{LOGS}/download-{{source}}.log",
    benchmark:
        f"{BENCHMARKS}/download-{{source}}.tsv"
    resources:
        mem_mb=2000,
        runtime=1440,
    params:
        **CALL,
        folder=lambda wc, output: folder_of(output[0]),
        code=lambda wc: code(f"download/{kind_of(wc.source)}"),
        settings=lambda wc: settings(f"source-{wc.source}"),
        file=lambda wc: SETTINGS.path(f"source-{wc.source}"),
    message:
        "Downloading the {wildcards.source} source"
    shell:
        "{params.soma} download --log {log} --settings {params.file} --output {params.folder}"


rule encode:
    input:
        lambda wc: f"{CORPUS}/source-{source_of(wc.role)}/manifest.json",
    output:
        files_in(
            f"{CORPUS}/{{role}}", "manifest.json", "bytes.bin", "documents.parquet"
        ),
    log:
        f"{LOGS}/encode-{{role}}.log",
    benchmark:
        f"{BENCHMARKS}/encode-{{role}}.tsv"
    wildcard_constraints:
        # In several parts, the training text has rules of its own.
        role="validation|test|external" if PART else "train|validation|test|external",
    resources:
        mem_mb=4000,
        runtime=1440,
    params:
        **CALL,
        source=lambda wc, input: folder_of(input[0]),
        folder=lambda wc, output: folder_of(output[0]),
        code=code("encode"),
        settings=lambda wc: settings(f"encode-{wc.role}"),
        file=lambda wc: SETTINGS.path(f"encode-{wc.role}"),
    message:
        "Encoding the {wildcards.role} documents as bytes"
    shell:
        "{params.soma} encode --log {log} --settings {params.file} --role {wildcards.role}"
        " --source {params.source} --output {params.folder}"


if PART:

    rule encode_part:
        input:
            f"{CORPUS}/source-train/manifest.json",
        output:
            temp(
                files_in(
                    f"{CORPUS}/train{PART}",
                    "part.json",
                    "bytes.bin",
                    "documents.parquet",
                )
            ),
        log:
            f"{LOGS}/encode-train{PART}.log",
        benchmark:
            f"{BENCHMARKS}/encode-train{PART}.tsv"
        resources:
            mem_mb=4000,
            runtime=1440,
        params:
            **CALL,
            source=lambda wc, input: folder_of(input[0]),
            folder=lambda wc, output: folder_of(output[0]),
            code=code("encode"),
            settings=settings("encode-train"),
            file=SETTINGS.path("encode-train"),
        message:
            "Encoding the training documents as bytes, part {wildcards.scatteritem}"
        shell:
            "{params.soma} encode --log {log} --settings {params.file} --role train --part {wildcards.scatteritem}"
            " --source {params.source} --output {params.folder}"

    rule join:
        input:
            *(
                by_part(f"{CORPUS}/train{PART}/{file}")
                for file in ("part.json", "bytes.bin", "documents.parquet")
            ),
        output:
            files_in(
                f"{CORPUS}/train", "manifest.json", "bytes.bin", "documents.parquet"
            ),
        log:
            f"{LOGS}/join-train.log",
        benchmark:
            f"{BENCHMARKS}/join-train.tsv"
        resources:
            mem_mb=4000,
            runtime=1440,
        params:
            **CALL,
            parts=[
                placed(folder_of(file))
                for file in by_part(f"{CORPUS}/train{PART}/part.json")
            ],
            folder=lambda wc, output: folder_of(output[0]),
            code=code("join"),
        message:
            "Joining the parts of the training text"
        shell:
            "{params.soma} join --log {log} --parts {params.parts} --output {params.folder}"


rule evaluation_set:
    input:
        TRAIN,
        f"{CORPUS}/{{role}}/manifest.json",
    output:
        windows=f"{SETS}/{{role}}.parquet",
        manifest=f"{SETS}/{{role}}.json",
    log:
        f"{LOGS}/evaluation-set-{{role}}.log",
    benchmark:
        f"{BENCHMARKS}/evaluation-set-{{role}}.tsv"
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        **CALL,
        code=code("evaluation-set"),
        settings=lambda wc: settings(f"set-{wc.role}"),
        file=lambda wc: SETTINGS.path(f"set-{wc.role}"),
    message:
        "Choosing the {wildcards.role} windows"
    shell:
        "{params.soma} evaluation-set --log {log} --settings {params.file} --role {wildcards.role}"
        " --train {params.results}/corpus/train --corpus {params.results}/corpus/{wildcards.role} --output {output.windows}"
