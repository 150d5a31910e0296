"""Figures, evaluation and profiling."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import data
from hftune.arguments.names.translators.common import mapped

ROWS = (
    works("logging_steps", "steps between figures", "10"),
    works("logging_strategy", "when figures are logged", "steps"),
    works("logging_first_step", "log the first step", "True"),
    alias("report_interval", "logging_steps", "steps between figures", "10"),
    alias("global_logging_interval", "logging_steps", "steps between figures", "10"),
    works("disable_tqdm", "no progress bar", "True"),
    no_effect("logging_dir", "folder of logs", "logs are written below --output_dir", "l"),
    no_effect("tensorboard_dir", "folder of logs", "logs are written below --output_dir", "l"),
    no_effect("tensorboard_queue_size", "figures written together", "TensorBoard decides", "50"),
    translated(
        "tracker",
        "report_to",
        "where figures are sent",
        "none",
        {"report_to": "none"},
        mapped("report_to", {"none": "none"}, ""),
    ),
    no_effect("tracker_dir", "folder of logs", "logs are written below --output_dir", "l"),
    refused("tracker_run_id", "run to go on with", "set the tracker's own variable, such as WANDB_RUN_ID", "x"),
    *(
        alias(name, "project", "project of the tracker", "p")
        for name in ("tracker_project_name", "wandb_project", "swanlab_project")
    ),
    *(alias(name, "run_name", "name of the run", "r") for name in ("wandb_exp_name", "swanlab_exp_name")),
    works("eval_strategy", "when to evaluate", "no"),
    alias("evaluation_strategy", "eval_strategy", "when to evaluate", "no"),
    works("eval_steps", "steps between evaluations", "20"),
    translated(
        "max_evaluate_steps",
        "max_eval_samples",
        "batches of an evaluation",
        "5",
        {"max_eval_samples": "40"},
        data.evaluation_length,
    ),
    translated(
        "eval_iters",
        "max_eval_samples",
        "batches of an evaluation",
        "5",
        {"max_eval_samples": "40"},
        data.evaluation_length,
    ),
    alias("use_profiler", "profile", "write a profile", "True"),
    works("profiler_rank0_only", "profile one process", "True"),
    no_effect("enable_global_training_logs", "figures over all processes", "logged figures are over all processes"),
    no_effect("log_global_grad_norm", "log the gradient's norm", "it is logged, as grad_norm"),
    refused("enable_channel_loss", "a loss for each channel", "evaluate on files of one channel"),
)
