"""What hftune imports from modules that their libraries do not document, or from private ones.

An import that fails says so by itself. The list says which feature needs it, so that `hftune doctor` and the test say
so before a run does, and holds the parameters that hftune's calls count on.
"""

from __future__ import annotations

from hftune.compat.touched import UpstreamSymbol

_ROWS: dict[tuple[str, str, str], tuple[tuple[str, tuple[str, ...] | None, str, str], ...]] = {
    ("transformers", ">=5.17", "https://github.com/huggingface/transformers/blob/v5.23.0/src/"): (
        (
            "conversion_mapping.get_model_conversion_mapping",
            ("model", "..."),
            "under which names a class stores its tensors",
            "merging, and the check that a checkpoint fits its config",
        ),
        (
            "core_model_loading.WeightConverter",
            None,
            "as get_model_conversion_mapping: several tensors become one",
            "merging",
        ),
        ("core_model_loading.WeightRenaming", None, "as get_model_conversion_mapping: one for one", "merging"),
        (
            "core_model_loading.rename_source_key",
            ("source_key", "weight_renamings", "weight_converters", "..."),
            "as get_model_conversion_mapping: applies both",
            "merging, and the check that a checkpoint fits its config",
        ),
        (
            "initialization.no_init_weights",
            (),
            "models whose weights are read or do not matter are made without drawing any",
            "quick loading under ZeRO-3; preflight on the meta device",
        ),
        (
            "integrations.deepspeed.is_deepspeed_zero3_enabled",
            (),
            "whether from_pretrained will partition the model",
            "loading under ZeRO-3",
        ),
        (
            "integrations.deepspeed.unset_hf_deepspeed_config",
            (),
            "whole models are made under ZeRO-3",
            "reward models and planning under ZeRO-3",
        ),
        (
            "integrations.integration_utils.INTEGRATION_TO_CALLBACK",
            None,
            "which trackers the Trainer knows",
            "the check of --report_to before the model loads",
        ),
        (
            "integrations.moe.ALL_EXPERTS_FUNCTIONS",
            None,
            "a way to compute experts is registered here",
            "hftune plan for mixtures of experts",
        ),
        (
            "integrations.sdpa_attention.repeat_kv",
            ("hidden_states", "n_rep"),
            "keys and values of grouped heads, as SDPA's own path repeats them",
            "--packing and --padding_free by SDPA and torch's FlashAttention",
        ),
        (
            "integrations.sdpa_attention.sdpa_attention_forward",
            ("module", "query", "key", "value", "attention_mask", "..."),
            "the attention of rows that hold one document",
            "--packing and --padding_free by SDPA",
        ),
        (
            "masking_utils.sdpa_mask",
            (
                "batch_size",
                "q_length",
                "kv_length",
                "q_offset",
                "kv_offset",
                "mask_function",
                "attention_mask",
                "local_size",
                "use_vmap",
                "device",
                "...",
            ),
            "the mask where rows cannot be cut at their documents",
            "--packing and --padding_free by SDPA",
        ),
        (
            "modeling_layers.GenericForSequenceClassification",
            None,
            "classes whose score head reads the last token of a row",
            "reward models",
        ),
        (
            "modeling_layers.GenericForTokenClassification",
            None,
            "classes with a head on every token",
            "process reward models",
        ),
        (
            "modeling_layers.GradientCheckpointingLayer",
            None,
            "a layer that can be recomputed",
            "--activation_checkpointing of some layers or parts; hftune plan",
        ),
        (
            "models.auto.modeling_auto",
            None,
            "which class a config of a model type is for",
            "merging of several-headed models",
        ),
        (
            "optimization.TYPE_TO_SCHEDULER_FUNCTION",
            None,
            "which arguments a learning-rate schedule takes",
            "the check of --lr_scheduler_kwargs before the model loads",
        ),
        ("pytorch_utils.Conv1D", None, "GPT-2's linear layers", "LoRA on GPT-2"),
        (
            "quantizers.base.get_keys_to_not_convert",
            ("model",),
            "layers that bitsandbytes leaves in 16 bit",
            "merging into a quantised base",
        ),
        (
            "quantizers.quantizers_utils.should_convert_module",
            ("full_name", "patterns"),
            "as get_keys_to_not_convert",
            "merging into a quantised base",
        ),
        ("trainer.TRAINER_STATE_NAME", None, "the name of the Trainer's state file", "--resume_from_checkpoint"),
        ("trainer.TRAINING_ARGS_NAME", None, "the name of a pickle, which is not left behind", "result folders"),
        (
            "utils.chat_template_utils.render_jinja_template",
            ("conversations", "tools", "chat_template", "return_assistant_tokens_mask", "..."),
            "characters that a template marks as generated; tokenizers give tokens only",
            "loss spans of templates with {% generation %}",
        ),
        ("utils.chat_template_utils.DocstringParsingException", None, "what a faulty tool raises", "tools in RL"),
        ("utils.chat_template_utils.TypeHintParsingException", None, "what a faulty tool raises", "tools in RL"),
        (
            "utils.output_capturing.OutputRecorder",
            None,
            "how a class names the routers of its layers",
            "router losses and the balance of experts in the log",
        ),
    ),
    ("trl", ">=1.16", "https://github.com/huggingface/trl/blob/v1.16.0/"): (
        (
            "models.get_act_offloading_ctx_manager",
            ("model", "..."),
            "TRL's own trainers use it",
            "--activation_offloading",
        ),
        ("models.prepare_deepspeed", ("model", "accelerator"), "an engine for a reference model", "DPO under ZeRO"),
        (
            "models.utils.disable_gradient_checkpointing",
            ("model", "gradient_checkpointing_kwargs"),
            "reference passes recompute nothing",
            "DPO and RL with activation checkpointing",
        ),
        (
            "trainer.reward_trainer.DataCollatorForPreference",
            None,
            "batches of pairs as TRL pads them",
            "reward models",
        ),
        ("trainer.utils.RepeatSampler", None, "prompts repeated for a group of answers", "RL"),
        ("trainer.utils.disable_dropout_in_model", ("model",), "as TRL's trainers do it", "DPO, process reward models"),
        ("trainer.utils.pad", ("tensors", "padding_value", "padding_side", "..."), "answers of other lengths", "RL"),
        ("trainer.utils.shuffle_sequence_dict", ("seq_dict",), "micro batches of a batch of answers", "RL"),
        ("trainer.utils.split_tensor_dict", ("tensor_dict", "num_chunks"), "micro batches of a batch of answers", "RL"),
        (
            "trainer.utils.use_adapter",
            ("model", "adapter_name"),
            "the reference model is the base under the adapter",
            "DPO and RL with an adapter",
        ),
        ("chat_template_utils.add_response_schema", None, "how answers with tool calls are read", "tools in RL"),
        ("chat_template_utils.get_training_chat_template", None, "a template that keeps its prefix", "tools in RL"),
        (
            "chat_template_utils.is_chat_template_prefix_preserving",
            None,
            "whether a template does",
            "tools in RL",
        ),
        ("chat_template_utils.supports_tool_calling", None, "whether a template knows tools", "tools in RL"),
    ),
    ("peft", ">=0.21", "https://github.com/huggingface/peft/blob/v0.21.2/src/"): (
        ("mapping.PEFT_TYPE_TO_CONFIG_MAPPING", None, "the config class of a type of adapter", "adapters of any type"),
        ("tuners.lora.layer.Linear", None, "layers whose product is fused", "fused LoRA"),
        ("tuners.lora.layer.LoraLayer", None, "layers with factors", "LoRA under ZeRO-3, fused LoRA, merging"),
        ("tuners.lora.layer.ParamWrapper", None, "factors of stacked experts", "LoRA on experts"),
        (
            "tuners.trainable_tokens.layer.TrainableTokensLayer",
            None,
            "rows of new tokens",
            "--add_tokens with an adapter",
        ),
        ("tuners.tuners_utils.BaseTunerLayer", None, "layers of any adapter", "folding of adapters"),
        ("utils.constants.DUMMY_TARGET_MODULES", None, "an adapter that trains rows alone", "--add_tokens alone"),
        (
            "utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING",
            None,
            "layers that peft chooses for an architecture",
            "--lora_target_modules left out",
        ),
        ("utils.other.AuxiliaryTrainingWrapper", None, "modules that are trained whole", "--lora_modules_to_save"),
        ("utils.other.TrainableTokensWrapper", None, "as TrainableTokensLayer", "--add_tokens with an adapter"),
    ),
    ("deepspeed", ">=0.19.8", "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/"): (
        (
            "git_version_info.installed_ops",
            None,
            "operators that are compiled already",
            "the check of DeepSpeed's operators",
        ),
        (
            "module_inject.auto_ep.AutoEP",
            None,
            "experts are placed before the optimizer is made",
            "--expert_parallel_size",
        ),
        (
            "module_inject.auto_ep.AutoEP._retarget_transformers_output_recorders",
            ("spec", "replacement"),
            "overridden: it fails with transformers 5.23, and hftune hears routers by hooks",
            "--expert_parallel_size",
        ),
        (
            "module_inject.auto_ep_config.parse_autoep_config",
            ("param_dict",),
            "as AutoEP",
            "--expert_parallel_size",
        ),
        (
            "module_inject.auto_ep_config.validate_autoep_post_detection",
            ("config", "specs"),
            "as AutoEP",
            "--expert_parallel_size",
        ),
        ("runtime.engine.DeepSpeedEngine", None, "as AutoEP", "--expert_parallel_size"),
        (
            "runtime.utils.clip_grad_norm_",
            ("parameters", "max_norm", "mpu", "..."),
            "what the engine clips with",
            "grad_norm in the log at ZeRO stage 0",
        ),
        (
            "runtime.zero.config.DeepSpeedZeroConfig",
            None,
            "the keys that ZeRO knows",
            "the check of --deepspeed configs",
        ),
        ("runtime.zero.muon.muon_optimizer", None, "Muon that ZeRO knows", "--optim muon"),
        ("runtime.zero.muon.original_muon", None, "as muon_optimizer", "--optim muon"),
        ("utils.groups", None, "groups of expert- and tensor-parallel processes", "--expert_parallel_size"),
    ),
    ("accelerate", ">=1.15", "https://github.com/huggingface/accelerate/blob/v1.15.0/src/"): (
        (
            "data_loader.prepare_data_loader",
            ("dataloader", "device", "num_processes", "process_index", "..."),
            "rows for groups of processes, not for each",
            "--sequence_parallel_size and --tensor_parallel_size",
        ),
        ("utils.imports", None, "what accelerate finds installed", "quick starts of runs without --deepspeed"),
        ("utils.other", None, "what accelerate finds installed", "quick starts of runs without --deepspeed"),
    ),
    ("datasets", ">=5.0", "https://github.com/huggingface/datasets/blob/5.2.0/src/"): (
        (
            "features.features.generate_from_arrow_type",
            ("pa_type",),
            "the feature of a column that hftune writes as Arrow",
            "tokenised preference data",
        ),
    ),
    ("torch", ">=2.11", "https://github.com/pytorch/pytorch/blob/v2.13.0/"): (
        ("_subclasses.fake_tensor.FakeTensorMode", None, "a pass over tensors without data", "hftune plan"),
        ("utils._python_dispatch.TorchDispatchMode", None, "hears every operation of a pass", "hftune plan"),
        ("utils._pytree.tree_iter", ("tree", "..."), "the tensors among an operation's arguments", "hftune plan"),
        (
            "nn.attention.varlen.varlen_attn",
            None,
            "torch's own FlashAttention, young",
            "--packing and --padding_free on GPUs",
        ),
    ),
}

IMPORTED = tuple(
    UpstreamSymbol(
        f"{library}.{path}",
        parameters=parameters,
        versions=versions,
        why=why,
        feature=feature,
        link=f"{sources}{library}",
    )
    for (library, versions, sources), rows in _ROWS.items()
    for path, parameters, why, feature in rows
)
