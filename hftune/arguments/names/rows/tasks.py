"""Which stage, for how long, where to."""

from hftune.arguments.names.row import alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import runs

_MEGATRON = "hftune trains Hugging Face models; nothing of Megatron is started"

ROWS = (
    translated("stage", "the script", "the stage", "SFT", {}, runs.ernie_stage, stages=("sft",)),
    translated("rlhf_type", "the script", "the preference or RL stage", "dpo", {}, runs.rlhf_type, stages=("dpo",)),
    translated(
        "task_type",
        "the script",
        "language model or classifier",
        "seq_cls",
        {},
        runs.any_language_model,
        stages=("rm",),
    ),
    works("do_train", "train", "True"),
    refused("do_predict", "predict on a test set", "evaluate on it: --do_eval with --validation_file_dir"),
    works("do_eval", "evaluate", "True"),
    works("output_dir", "folder of the result", "out2"),
    works("overwrite_output_dir", "replace what is there", "True"),
    alias("save", "output_dir", "folder of the result", "out2"),
    alias("ckpt_save_path", "output_dir", "folder of the checkpoints", "out2"),
    works("seed", "random seed", "7"),
    works("max_steps", "number of optimizer steps", "30"),
    works("num_train_epochs", "passes over the data", "2"),
    alias("train_iters", "max_steps", "number of optimizer steps", "30"),
    alias("num_steps", "max_steps", "number of optimizer steps", "30"),
    refused("training_stage", "a schedule of fms-fsdp", "use --lr_scheduler_type", "annealing", harmless=("initial",)),
    works("report_to", "where figures are sent", "none"),
    works("ddp_timeout", "seconds until a silent process counts as lost", "3000"),
    works("ddp_backend", "communication library", "gloo"),
    works("local_rank", "which process this is; the launcher says it", "0"),
    works("hub_token", "token of the Hub; never written to disk", "t"),
    alias("hf_hub_token", "hub_token", "token of the Hub; never written to disk", "t"),
    no_effect("use_hf", "Hugging Face or ModelScope", "files come from Hugging Face, or a local folder"),
    refused(
        "download_hub",
        "where models come from",
        "files come from Hugging Face; download others first, and give the folder",
        "modelscope",
        harmless=("huggingface", "none"),
    ),
    no_effect("check_model", "look for damaged files", "hftune checks the folder before it loads"),
    no_effect(
        "load_args", "read arguments of an older run", "the manifest hftune.json keeps them", harmless=("false",)
    ),
    refused(
        "load_data_args", "read data arguments of an older run", "give --train_file_dir; hftune.json has what it was"
    ),
    refused("load_args_from_api", "read arguments from a service", "give them on the command line or in --config"),
    refused("ignore_args_error", "skip unknown arguments", "unknown arguments are errors; remove them"),
    refused("external_plugins", "load Python files", "write a script of your own beside run_sft.py", "plugin.py"),
    refused("callbacks", "further trainer callbacks", "write a script of your own beside run_sft.py", "mine"),
    refused("use_ray", "start processes through Ray", "start with deepspeed or torchrun"),
    no_effect("ray_exp_name", "name of a Ray job", "Ray is not used", "x"),
    refused("device_groups", "devices for Ray's workers", "start with deepspeed or torchrun", "{}"),
    no_effect("skip_megatron_init", "leave Megatron alone", _MEGATRON),
    no_effect("bridge_backend", "how Megatron reads Hugging Face weights", _MEGATRON, "mcore-bridge"),
    no_effect("offload_bridge", "keep exported weights on the CPU", _MEGATRON),
    refused("megatron_extra_kwargs", "further Megatron settings", _MEGATRON + "; remove it", "{}"),
    no_effect("to_hf", "write Hugging Face weights", "every output is in Hugging Face's format"),
    refused(
        "to_mcore", "write Megatron's format", "outputs are in Hugging Face's format; convert with Megatron's tools"
    ),
    no_effect("exist_ok", "overwrite a folder", "use --overwrite_output_dir", harmless=("false",)),
    no_effect("test_convert_precision", "compare converted weights", "weights are not converted"),
    no_effect("test_convert_dtype", "dtype of that comparison", "weights are not converted", "float32"),
    no_effect(
        "add_version", "a dated folder below the output", "results are in --output_dir itself", harmless=("false",)
    ),
    refused("create_checkpoint_symlink", "links to the best and the last", "results are in --output_dir itself"),
    no_effect("enable_npu_model_patch", "changes for Ascend devices", "models run as transformers has them"),
    refused("sft_benchmark", "measure speed", "use benchmarks/, or --dummy_data"),
    refused("dpo_benchmark", "measure speed", "use benchmarks/, or --dummy_data"),
    no_effect("num_of_gpus", "devices of an estimate", "the launcher says it", "8", harmless=("-1",)),
    no_effect("max_estimate_samples", "records that an estimate looks at", "all records are counted", "1000"),
    no_effect("gc_interval", "steps between garbage collections", "Python collects", "100000", harmless=("0",)),
    no_effect("manual_gc", "collect garbage by hand", "Python collects", harmless=("false",)),
    no_effect("manual_gc_steps", "steps between collections", "Python collects", "10", harmless=("0",)),
    no_effect("manual_gc_eval", "collect around evaluations", "Python collects"),
    no_effect("pre_alloc_memory", "GB reserved at the start", "torch manages the memory", "60", harmless=("0", "0.0")),
    no_effect("te_rng_tracker", "Transformer Engine's random numbers", "torch's are used", harmless=("false",)),
    works("hub_model_id", "name on the Hub", "me/model"),
)
