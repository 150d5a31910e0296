"""Private names of other libraries that hftune reads, calls or sets, and replaces nothing with."""

from __future__ import annotations

from hftune.compat.touched import UpstreamSymbol

_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers"
_TRL = "https://github.com/huggingface/trl/blob/v1.16.0/trl"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate"
_DATASETS = "https://github.com/huggingface/datasets/blob/5.2.0/src/datasets"
_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch"
_PYTHON = "https://github.com/python/cpython/blob/3.12/Lib"
_CLASSES = "transformers.modeling_utils.PreTrainedModel"

MODELS = (
    UpstreamSymbol(
        f"{_CLASSES}._supports_flash_attn",
        parameters=None,
        versions=">=5.17",
        why="which attentions a class has is asked before a model is made; nothing public says it",
        feature="the choice of attention (--attn_implementation left out)",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._supports_flex_attn",
        parameters=None,
        versions=">=5.17",
        why="as _supports_flash_attn",
        feature="the choice of attention (--attn_implementation left out)",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._supports_sdpa",
        parameters=None,
        versions=">=5.17",
        why="as _supports_flash_attn; a class without it and without soft caps has attention sinks",
        feature="the choice of attention (--attn_implementation left out)",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._supports_attention_backend",
        parameters=None,
        versions=">=5.17",
        why="without it a model has an attention of its own, which no document borders reach",
        feature="the refusal of --packing where documents would see each other",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._is_stateful",
        parameters=None,
        versions=">=5.17",
        why="the past of a recurrent layer is more than the attention mask says",
        feature="the refusal of --packing where documents would see each other",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._can_set_experts_implementation",
        parameters=(),
        versions=">=5.17",
        why="whether a mixture of experts takes another way to multiply them is asked before it is made",
        feature="--experts_implementation",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._can_record_outputs",
        parameters=None,
        versions=">=5.17",
        why="it names the routers of a mixture; asking the model for their logits would keep all of them",
        feature="router losses and the balance of experts in the log",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._adjust_missing_and_unexpected_keys",
        parameters=("loading_info",),
        versions=">=5.17",
        why="which tensors a class may lack or leave over is known here only",
        feature="the check that a checkpoint fits its config, before weights are read",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        f"{_CLASSES}._gradient_checkpointing_func",
        parameters=None,
        versions=">=5.17",
        why="layers call it for what they recompute; hftune sets its own",
        feature="--activation_checkpointing",
        link=f"{_TRANSFORMERS}/modeling_layers.py",
    ),
    UpstreamSymbol(
        "transformers.configuration_utils.PreTrainedConfig._attn_implementation",
        parameters=None,
        versions=">=5.17",
        why="the attention that a loaded model has; the argument of that name is only what was asked for",
        feature="the line that says which attention runs, and the checks of packed rows",
        link=f"{_TRANSFORMERS}/configuration_utils.py",
    ),
    UpstreamSymbol(
        "transformers.configuration_utils.PreTrainedConfig._experts_implementation",
        parameters=None,
        versions=">=5.17",
        why="as _attn_implementation, for the experts of a mixture",
        feature="the line that says how experts are computed, and hftune plan",
        link=f"{_TRANSFORMERS}/configuration_utils.py",
    ),
    UpstreamSymbol(
        "transformers.configuration_utils.PreTrainedConfig._name_or_path",
        parameters=None,
        versions=">=5.17",
        why="the folder that messages name, and the name under which TRL logs a reward model",
        feature="names of models in messages and of rewards in the log",
        link=f"{_TRANSFORMERS}/configuration_utils.py",
    ),
    UpstreamSymbol(
        "transformers.integrations.moe._apply_gate",
        parameters=None,
        versions=">=5.17",
        why="a layer's own activation, which a counted pass over the experts calls as the real one does",
        feature="hftune plan for mixtures of experts",
        link=f"{_TRANSFORMERS}/integrations/moe.py",
    ),
    UpstreamSymbol(
        "torch.nn.Module._parameters",
        parameters=None,
        versions=">=2.11",
        why="a module's own tensors with the names they have there, empty ones included",
        feature="hftune plan",
        link=f"{_TORCH}/nn/modules/module.py",
    ),
    UpstreamSymbol(
        "torch.nn.Module._buffers",
        parameters=None,
        versions=">=2.11",
        why="as _parameters",
        feature="hftune plan; checkpoints with --expert_parallel_size",
        link=f"{_TORCH}/nn/modules/module.py",
    ),
    UpstreamSymbol(
        "torch.nn.Module._modules",
        parameters=None,
        versions=">=2.11",
        why="the critic is put on the policy so that one engine holds both, and out of its tree of modules in between",
        feature="PPO with a critic (--rl_algorithm ppo)",
        link=f"{_TORCH}/nn/modules/module.py",
    ),
    UpstreamSymbol(
        "torch.nn.Module._non_persistent_buffers_set",
        parameters=None,
        versions=">=2.11",
        why="which buffers a state dict leaves out; making one would gather all experts",
        feature="checkpoints with --expert_parallel_size",
        link=f"{_TORCH}/nn/modules/module.py",
    ),
)
"""Of models, their classes and configs."""

