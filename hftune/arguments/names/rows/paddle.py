"""What PaddleFormers' trainer adds beneath ERNIEKit: communication, checkpoints and Muon of Paddle."""

from hftune.arguments.names.row import Row, no_effect, refused, translated, works
from hftune.arguments.names.translators.common import mapped

_OVERLAP = "DeepSpeed's overlap_comm does that; see --deepspeed"
_NO_TENSOR = "tensor parallelism is DeepSpeed's, without these details; see --tensor_parallel_size"
_STAGES = "there are no pipeline stages"
_STATIC = "models run as torch has them"
_CKPT = "checkpoints are DeepSpeed's; weights are saved whole, as safetensors"
_EMA = "no moving average of the weights is kept; remove it"


def _details(because: str, names: str) -> tuple[Row, ...]:
    """Switches of one kind: `name=value`, separated by blanks."""
    pairs = (entry.partition("=") for entry in names.split())
    harmless = ("false", "none", "")
    return tuple(
        no_effect(name, "a detail of Paddle's", because, value or "True", harmless=harmless) for name, _, value in pairs
    )


ROWS = (
    *_details(
        _OVERLAP,
        """sharding_comm_buffer_size_MB=2048 sharding_comm_group_call_opt sharding_machine_balanced_2d_partition
        sharding_offload_opt_buffersize_GB=4 sharding_parallel_mesh_dimension=dp data_parallel_config=x dp_comm_overlap
        pp_sharding_comm_overlap dp_allreduce_avg_in_gradinent_scale sp_allreduce_avg_in_gradinent_scale
        gradient_sync_after_accumulate stage1_tensor_fusion tensor_fusion stage1_overlap overlap stage2_overlap
        stage1_broadcast_overlap stage1_allgather_overlap stage1_reduce_avg fuse_optimizer_states sd_release_grads
        split_param sd_sharding_comm_overlap sd_shardingv1_comm_overlap split_norm_comm nccl_comm_group_config=x
        flatten_param_grads offload_queue""",
    ),
    *_details(
        _NO_TENSOR,
        """fuse_sequence_parallel_allreduce sequence_parallel_config=x tp_async_allreduce sp_async_reduce_scatter
        mp_async_allreduce mp_skip_c_identity mp_fused_linear_param_grad_add tp_sync_param sync_grad tp_sync_moment
        replace_with_c_embedding replace_with_parallel_cross_entropy cp_balance_mode=x
        hybrid_parallel_expert_grad_scale=1.0""",
    ),
    *_details("--sequence_parallel_size shares rows out by itself", "split_inputs_sequence_dim"),
    *_details(
        _STAGES,
        """hybrid_parallel_topo_order=pp_first variable_seq_lengths pp_delay_scale_loss pp_sync_param pp_sync_moment
        p2p_cache_shape partial_send_recv pp_release_grads clear_every_step_cache non_batch_p2p_comm
        best_unbalanced_scheduler use_dualpipev forward_backward_overlap_scheduler send_recv_overlap split_backward
        timer reorder_pipeline_priority force_reshard_pp""",
    ),
    *_details(
        _CKPT,
        """save_sharded_model load_sharded_model load_sharded_model_remap_parameter_name ckpt_quant_stage=O1
        save_checkpoint_format=flex_checkpoint load_checkpoint_format=flex_checkpoint aoa_config=x load_via_cpu
        save_hf_memory_growth_threshold=8 save_tokenizer save_rng_states convert_from_hf load_from_hf
        replicate_saved_into_local flex_ckpt_comm_method=broadcast reshard_bucketed_broadcast_max_chunk_gb=2.0
        reshard_master_weight_device_gather ordered_save_group_size=8 enable_zero_cost_checkpoint zcc_workers_num=3
        zcc_pipeline_hooks_capacity_usage=0.6 use_flex_async_save output_signal_dir=x save_last_step
        flash_device_save_steps=10 pdc_download_ckpt pdc_download_timeout=300""",
    ),
    *_details(
        _STATIC,
        """use_intermediate_api auto_parallel_sync_shared_params auto_parallel_resume_form_hybrid_parallel
        using_sonic_moe offload_fp8_expert_master_weight lazy_data_processing skip_profile_timer count_trained_tokens
        pad_token_id=0 moe_router_bias_update_rate=0.001 device=gpu minimum_eval_times=2""",
    ),
    *_details("torch multiplies", "muon_use_symmetric_gemm"),
    refused(
        "muon_exclude_patterns", "weights that AdamW updates", "embeddings, heads and vectors are; remove it", "gate"
    ),
    refused("muon_version", "scale of Muon's update", "use --muon_scale_mode", "2", harmless=("3",)),
    refused(
        "muon_qkv_update_mode",
        "heads one by one",
        "each projection is one matrix",
        "split_head",
        harmless=("split_qkv",),
    ),
    refused("muon_ffn_split", "gate and up one by one", "each projection is one matrix", "False", harmless=("true",)),
    refused(
        "muon_ns_steps",
        "Newton-Schulz steps",
        "DeepSpeed's Muon takes five steps of Newton-Schulz",
        "6",
        harmless=("5",),
    ),
    refused(
        "muon_ns_coeff_type", "Newton-Schulz coefficients", "they are the quintic ones", "aol", harmless=("quintic",)
    ),
    refused("muon_ns_coeffs", "Newton-Schulz coefficients", "they are the quintic ones; remove it", "x"),
    translated(
        "sep_parallel_size",
        "sequence_parallel_size",
        "processes that share the tokens of a row (all-to-all)",
        "1",
        {},
        mapped("sequence_parallel_size", {"-1": None, "0": None, "1": None}, ""),
    ),
    refused(
        "expert_tensor_model_parallel_size",
        "tensor parallelism of experts",
        "use --expert_parallel_size, which leaves each expert whole",
        "2",
        harmless=("-1", "0", "1"),
    ),
    refused("use_expert_parallel", "expert parallelism", "say over how many processes: --expert_parallel_size"),
    refused("enable_auto_parallel", "parallelism that is chosen", "use --deepspeed ds_configs/zero3.json"),
    refused("to_static", "compile the model", "use --torch_compile"),
    refused("refined_recompute", "recompute some operators", "use --activation_checkpointing", "attention_column_ln:1"),
    refused("recompute_mtp_granularity", "recompute further heads", "one token ahead is trained; remove it", "full"),
    refused("recompute_mtp_method", "recompute further heads", "one token ahead is trained; remove it", "uniform"),
    refused("recompute_mtp_modules", "recompute further heads", "one token ahead is trained; remove it", "x"),
    refused("train_mtp_only", "train further heads", "one token ahead is trained; remove it"),
    refused("mtp_distillation_loss", "loss of further heads", "one token ahead is trained; remove it"),
    refused("freeze_training", "change nothing", "use --do_eval True --do_train False"),
    refused("skip_data_intervals", "steps to leave out", "remove the records from the data", "1,2"),
    refused("sharded_model_from_ema", "weights from a moving average", _EMA),
    refused("zcc_save_ema_coef", "moving average of weights", _EMA, "0.99"),
    refused("zcc_ema_interval", "moving average of weights", _EMA, "2", harmless=("1",)),
    refused("zcc_ema_loss_threshold", "moving average of weights", _EMA, "2.0"),
    no_effect("online_merge_ema", "moving average of weights", "no moving average of the weights is kept"),
    works("profile", "write a profile", "True"),
    works("profile_step_start", "first step of a profile", "10"),
    works("profile_step_end", "last step of a profile", "12"),
    refused("save_hf_total_limit", "weights kept", "use --save_total_limit", "3", harmless=("none",)),
    refused(
        "save_hf_steps",
        "steps between weights",
        "use --save_steps with --save_only_model True",
        "50",
        harmless=("-1", "0"),
    ),
    refused("resume_from_huggingface_ckpt", "start from weights", "use --model_name_or_path", "m"),
    refused("wandb_api_key", "key of the tracker", "set WANDB_API_KEY; a key does not belong into a command", "k"),
    refused("wandb_http_proxy", "proxy of the tracker", "set HTTPS_PROXY", "p"),
    refused("metrics_output_path", "file of figures", "hftune.json and trainer_state.json hold them", "f"),
    refused("do_export", "export the model", "the output folder is a Hugging Face model already"),
    translated(
        "fa_version",
        "attn_implementation",
        "version of FlashAttention",
        "2",
        {"attn_implementation": "flash_attention_2"},
        mapped(
            "attn_implementation",
            {"2": "flash_attention_2", "3": "flash_attention_3", "4": "flash_attention_4"},
            "use --attn_implementation",
        ),
    ),
)
