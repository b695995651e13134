# Products: from rows to tables and figures.

# Section and place in it of every product. The report sorts both as text, hence the numbers.
PLACES = {
    product: (f"{i} {section}", f"{j:02d}")
    for i, (section, products) in enumerate(CATALOGUE.sections.items(), 1)
    for j, product in enumerate(products, 1)
}


def category(product):
    """Return the section of a product in the report."""
    return PLACES[product][0]


def labels(product):
    """Return the label of a product in the report: one alone, since the report would take some of several as switches."""
    return {"product": f"{PLACES[product][1]} {product.entry}"}


rule table:
    input:
        rows=lambda wc: files_of(CATALOGUE.tables[wc.name].reads),
        paper=local(own("config/paper_values.yaml")),
    output:
        md=f"{TABLE_DIR}/{{name}}.md",
        csv=f"{TABLE_DIR}/{{name}}.csv",
        html=report(
            f"{TABLE_DIR}/{{name}}.html",
            caption="../report/caption.rst",
            category=lambda wc: category(CATALOGUE.tables[wc.name]),
            labels=lambda wc: labels(CATALOGUE.tables[wc.name]),
        ),
    log:
        f"{LOGS}/table-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CALL,
        code=lambda wc: code(f"table/{wc.name}"),
        caption=lambda wc: CATALOGUE.tables[wc.name].caption,
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing {wildcards.name}"
    shell:
        "{params.soma} table --log {log} --name {wildcards.name} --settings {params.file} --results {params.results}"
        " --paper {input.paper} --output {params.results}/tables"


rule figure:
    input:
        rows=lambda wc: files_of(CATALOGUE.figures[wc.name].reads),
        paper=local(own("config/paper_values.yaml")),
    output:
        svg=report(
            f"{FIGURE_DIR}/{{name}}.svg",
            caption="../report/caption.rst",
            category=lambda wc: category(CATALOGUE.figures[wc.name]),
            labels=lambda wc: labels(CATALOGUE.figures[wc.name]),
        ),
        png=f"{FIGURE_DIR}/{{name}}.png",
        csv=f"{FIGURE_DIR}/{{name}}.csv",
    log:
        f"{LOGS}/figure-{{name}}.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CALL,
        code=lambda wc: code(f"figure/{wc.name}"),
        caption=lambda wc: CATALOGUE.figures[wc.name].caption,
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Drawing {wildcards.name}"
    shell:
        "{params.soma} figure --log {log} --name {wildcards.name} --settings {params.file} --results {params.results}"
        " --paper {input.paper} --output {params.results}/figures"


rule metrics:
    input:
        files_of(METRICS),
    output:
        metrics=f"{RESULTS}/metrics.json",
        numbers=f"{RESULTS}/numbers.json",
    log:
        f"{LOGS}/metrics.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CALL,
        code=code("metrics"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing the numbers of pages and of `dvc metrics`"
    shell:
        "{params.soma} metrics --log {log} --settings {params.file} --results {params.results}"
        " --numbers {output.numbers} --output {output.metrics}"


rule summary:
    input:
        files_of(FRONT),
        paper=local(own("config/paper_values.yaml")),
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
        **CALL,
        code=code("summary"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
    message:
        "Writing the first page"
    shell:
        "{params.soma} summary --log {log} --settings {params.file} --results {params.results}"
        " --paper {input.paper} --output {output.readme}"


rule page:
    input:
        tables=expand(
            "{dir}/{name}.{suffix}",
            dir=TABLE_DIR,
            name=CATALOGUE.tables,
            suffix=["csv", "md"],
        ),
        figures=expand(
            "{dir}/{name}.{suffix}",
            dir=FIGURE_DIR,
            name=CATALOGUE.figures,
            suffix=["svg", "png"],
        ),
        numbers=f"{RESULTS}/numbers.json",
        rows=files_of(PAGE),
        paper=local(own("config/paper_values.yaml")),
        # What the reference campaign found in words; another campaign has its numbers alone.
        story=(
            local(own("docs/results.template.md"))
            if CONFIG.campaign == "small"
            else []
        ),
    output:
        f"{RESULTS}/index.html",
    log:
        f"{LOGS}/page.log",
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CALL,
        code=code("page"),
        settings=settings("campaign"),
        file=SETTINGS.path("campaign"),
        story=lambda wc, input: flag("story", input.story or None),
    message:
        "Writing the page to read"
    shell:
        "{params.soma} page --log {log} --settings {params.file} --results {params.results} --paper {input.paper}"
        " {params.story} --output {output}"
