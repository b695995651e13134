# From raw text to every table and figure of the campaign that the configuration names.
#   snakemake --cores all                                    the reference campaign, `small`
#   snakemake --cores all --configfile config/toy.yaml       minutes on 2 cores
#   snakemake -n          --configfile config/paper.yaml     the paper's own sizes: look before you run
include: "workflow/Snakefile"


# An include leaves open which target is the default.
workflow.default_target = rules.all.rule.name
