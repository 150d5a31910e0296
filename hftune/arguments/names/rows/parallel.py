"""Sharding, parallelism and recomputation."""

from hftune.arguments.names.row import no_effect, refused, translated, works
from hftune.arguments.names.translators import runs, sharding

_ONE = ("1", "-1", "0", "none", "null")
_PIPELINE = "there is no pipeline parallelism under the HF Trainer; use ZeRO-3 (ds_configs/zero3.json)"
_STAGES = "there are no pipeline stages"
_TENSOR, _EXPERT = "tensor_parallel_size", "expert_parallel_size"
_AUTO = "DeepSpeed's AutoTP has no such detail: what is split comes from the model, the head stays whole"
_RING = "there is no ring attention; use --sequence_parallel_size, which exchanges heads for tokens (Ulysses)"
_NO_RING = "there is no ring attention"
_OVERLAP = "DeepSpeed's overlap_comm does that; see --deepspeed"

ROWS = (
    translated("sharding", "deepspeed", "ZeRO stage", "stage1", {}, sharding.sharding),
    translated("sharding_parallel_degree", "deepspeed", "processes that share states", "1", {}, sharding.sharding),
    translated("sharding_degree", "deepspeed", "processes that share states", "1", {}, sharding.sharding),
    translated("sharding_parallel_size", "deepspeed", "processes that share states", "1", {}, sharding.sharding),
    translated("offload_optim", "deepspeed", "optimizer states on the CPU", "False", {}, sharding.sharding),
    translated("tensorwise_offload_optimizer", "deepspeed", "optimizer states on the CPU", "False", {}, sharding.sharding),
    translated("optimizer_cpu_offload", "deepspeed", "optimizer states on the CPU", "False", {}, sharding.sharding),
    translated("optimizer_offload_fraction", "deepspeed", "share of them", "1.0", {}, sharding.sharding),
    translated("use_distributed_optimizer", "deepspeed", "ZeRO-1", "False", {}, sharding.sharding),
    translated("use_megatron_fsdp", "deepspeed", "sharded data parallelism", "False", {}, sharding.sharding),
    translated("data_parallel_sharding_strategy", "deepspeed", "what it shards", "optim", {}, sharding.sharding),
    translated("sharding_strategy", "deepspeed", "fsdp, hsdp or ddp", "ddp", {}, sharding.sharding),
    no_effect("sharding_parallel_config", "details of sharding", _OVERLAP, "enable_stage1_overlap"),
    no_effect("release_grads", "free gradients after a step", "ZeRO and the Trainer do"),
    no_effect("overlap_grad_reduce", "overlap of communication", _OVERLAP),
    no_effect("overlap_param_gather", "overlap of communication", _OVERLAP),
    no_effect("overlap_param_gather_with_optimizer_step", "overlap of communication", _OVERLAP),
    no_effect("align_grad_reduce", "overlap of communication", _OVERLAP),
    no_effect("align_param_gather", "overlap of communication", _OVERLAP),
    no_effect("nccl_comm_warmup", "first messages ahead of training", "NCCL decides"),
    works("ddp_find_unused_parameters", "look for weights without a gradient; not under DeepSpeed", "False"),
    # tensor
    *(
        translated(name, _TENSOR, "tensor parallelism", "2", {_TENSOR: "2"}, runs.degree)
        for name in ("tensor_parallel_degree", "tensor_model_parallel_size", "tp_size")
    ),
    refused("server_tp_degree", "tensor parallelism of a server", "hftune serves nothing", "2", harmless=_ONE),
    translated(
        "sequence_parallel",
        "no counterpart",
        "shares norms under tensor parallelism",
        "True --tensor_parallel_degree 1",
        {},
        runs.degree,
    ),
    no_effect("tensor_parallel_config", "details of tensor parallelism", _AUTO, "sync_param"),
    no_effect("tensor_parallel_output", "logits stay spread", _AUTO),
    no_effect("tp_comm_overlap", "overlap of tensor parallelism", _AUTO),
    no_effect(
        "use_sp_callback", "gradients of norms", "norms are whole, and their gradients the same, in every process"
    ),
    # pipeline
    refused("pipeline_parallel_degree", "pipeline parallelism", _PIPELINE, "2", harmless=_ONE),
    refused("pipeline_model_parallel_size", "pipeline parallelism", _PIPELINE, "2", harmless=_ONE),
    refused("virtual_pp_degree", "virtual pipeline stages", _PIPELINE, "2", harmless=_ONE),
    refused("virtual_pipeline_model_parallel_size", "virtual pipeline stages", _PIPELINE, "2", harmless=_ONE),
    refused("pipeline_model_parallel_layout", "layers of pipeline stages", _PIPELINE, "Et*4|L", harmless=("none",)),
    refused("add_tail_layers", "empty layers for a pipeline", _PIPELINE, "2"),
    refused("decoder_first_pipeline_num_layers", "layers of the first stage", _PIPELINE, "4", harmless=("none",)),
    refused("decoder_last_pipeline_num_layers", "layers of the last stage", _PIPELINE, "4", harmless=("none",)),
    *(
        no_effect(name, "a detail of the pipeline", _STAGES, value)
        for name, value in (
            ("pipeline_parallel_config", "enable_delay_scale_loss"),
            ("pp_seg_method", "uniform"),
            ("overlap_p2p_comm", "True"),
            ("batch_p2p_comm", "True"),
            ("microbatch_group_size_per_vp_stage", "2"),
            ("account_for_embedding_in_pipeline_split", "True"),
            ("account_for_loss_in_pipeline_split", "True"),
            ("pp_need_data", "True"),
            ("pp_need_data_degree", "2"),
            ("disable_pipeline_warmup", "True"),
        )
    ),
    # experts and sequences
    translated("expert_model_parallel_size", _EXPERT, "expert parallelism", "2", {_EXPERT: "2"}, runs.experts),
    refused(
        "expert_tensor_parallel_size",
        "tensor parallelism of experts",
        "use --expert_parallel_size, which leaves each expert whole",
        "2",
        harmless=_ONE,
    ),
    refused("context_parallel_size", "context parallelism: attention in a ring", _RING, "2", harmless=_ONE),
    works("sequence_parallel_size", "processes that share the tokens of a row (Ulysses)", "1"),
    no_effect("cp_comm_type", "communication of context parallelism", _NO_RING, "p2p"),
    no_effect("cp_partition_mode", "parts of context parallelism", _NO_RING, "zigzag"),
    refused("sequence_packing_scheduler", "packing balanced over processes", "use --packing", "dp_balanced"),
    # recomputation
    translated(
        "recompute",
        "gradient_checkpointing",
        "recompute activations",
        "False",
        {"gradient_checkpointing": "False"},
        sharding.recompute,
    ),
    translated(
        "recompute_granularity",
        "activation_checkpointing",
        "what is recomputed",
        "full_attn --recompute True",
        {"activation_checkpointing": "attention"},
        sharding.recompute,
    ),
    translated(
        "recompute_method",
        "activation_checkpointing_layers",
        "units of recomputation",
        "block --recompute_granularity full",
        {"gradient_checkpointing": "True", "activation_checkpointing_layers": "0"},
        sharding.recompute,
    ),
    translated(
        "recompute_num_layers",
        "activation_checkpointing_layers",
        "how many, or layers of a unit",
        "4 --recompute_granularity full --recompute_method block",
        {"gradient_checkpointing": "True", "activation_checkpointing_layers": "0-3"},
        sharding.recompute,
    ),
    translated(
        "recompute_modules",
        "activation_checkpointing",
        "parts that are recomputed",
        "core_attn --recompute_granularity selective",
        {"activation_checkpointing": "core_attention"},
        sharding.recompute,
    ),
    translated(
        "no_recompute_layers",
        "activation_checkpointing_layers",
        "layers that are not",
        "3 --recompute True",
        {"gradient_checkpointing": "True", "activation_checkpointing_layers": "not 3"},
        sharding.recompute,
    ),
    translated(
        "fsdp_activation_checkpointing",
        "gradient_checkpointing",
        "recompute activations",
        "True",
        {"gradient_checkpointing": "True"},
        sharding.recompute,
    ),
    translated(
        "selective_checkpointing",
        "activation_checkpointing_layers",
        "share of blocks",
        "1/3 --fsdp_activation_checkpointing True",
        {"gradient_checkpointing": "True", "activation_checkpointing_layers": "1/3"},
        sharding.recompute,
    ),
    works("gradient_checkpointing", "recompute activations", "True"),
    translated(
        "recompute_use_reentrant",
        "gradient_checkpointing_kwargs",
        "torch's older way",
        "True --recompute True",
        {"gradient_checkpointing": "True", "gradient_checkpointing_kwargs": '{"use_reentrant": true}'},
        sharding.recompute,
    ),
    no_effect("use_recompute", "recompute activations of images", "hftune trains on text"),
    translated(
        "offload_recompute_inputs",
        "activation_checkpointing_offload",
        "keep activations on the CPU",
        "True --recompute True",
        {"gradient_checkpointing": "True", "activation_checkpointing_offload": "True"},
        sharding.recompute,
    ),
)
