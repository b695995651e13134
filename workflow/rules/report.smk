# Products: rows to tables and figures.


def measured(*names):
    return [f"{MEASUREMENTS}/{name}.parquet" for name in names]


EVIDENCE = (
    *("differences", "tuning-compared", "objective", "paired", "variance", "reference"),
    *("sweep-differences", "inference", "serving", "active-differences", "active"),
    *("ablation", "allocation", "backpropagation"),
)
TABLE_INPUTS = {
    "claims": measured(*EVIDENCE),
    "controls": measured("controls", "sizes", "differences", "precision"),
    "sizes": measured("sizes", "differences"),
    "table1": [f"{SETS}/validation.json", f"{SETS}/test.json"],
    "table2": [],
    "table3": measured("costs", "reference"),
    "table4": measured("losses"),
    "table5": measured("backpropagation"),
    "table6": measured("tuning"),
    "table7": measured("tuning-compared"),
    "table8": measured("reference"),
    "table9": measured("losses"),
    "table10": measured("budgets"),
    "table11": measured("allocation"),
    "table12": measured("inference"),
    "table13": measured("serving", "inference", "costs"),
    "ablation": measured("ablation"),
    "crossings": measured("crossings"),
    "populations": measured("populations"),
    "estimators": measured("estimators"),
    "costs": measured("costs"),
    "steps": measured("costs"),
    "precision": measured("precision"),
    "clusters": [f"{ROUTING}/clusters-n{n}.json" for n in PLAN.expert_counts],
}
# Sections of the report, and what stands in each: the paper's order, with what goes together side by side.
SECTIONS = {
    "What was reproduced": ["claims"],
    "Settings and costs": ["table1", "table2", "table3", "costs", "steps", "clusters"],
    "Equal size and budget": ["figure1", "table4", "table9"],
    "Controls of ours": ["controls", "sizes", "precision"],
    "Backpropagation and tuning": ["table5", "table6", "table7", "populations"],
    "Gradient estimates": [
        *("figure4", "table8", "figure5", "figure10", "figure11", "estimators")
    ],
    "Scaling and allocation": [
        *("figure7", "figure8", "table10", "figure13", "crossings", "figure14"),
        "table11",
    ],
    "Ablations": ["figure9", "ablation"],
    "Inference and averaging": [
        *("table12", "table13", "figure6", "figure15", "figure16", "figure17")
    ],
}


# Section and place in it of every product. The report sorts both as text, hence the numbers.
PLACES = {
    name: (f"{i} {title}", f"{j:02d}")
    for i, (title, names) in enumerate(SECTIONS.items(), 1)
    for j, name in enumerate(names, 1)
}


def labels(name, kind):
    """One label alone: of several, the report would take some for switches."""
    title = name.replace(kind, f"{kind} ") if kind in name else f"{name}, {kind}"
    return {"product": f"{PLACES[name][1]} {title.capitalize()}"}


FIGURE_INPUTS = {
    "figure1": measured("losses", "costs", "differences"),
    "figure4": measured("paired"),
    "figure5": measured("reference"),
    "figure6": measured("serving", "inference"),
    "figure7": measured("sweep"),
    "figure8": measured("sweep"),
    "figure9": measured("ablation"),
    "figure10": measured("variance"),
    "figure11": measured("objective"),
    "figure13": measured("sweep"),
    "figure14": measured("best-counts"),
    "figure15": measured("serving", "inference", "costs"),
    "figure16": measured("active-losses"),
    "figure17": measured("active"),
    "precision": measured("precision"),
    "sizes": measured("sizes"),
    "estimators": measured("estimators"),
}


rule table:
    input:
        rows=lambda wc: TABLE_INPUTS[wc.name],
        paper=local("config/paper_values.yaml"),
    output:
        md=f"{TABLE_DIR}/{{name}}.md",
        csv=f"{TABLE_DIR}/{{name}}.csv",
        html=report(
            f"{TABLE_DIR}/{{name}}.html",
            caption="../report/table.rst",
            category=lambda wc: PLACES[wc.name][0],
            labels=lambda wc: labels(wc.name, "table"),
        ),
    log:
        f"{LOGS}/table-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("table"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing {wildcards.name}"
    shell:
        "{SOMA} table --log {log} --name {wildcards.name} --settings {params.file} --paper {input.paper}"
        " --measurements {MEASUREMENTS} --sets {SETS} --routing {ROUTING} --output {TABLE_DIR}"


rule figure:
    input:
        rows=lambda wc: FIGURE_INPUTS[wc.name],
        paper=local("config/paper_values.yaml"),
    output:
        svg=report(
            f"{FIGURE_DIR}/{{name}}.svg",
            caption="../report/figure.rst",
            category=lambda wc: PLACES[wc.name][0],
            labels=lambda wc: labels(wc.name, "figure"),
        ),
        png=f"{FIGURE_DIR}/{{name}}.png",
        csv=f"{FIGURE_DIR}/{{name}}.csv",
    log:
        f"{LOGS}/figure-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("figure"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Drawing {wildcards.name}"
    shell:
        "{SOMA} figure --log {log} --name {wildcards.name} --settings {params.file} --paper {input.paper}"
        " --measurements {MEASUREMENTS} --output {FIGURE_DIR}"


rule metrics:
    input:
        measured("losses", "controls", "sizes", *EVIDENCE),
    output:
        f"{RESULTS}/metrics.json",
    log:
        f"{LOGS}/metrics.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("metrics"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing the numbers of `dvc metrics`"
    shell:
        "{SOMA} metrics --log {log} --settings {params.file} --measurements {MEASUREMENTS} --output {output}"


rule summary:
    input:
        measured(*EVIDENCE, "controls", "sizes", "precision", "costs"),
        tables=[f"{TABLE_DIR}/{name}.md" for name in TABLE_INPUTS],
        figure=f"{FIGURE_DIR}/figure1.png",
    output:
        readme=f"{RESULTS}/README.md",
        front=f"{RESULTS}/front.rst",
    log:
        f"{LOGS}/summary.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("summary"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing the first page"
    shell:
        "{SOMA} summary --log {log} --settings {params.file} --measurements {MEASUREMENTS} --runs {RUNS}"
        " --tables {TABLE_DIR} --output {output.readme}"