ENGINES = (
    UpstreamSymbol(
        "deepspeed.runtime.engine.DeepSpeedEngine._commit_decoupled_checkpoint",
        parameters=(),
        versions=">=0.19.8",
        why="decoupled writers would go on in a folder that has another name by then",
        feature="checkpoints with a decoupled DeepSpeed writer",
        link=f"{_DEEPSPEED}/runtime/engine.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.engine.DeepSpeedEngine._global_grad_norm",
        parameters=None,
        versions=">=0.19.8",
        why="get_global_grad_norm reads it; at ZeRO stage 0 in float32 nothing sets it",
        feature="grad_norm in the log at ZeRO stage 0",
        link=f"{_DEEPSPEED}/runtime/engine.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.engine.DeepSpeedEngine._partition_autoep_zero3_experts",
        parameters=("replacement", "convert_to_zero_parameters"),
        versions=">=0.19.8",
        why="experts are placed before the optimizer is made, so that its groups are of the weights that are trained",
        feature="--expert_parallel_size under ZeRO-3",
        link=f"{_DEEPSPEED}/runtime/engine.py",
    ),
    UpstreamSymbol(
        "deepspeed.utils.groups._create_expert_and_data_parallel",
        parameters=("expert_parallel_size_", "mp_size", "pp_size", "mp_mode", "..."),
        versions=">=0.19.8",
        why="as _partition_autoep_zero3_experts: the engine would make the groups too late",
        feature="--expert_parallel_size",
        link=f"{_DEEPSPEED}/utils/groups.py",
    ),
    UpstreamSymbol(
        "deepspeed.utils.groups._get_expert_parallel_group",
        parameters=("group_name",),
        versions=">=0.19.8",
        why="as _create_expert_and_data_parallel",
        feature="--expert_parallel_size",
        link=f"{_DEEPSPEED}/utils/groups.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator._invalidate_trace",
        parameters=(),
        versions=">=0.19.8",
        why="ZeRO-3 fetches ahead in the order of the passes before; those of an evaluation are in another order",
        feature="evaluation and sampling during training under ZeRO-3",
        link=f"{_DEEPSPEED}/runtime/zero/partitioned_param_coordinator.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator"
        "._clean_inflight_param_registry",
        parameters=(),
        versions=">=0.19.8",
        why="what an evaluation has fetched ahead cannot be partitioned again after a checkpoint",
        feature="evaluation before a checkpoint under ZeRO-3",
        link=f"{_DEEPSPEED}/runtime/zero/partitioned_param_coordinator.py",
    ),
    UpstreamSymbol(
        "deepspeed.utils.mixed_precision_linkage._hp_mapping",
        parameters=None,
        versions=">=0.19.8",
        why="where a parameter's share lies in the flat tensors of ZeRO-1 and 2; the public getters gather it",
        feature="--resume_from_checkpoint in another world or ZeRO stage",
        link=f"{_DEEPSPEED}/utils/mixed_precision_linkage.py",
    ),
    UpstreamSymbol(
        "accelerate.accelerator.Accelerator._dataloaders",
        parameters=None,
        versions=">=1.15",
        why="prepare_data_loader of an accelerator knows no groups of processes that share rows",
        feature="--sequence_parallel_size and --tensor_parallel_size",
        link=f"{_ACCELERATE}/accelerator.py",
    ),
    UpstreamSymbol(
        "accelerate.accelerator._is_accelerate_prepared",
        parameters=None,
        versions=">=1.15",
        why="as _dataloaders: a loader is prepared once",
        feature="--sequence_parallel_size and --tensor_parallel_size",
        link=f"{_ACCELERATE}/accelerator.py",
    ),
    UpstreamSymbol(
        "torch._C._distributed_c10d",
        parameters=None,
        versions=">=2.11",
        why="NCCL's record of collectives that have not finished (_dump_nccl_trace_json) has no public reader",
        feature="the collective that a hanging GPU run is said to wait for",
        link=f"{_TORCH}/csrc/distributed/c10d/init.cpp",
    ),
    UpstreamSymbol(
        "torch.storage.UntypedStorage._cdata",
        parameters=None,
        versions=">=2.11",
        why="the one number that tells whether two tensors without data share their storage",
        feature="hftune plan",
        link=f"{_TORCH}/storage.py",
    ),
)
"""Of engines, parallel groups and what torch knows of a run."""

