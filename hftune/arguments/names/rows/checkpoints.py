"""What is saved, and how a run goes on."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.values.common import switched

_RESUME = "use --resume_from_checkpoint to go on with everything, or give the checkpoint as --model_name_or_path"
_WHOLE = "weights are saved whole, as safetensors; a checkpoint resumes on the same number of processes"
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
    refused("no_load_optim", "resume without optimizer", _RESUME),
    refused("ignore_load_lr_and_optim", "resume without optimizer", _RESUME),
    refused("no_load_rng", "resume without random states", _RESUME),
    refused("finetune", "False: resume; True: start from weights", _RESUME, "False", harmless=("true",)),
    refused("load", "checkpoint to start from", _MCORE + "--model_name_or_path", "m"),
    refused("mcore_model", "checkpoint to start from", _MCORE + "--model_name_or_path", "m"),
    refused("async_save", "save in the background", "checkpoints are written before training goes on"),
    refused("use_async_save", "save in the background", "checkpoints are written before training goes on"),
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
