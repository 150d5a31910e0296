"""What hftune replaces in other libraries. The functions that do it are in the modules `*_patches.py` alongside."""

from __future__ import annotations

from hftune.compat.touched import UpstreamSymbol

_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers"
_TRL = "https://github.com/huggingface/trl/blob/v1.16.0/trl"
_PEFT = "https://github.com/huggingface/peft/blob/v0.21.2/src/peft"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate"
_BITSANDBYTES = "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.50.2/bitsandbytes"
_MUON = "deepspeed.runtime.zero.muon"

REPLACED = (
    UpstreamSymbol(
        "accelerate.utils.other.is_deepspeed_available",
        parameters=(),
        versions=">=1.15",
        why="unwrapping a model imports DeepSpeed, also in runs that do not use it: some seconds of every start",
        feature="quick starts of runs without --deepspeed",
        link=f"{_ACCELERATE}/utils/other.py",
    ),
    UpstreamSymbol(
        "deepspeed.ops.__compatible_ops__",
        parameters=None,
        versions=">=0.19.8",
        why="making a gloo group compiles a shared-memory operator that training does not use",
        feature="--deepspeed on CPUs without a C++ compiler",
        link=f"{_DEEPSPEED}/ops/__init__.py",
    ),
    UpstreamSymbol(
        f"{_MUON}.original_muon.muon_update",
        parameters=("grad", "momentum", "beta", "ns_steps", "nesterov", "ns_method", "is_expert_group", "num_heads"),
        versions=">=0.19.8",
        why="torch.compile takes longer than it saves on a CPU, and fails without a C++ compiler",
        feature="--optim muon on CPUs and without a C++ compiler",
        link=f"{_DEEPSPEED}/runtime/zero/muon/original_muon.py",
    ),
    UpstreamSymbol(
        f"{_MUON}.original_muon.zeropower_via_newtonschulz5",
        parameters=("G", "steps"),
        versions=">=0.19.8",
        why="as muon_update, which calls it",
        feature="--optim muon on CPUs and without a C++ compiler",
        link=f"{_DEEPSPEED}/runtime/zero/muon/original_muon.py",
    ),
    UpstreamSymbol(
        f"{_MUON}.original_muon.zeropower_via_gram_newtonschulz",
        parameters=("G", "steps"),
        versions=">=0.19.8",
        why="as muon_update, which calls it",
        feature="--optim muon on CPUs and without a C++ compiler",
        link=f"{_DEEPSPEED}/runtime/zero/muon/original_muon.py",
    ),
    UpstreamSymbol(
        f"{_MUON}.muon_optimizer.muon_update",
        parameters=("grad", "momentum", "beta", "ns_steps", "nesterov", "ns_method", "is_expert_group", "num_heads"),
        versions=">=0.19.8",
        why="the optimizer has imported the compiled function by name",
        feature="--optim muon on CPUs and without a C++ compiler",
        link=f"{_DEEPSPEED}/runtime/zero/muon/muon_optimizer.py",
    ),
    UpstreamSymbol(
        "transformers.integrations.deepspeed._hf_deepspeed_config_weak_ref",
        parameters=None,
        versions=">=5.17",
        why="from_pretrained partitions every model while this is set; there is a way to unset it, none to restore it",
        feature="reward models and planning under ZeRO-3",
        link=f"{_TRANSFORMERS}/integrations/deepspeed.py",
    ),
    UpstreamSymbol(
        "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE",
        parameters=None,
        versions=">=5.17",
        why="transformers asks on the standard input whether a model's code may run, and a piped `y` is an answer",
        feature="code that comes with a model runs by --trust_remote_code alone",
        link=f"{_TRANSFORMERS}/dynamic_module_utils.py",
    ),
    UpstreamSymbol(
        "transformers.trainer.deepspeed_load_checkpoint",
        parameters=("deepspeed_engine", "checkpoint_path", "load_module_strict"),
        versions=">=5.17",
        why="DeepSpeed runs what a checkpoint's pickle says, and loads into the world that wrote it only",
        feature="--resume_from_checkpoint with --deepspeed",
        link=f"{_TRANSFORMERS}/trainer.py",
    ),
    UpstreamSymbol(
        "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.__setitem__",
        parameters=("key", "value"),
        versions=">=5.17",
        why="attention is a function of this table, no module that could be recomputed",
        feature="--activation_checkpointing core_attention",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        "transformers.modeling_utils.AttentionInterface._global_mapping",
        parameters=None,
        versions=">=5.17",
        why="an attention can be registered, not taken out again, and transformers lists those to users",
        feature="hftune plan",
        link=f"{_TRANSFORMERS}/utils/generic.py",
    ),
    UpstreamSymbol(
        "transformers.masking_utils.AttentionMaskInterface._global_mapping",
        parameters=None,
        versions=">=5.17",
        why="as AttentionInterface",
        feature="hftune plan",
        link=f"{_TRANSFORMERS}/utils/generic.py",
    ),
    UpstreamSymbol(
        "transformers.integrations.moe.ALL_EXPERTS_FUNCTIONS._global_mapping",
        parameters=None,
        versions=">=5.17",
        why="as AttentionInterface, for the experts of a mixture",
        feature="hftune plan for mixtures of experts",
        link=f"{_TRANSFORMERS}/integrations/moe.py",
    ),
    UpstreamSymbol(
        "peft.tuners.trainable_tokens.layer.TrainableTokensLayer._collect_token_weights",
        parameters=("weight", "rows", "embed_dim"),
        versions=">=0.21",
        why="under ZeRO-3 peft fetches the rows of new tokens on CUDA only",
        feature="--add_tokens with an adapter under ZeRO-3",
        link=f"{_PEFT}/tuners/trainable_tokens/layer.py",
    ),
    UpstreamSymbol(
        "trl.trainer.utils.maybe_gather_lm_head_ctx",
        parameters=("*params",),
        versions=">=1.16",
        why="TRL asks the head's weight for its ZeRO status, which one that is computed (new tokens) does not have",
        feature="--add_tokens with an adapter under ZeRO-3",
        link=f"{_TRL}/trainer/utils.py",
    ),
)
"""Whole modules or classes: the change holds for the process, or for the block of a context manager."""