DATA = (
    UpstreamSymbol(
        "datasets.arrow_dataset.Dataset._indices",
        parameters=None,
        versions=">=5.0",
        why="whether a dataset is a selection of its table, of which a memory-mapped reader knows nothing",
        feature="--packing of selected or shuffled records",
        link=f"{_DATASETS}/arrow_dataset.py",
    ),
    UpstreamSymbol(
        "argparse.ArgumentParser._print_message",
        parameters=("message", "file"),
        versions="",
        why="overridden: the page of --help goes to the terminal, where standard output may lead to a log",
        feature="--help",
        link=f"{_PYTHON}/argparse.py",
    ),
    UpstreamSymbol(
        "argparse.ArgumentParser._get_formatter",
        parameters=(),
        versions="",
        why="--help by topics is made of the parser's own formatter",
        feature="--help",
        link=f"{_PYTHON}/argparse.py",
    ),
    UpstreamSymbol(
        "argparse._ActionsContainer._actions",
        parameters=None,
        versions="",
        why="all arguments of a parser, in order; argparse has no public list",
        feature="--help, names of arguments in messages, docs/parameters.md",
        link=f"{_PYTHON}/argparse.py",
    ),
)
"""Of datasets and parsers."""

TRAINERS = tuple(
    UpstreamSymbol(
        f"{owner}.{name}",
        parameters=None,
        versions=versions,
        why=why,
        feature=feature,
        link=link,
    )
    for owner, versions, link, rows in (
        (
            "transformers.trainer.Trainer",
            ">=5.17",
            f"{_TRANSFORMERS}/trainer.py",
            (
                ("_signature_columns", "columns that a stage's own collator reads are kept", "columns of all stages"),
                ("_train_batch_size", "rows of an epoch are counted in it", "epochs that end with a smaller batch"),
                ("_tr_loss", "the sum of losses since the last line of the log", "train_loss after a resumed run"),
                ("_total_loss_scalar", "the sum of losses before it", "train_loss after a resumed run"),
                ("_globalstep_last_logged", "since which step the losses are summed", "train_loss after a resumed run"),
                ("_created_lr_scheduler", "set where hftune has made the scheduler", "learning-rate schedules"),
            ),
        ),
        (
            "trl.trainer.sft_trainer.SFTTrainer",
            ">=1.16",
            f"{_TRL}/trainer/sft_trainer.py",
            (
                ("_metrics", "figures of a step are averaged with TRL's own in the log", "the log of SFT"),
                ("_total_train_tokens", "tokens seen, which a resumed run counts on", "num_tokens in the log"),
                ("_tp_size", "tokens of tensor-parallel processes are counted once", "num_tokens in the log"),
                ("_tokenizer", "the tokenizer of a processor", "text in samples and messages"),
            ),
        ),
        (
            "trl.trainer.reward_trainer.RewardTrainer",
            ">=1.16",
            f"{_TRL}/trainer/reward_trainer.py",
            (
                ("_metrics", "as SFTTrainer's", "the log of reward models"),
                ("_total_train_tokens", "as SFTTrainer's", "num_tokens in the log"),
                ("_tp_size", "as SFTTrainer's", "num_tokens in the log"),
            ),
        ),
        (
            "trl.trainer.rloo_trainer.RLOOTrainer",
            ">=1.16",
            f"{_TRL}/trainer/rloo_trainer.py",
            (
                ("_metrics", "as SFTTrainer's", "the log of RL"),
                ("_logs", "completions and rewards of a step, for the samples file", "samples of RL"),
                ("_pending_metrics", "what reward functions log", "figures of reward functions in the log"),
                ("_pending_extra_logs", "columns that reward functions log", "samples of RL"),
                ("_buffered_inputs", "batches of answers that several steps share", "RL with several steps a batch"),
                ("_step", "at which micro batch new answers are due", "RL with several steps a batch"),
                ("_tokenizer", "as SFTTrainer's", "samples of RL"),
            ),
        ),
    )
    for name, why, feature in rows
)
"""State of the trainers that hftune's extend. Methods that it overrides are in `trainer_overrides`."""
