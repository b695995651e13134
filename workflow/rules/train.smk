# Every trained thing is a run; a job trains the experts of one part of it. The resume states, and a copy of the finished
# part, are not declared: Snakemake removes declared outputs before a job runs again, and work that was done must outlive
# that (soma.training.finished).


rule train_seed:
    input:
        TRAIN,
        lambda wc: shards_of([PLAN.runs[wc.run]]),
        start=lambda wc: started_from(wc.run, wc.part),
    output:
        **TRAINED,
    log:
        f"{LOGS}/train-{{run}}-{{part}}.log",
    wildcard_constraints:
        run="seed-.+",
    # Only the main process retries: on a cluster a job that was asked to stop must end, or it would reach its time limit.
    retries: 1 if workflow.is_main_process else 0
    threads: lambda wc: CONFIG.compute.threads * planned(wc, workers_of)
    resources:
        # Resources, since params are reasons to run again, and the number of workers changes no byte.
        workers=lambda wc: planned(wc, workers_of),
        nodes=lambda wc: planned(wc, nodes_of),
        mem_mb=megabytes_of,
        runtime=1440,
        slurm_extra=slurm_options,
        # On Slurm one task per node, whose processes have its GPUs. With several nodes, the command itself calls srun.
        tasks=lambda wc: planned(wc, nodes_of),
        tasks_per_gpu=0,
        cpus_per_task=lambda wc, threads: threads // planned(wc, nodes_of),
        mpi=lambda wc: "srun" if planned(wc, nodes_of) > 1 else None,
    params:
        **CALL,
        code=lambda wc: CODE.train(PLAN.runs[wc.run], wc.part),
        settings=lambda wc: settings(f"run-{wc.run}"),
        file=lambda wc: SETTINGS.path(f"run-{wc.run}"),
        shards=lambda wc: placed(f"{SHARDS}/{PLAN.runs[wc.run].shards}"),
        start=lambda wc: flag("start", PLAN.start_folders(PLAN.runs[wc.run], wc.part)),
        head=lambda wc: flag("head", PLAN.head_folder(PLAN.runs[wc.run])),
        resume=placed(f"{RESUME}/{{run}}/{{part}}"),
        folder=placed(f"{RUNS}/{{run}}/{{part}}"),
        compute=SETTINGS.path("compute"),
    message:
        "Training {wildcards.run}, expert {wildcards.part}"
    shell:
        "{params.soma} train --log {log} --settings {params.file} --part {wildcards.part} --train {params.results}/corpus/train"
        " --shards {params.shards} --runs {params.results}/runs {params.start} {params.head} --resume {params.resume} --output {params.folder}"
        " --compute {params.compute} --threads {params.threads} --workers {resources.workers} --nodes {resources.nodes}"
        " --code {params.code}"


use rule train_seed as train_expert with:
    wildcard_constraints:
        run=f"(?!seed-|({LEGS})/).+",


use rule train_seed as train_expert_with_leg with:
    output:
        **TRAINED,
        leg=f"{RUNS}/{{run}}/{{part}}/leg.safetensors",
    wildcard_constraints:
        run=LEGS,