REPLACED_ON_OBJECTS = (
    UpstreamSymbol(
        "torch.nn.Module.forward",
        parameters=None,
        versions=">=2.11",
        why="LoRA products, tiled MLPs and answer losses replace what a module computes, and keep its hooks",
        feature="fused LoRA, --tiled_mlp, answer losses, activation checkpointing of parts",
        link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/module.py",
    ),
    UpstreamSymbol(
        "transformers.modeling_utils.PreTrainedModel._set_gradient_checkpointing",
        parameters=("enable", "gradient_checkpointing_func", "every_n_layers"),
        versions=">=5.17",
        why="all switches of transformers and TRL end here; only whole models can be chosen otherwise",
        feature="--activation_checkpointing",
        link=f"{_TRANSFORMERS}/modeling_utils.py",
    ),
    UpstreamSymbol(
        "peft.peft_model.PeftModel.create_or_update_model_card",
        parameters=("output_dir",),
        versions=">=0.21",
        why="peft writes a blank page over the model card that hftune writes",
        feature="model cards of adapters",
        link=f"{_PEFT}/peft_model.py",
    ),
    UpstreamSymbol(
        "bitsandbytes.nn.modules.Linear4bit.support_avx512bf16_for_cpu",
        parameters=None,
        versions=">=0.50",
        why="an evaluation on such a CPU packs weights for a kernel without a backward pass",
        feature="--load_in_4bit on CPUs with AVX512-BF16",
        link=f"{_BITSANDBYTES}/nn/modules.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.engine.DeepSpeedEngine.clip_fp32_gradients",
        parameters=(),
        versions=">=0.19.8",
        why="DeepSpeed clips float32 gradients at ZeRO stage 0 and forgets their norm",
        feature="grad_norm in the log at ZeRO stage 0",
        link=f"{_DEEPSPEED}/runtime/engine.py",
    ),
    UpstreamSymbol(
        "deepspeed.runtime.engine.DeepSpeedEngine.step",
        parameters=("lr_kwargs",),
        versions=">=0.19.8",
        why="accelerate calls it within `backward`, so that no hook of the Trainer sees the optimizer's step begin",
        feature="phases of a step in the watchdog and in --measure_speed",
        link=f"{_DEEPSPEED}/runtime/engine.py",
    ),
)
"""Methods and switches of single objects: the library's class stays as it is."""
