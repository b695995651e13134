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
        folder=lambda wc, output: folder_of(output[0]),
        code=lambda wc: code(f"download/{kind_of(wc.source)}"),
        settings=lambda wc: settings(f"source-{wc.source}"),
        file=lambda wc: SETTINGS.path(f"source-{wc.source}"),
    message:
        "Downloading the {wildcards.source} source"
    shell:
        "{SOMA} download --log {log} --settings {params.file} --output {params.folder}"


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
    resources:
        mem_mb=4000,
        runtime=1440,
    params:
        source=lambda wc, input: folder_of(input[0]),
        folder=lambda wc, output: folder_of(output[0]),
        code=code("encode"),
        settings=lambda wc: settings(f"encode-{wc.role}"),
        file=lambda wc: SETTINGS.path(f"encode-{wc.role}"),
    message:
        "Encoding the {wildcards.role} documents as bytes"
    shell:
        "{SOMA} encode --log {log} --settings {params.file} --role {wildcards.role}"
        " --source {params.source} --output {params.folder}"


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
        code=code("evaluation-set"),
        settings=lambda wc: settings(f"set-{wc.role}"),
        file=lambda wc: SETTINGS.path(f"set-{wc.role}"),
    message:
        "Choosing the {wildcards.role} windows"
    shell:
        "{SOMA} evaluation-set --log {log} --settings {params.file} --role {wildcards.role}"
        " --train {CORPUS}/train --corpus {CORPUS}/{wildcards.role} --output {output.windows}"
