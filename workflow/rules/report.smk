# Products: rows to tables and figures.

TABLE_INPUTS = {
    "claims": [
        f"{MEASUREMENTS}/{name}.parquet"
        for name in ("differences", "backpropagation", "tuning", "tuning-test")
    ],
    "table1": [f"{SETS}/validation.json", f"{SETS}/test.json"],
    "table2": [],
    "table4": [f"{MEASUREMENTS}/losses.parquet"],
    "table5": [f"{MEASUREMENTS}/backpropagation.parquet"],
    "table6": [f"{MEASUREMENTS}/tuning.parquet"],
    "table7": [f"{MEASUREMENTS}/tuning.parquet", f"{MEASUREMENTS}/tuning-test.parquet"],
    "table9": [f"{MEASUREMENTS}/losses.parquet"],
    "costs": [f"{MEASUREMENTS}/costs.parquet"],
    "precision": [f"{MEASUREMENTS}/precision.parquet"],
    "clusters": [f"{ROUTING}/clusters-n{n}.json" for n in PLAN.expert_counts],
}
CATEGORY = {
    "claims": "1 What was reproduced",
    "costs": "4 Costs",
    "clusters": "5 Clusters",
    "precision": "6 Beyond the paper",
}
FIGURE_INPUTS = {
    "figure1": [f"{MEASUREMENTS}/losses.parquet", f"{MEASUREMENTS}/costs.parquet"],
    "precision": [f"{MEASUREMENTS}/precision.parquet"],
}


rule table:
    input:
        rows=lambda wc: TABLE_INPUTS[wc.name],
        paper="config/paper_values.yaml",
    output:
        md=f"{TABLE_DIR}/{{name}}.md",
        csv=f"{TABLE_DIR}/{{name}}.csv",
        html=report(
            f"{TABLE_DIR}/{{name}}.html",
            caption="../report/table.rst",
            category=lambda wc: CATEGORY.get(wc.name, "2 Tables"),
            labels=lambda wc: {"table": wc.name, "campaign": CONFIG.campaign},
        ),
    log:
        f"{LOGS}/table-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing {wildcards.name}"
    shell:
        "{SOMA} table --log {log} --name {wildcards.name} --settings {params.file} --paper {input.paper}"
        " --measurements {MEASUREMENTS} --sets {SETS} --routing {ROUTING} --output {TABLE_DIR}"


rule figure:
    input:
        lambda wc: FIGURE_INPUTS[wc.name],
    output:
        svg=report(
            f"{FIGURE_DIR}/{{name}}.svg",
            caption="../report/figure.rst",
            category=lambda wc: CATEGORY.get(wc.name, "3 Figures"),
            labels=lambda wc: {"figure": wc.name, "campaign": CONFIG.campaign},
        ),
        png=f"{FIGURE_DIR}/{{name}}.png",
        csv=f"{FIGURE_DIR}/{{name}}.csv",
    log:
        f"{LOGS}/figure-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("report"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Drawing {wildcards.name}"
    shell:
        "{SOMA} figure --log {log} --name {wildcards.name} --settings {params.file}"
        " --measurements {MEASUREMENTS} --output {FIGURE_DIR}"
