# From raw text to every table and figure of the campaign that the configuration names.
#   snakemake --cores all                                    the reference campaign, `small`
#   snakemake --cores all --configfile config/toy.yaml       minutes on 2 cores
#   snakemake -n          --configfile config/paper.yaml     the paper's own sizes: look before you run
import gc

from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/routing.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


# What is imported stays; else Python looks through it for garbage again and again, for a third of the time of a plan.
gc.freeze()


report: str(Path(placed(RESULTS), "front.rst").absolute())


rule all:
    default_target: True
    input:
        f"{RESULTS}/index.html",
        f"{RESULTS}/README.md",
        f"{RESULTS}/metrics.json",
        expand(
            "{dir}/{name}.{suffix}",
            dir=TABLE_DIR,
            name=CATALOGUE.tables,
            suffix=["md", "csv", "html"],
        ),
        expand(
            "{dir}/{name}.{suffix}",
            dir=FIGURE_DIR,
            name=CATALOGUE.figures,
            suffix=["svg", "png", "csv"],
        ),


rule data:
    input:
        [f"{SETS}/{role}.parquet" for role in ROLES],


rule routing:
    input:
        [f"{ROUTING}/clusters-n{n}.json" for n in PLAN.expert_counts],
        shards_of(PLAN.runs.values()),


# The searches alone; copy what they choose into the configuration, then run the rest.
rule rates:
    input:
        expand(
            "{dir}/{name}.md",
            dir=TABLE_DIR,
            name=[
                name
                for name in ("rates", "rates-of-arms", "table6")
                if name in CATALOGUE.tables
            ],
        ),


rule runs:
    input:
        opened(PLAN.runs.values()),


rule evaluation:
    input:
        sorted(
            {
                file
                for product in CATALOGUE.products
                for file in files_of(product.reads)
            }
        ),


onstart:
    with errors_as_one_sentence():
        SETTINGS.write()
    # CUDA does not survive a fork, and jobs of a cluster are elsewhere.
    if workflow.local_exec and CONFIG.compute.device == "cpu":
        forks.start()


onsuccess:
    finish()
