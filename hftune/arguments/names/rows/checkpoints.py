"""What is saved, and how a run goes on."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import runs
from hftune.arguments.names.translators.common import switched

_WHOLE = "weights are saved whole, as safetensors; a checkpoint resumes on any number of processes"
_MCORE = "Megatron's format is not read; convert it to Hugging Face's, and use "

ROWS = (
    works("save_strategy", "when to save", "no"),
    works("save_steps", "steps between checkpoints", "50"),
    alias("save_interval", "save_steps", "steps between checkpoints", "50"),
    alias("checkpoint_interval", "save_steps", "steps between checkpoints", "50"),
    works("save_total_limit", "checkpoints kept", "3"),
    works("metric_for_best_model", "figure of the best checkpoint", "loss"),
    works("greater_is_better", "direction of that figure", "False"),
    no_effect("save_safetensors", "format of weights", "weights are always saved as safetensors"),
    works("max_shard_size", "largest weight file of a merge", "5GB", stages=("merge",)),
    alias("no_save_optim", "save_only_model", "checkpoints without optimizer", "True"),
    alias("ignore_save_lr_and_optim", "save_only_model", "checkpoints without optimizer", "True"),
    no_effect(
        "no_save_rng", "checkpoints without random states", "they are saved with the optimizer", harmless=("false",)
    ),
    translated(
        "resume_from_checkpoint",
        "resume_from_checkpoint",
        "go on with everything",
        "c",
        {"resume_from_checkpoint": "c"},
        runs.starting,
    ),
    *(
        translated(
            name,
            "warm_start",
            does,
            "True --resume_from_checkpoint c",
            {"warm_start": "c"},
            runs.starting,
        )
        for name, does in (
            ("no_load_optim", "begin without the optimizer"),
            ("ignore_load_lr_and_optim", "begin without the optimizer"),
            ("finetune", "True: start from weights; False: resume"),
        )
    ),
    translated(
        "no_load_rng",
        "warm_start",
        "begin without random states",
        "True --no_load_optim True --resume_from_checkpoint c",
        {"warm_start": "c"},
        runs.starting,
    ),
    works("warm_start", "weights of a checkpoint alone", "c"),
    refused("load", "checkpoint to start from", _MCORE + "--model_name_or_path", "m"),
    refused("mcore_model", "checkpoint to start from", _MCORE + "--model_name_or_path", "m"),
    works("async_save", "save in the background", "True"),
    alias("use_async_save", "async_save", "save in the background", "True"),
    no_effect("use_persistent_ckpt_worker", "process that saves", "training saves itself", harmless=("false",)),
    no_effect("unified_checkpoint", "checkpoints for any parallel layout", _WHOLE, harmless=("false",)),
    no_effect("unified_checkpoint_config", "details of saving", _WHOLE, "ignore_merge_optimizer"),
    no_effect("disable_ckpt_quant", "checkpoints are not quantised", "they never are"),
    no_effect("optim_shard_num", "files of the optimizer", "DeepSpeed writes one a process", "8"),
    no_effect("save_sharding_stage1_model_include_freeze_params", "save frozen weights", "all weights are saved"),
    refused("reshard_save_then_exit", "convert a checkpoint", "use DeepSpeed's ds_to_universal on checkpoint-N"),
    no_effect("dist_ckpt_save_pre_mcore_014", "an older format", "checkpoints are DeepSpeed's", harmless=("false",)),
    no_effect("dist_ckpt_optim_fully_reshardable", "checkpoints for any layout", _WHOLE, harmless=("false",)),
    no_effect("distrib_optim_fully_reshardable_mem_efficient", "save with little memory", _WHOLE, harmless=("false",)),
    alias("hf_hub_id", "hub_model_id", "name on the Hub", "me/model"),
    alias("hf_hub_model_id", "hub_model_id", "name on the Hub", "me/model"),
    translated(
        "deterministic_mode",
        "full_determinism",
        "the same numbers every time",
        "True",
        {"full_determinism": "True"},
        switched("full_determinism", "True", None),
    ),
)
