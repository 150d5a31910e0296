"""The names that each tool has, as its own reference or code lists them; the table is checked against them."""

from __future__ import annotations

# ERNIEKit: docs/training_eval_args.md, chat_args.md, erniekit/hparams and examples/configs.
_ERNIEKIT = """
    actscale_moving_rate adam_beta1 adam_beta2 adam_epsilon adaptive_max_imgtoken_option adaptive_max_imgtoken_rate
    adaptive_norm_clip add_sys_token add_tail_layers amp_custom_black_list amp_custom_white_list amp_master_grad
    apply_hadamard apply_online_actscale_step attention_probs_dropout_prob attn_implementation attn_sep
    balanced_image_preprocess batch_size beta bf16 block_size bos_token_id buffer_size chat_template compute_type
    continue_training copy_tokenizer corpus_name data_filelist data_weights dataloader_num_workers dataset_type
    decay_function decay_steps depth disable_ckpt_quant disable_pipeline_warmup disable_tqdm distributed_dataloader
    do_eval do_train download_hub dpo_benchmark dpop_lambda drop_history_with_k drop_untrainble_sample
    dropout_warmup_steps embed_dim enable_fp8_quantize_analysis enable_global_training_logs enable_mtp_magic_send
    enable_thinking encode_one_turn engine_worker_queue_port eos_token_id eval_dataset_path eval_dataset_prob
    eval_dataset_type eval_iters eval_steps evaluation_strategy example_from_same_task_prob factor fine_tuning
    fp16_opt_level fp8_force_clear_state fp8_format_type freeze_config frequency_penalty from_scratch
    fuse_gate_detach_matmul fuse_linear fuse_rms_norm fuse_rope fuse_softmax_mask fuse_swiglu gc_interval
    global_logging_interval gpu_memory_utilization gradient_accumulation_steps greedy_intokens hadamard_block_size
    hf_hub_id hidden_act hidden_dropout_prob hidden_size host ignore_load_lr_and_optim ignore_save_lr_and_optim
    im_prefix_length image_dtype image_token_len in_channels in_chans in_tokens_batching input_dir kv_cache_ratio
    label_smoothing layerwise_lr_decay_bound learning_rate load_args_from_api log_global_grad_norm logging_dir
    logging_steps lora lora_alpha lora_path lora_plus_scale lora_rank loss_subbatch_seqlen loss_type lr_end
    lr_scheduler lr_scheduler_type mask_out_eos_token max_estimate_samples max_evaluate_steps max_model_len
    max_new_tokens max_num_seqs max_pixels max_position_embeddings max_prompt_len max_seq_len max_shard_size
    max_shot max_steps mergekit_task_config metrics_port min_lr min_pixels min_shot min_tokens mix_strategy
    mlp_ratio modality_interleave modality_ratio model_name_or_path model_type moe_aux_loss_lambda moe_dropout_prob
    moe_gate moe_gate_lr_ratio moe_group moe_group_experts moe_multimodal_dispatch_use_allgather
    moe_orthogonal_loss_lambda moe_use_aux_free moe_use_aux_free_update_coef moe_use_hard_gate
    moe_with_send_router_loss moe_z_loss_lambda multi_token_pred_lambda multimodal no_recompute_layers
    normalize_logps num_comparisons num_cycles num_heads num_nextn_predict_layers num_of_gpus num_samples_each_epoch
    num_train_epochs offline_dataset_path offload_optim offload_recompute_inputs offset_alpha one_sample_in_one_seq
    optim optim_shard_num output_dir overwrite_output_dir packing packing_size pad_to_max_seqlen padding patch_size
    per_device_eval_batch_size per_device_train_batch_size pipeline_parallel_config pipeline_parallel_degree port
    power pp_need_data pp_need_data_degree pp_seg_method pre_alloc_memory pref_loss_ratio prefetch_factor
    presence_penalty prompt_dir pseudo_sampling_prob quant_input_grad quant_weight_grad quantization random_shuffle
    recompute recompute_granularity recompute_use_reentrant record_optimizer_stat ref_model_update_steps
    reference_free refined_recompute release_grads render_timestamp repetition_penalty reshard_save_then_exit
    rope_3d rslora rslora_plus same_data sampling_wo_replacement_data_resuming
    save_sharding_stage1_model_include_freeze_params save_steps save_strategy save_total_limit scale_loss seed
    sequence_parallel serialize_output server_tp_degree sft_benchmark sft_image_normalize sft_image_rescale
    sft_loss_ratio sft_replace_ids sft_shift_by_one sharding sharding_comm_buffer_size_MB sharding_parallel_config
    sharding_parallel_degree simpo_gamma spatial_conv_size spatial_merge_size spatial_patch_size split stage stream
    stream_options temperature tensor_parallel_config tensor_parallel_degree tensor_parallel_output
    tensorwise_offload_optimizer text_dataset_path text_dataset_prob text_use_train_part_sharding token_balance_loss
    tokenizer tokenizer_name top_p train_dataset_path train_dataset_prob train_dataset_type train_emb_only
    train_moe_only trigger_data_prob unified_checkpoint unified_checkpoint_config use_async_save
    use_attn_mask_start_row_indices use_attn_mask_startend_row_indices use_cls use_flash_attention
    use_flash_attn_with_mask use_fp8 use_fused_head_and_loss_fn use_global_causal_attn use_huggingface_model
    use_lowprecision_moment use_mem_eff_attn use_moe use_ortho_loss_callback use_pic_id use_recompute
    use_recompute_loss_fn use_recompute_moe use_recompute_mtp use_sp_callback use_sparse_flash_attn
    use_sparse_head_and_loss_fn use_template use_train_part_sharding use_warmup variable_resolution video_fps
    video_frames_sample video_max_frames video_max_pixels video_min_frames video_min_pixels video_target_frames
    virtual_pp_degree vision_config vision_model_name_or_path visual_ld vit_lr_ratio vit_num_recompute_layers
    vit_second_fwd_batch_size warmup_steps weight_decay weight_quantize_algo
"""

# PaddleFormers' TrainingArguments, which ERNIEKit's extend.
_PADDLEFORMERS = """
    adam_beta1 adam_beta2 adam_epsilon amp_custom_black_list amp_custom_white_list amp_master_grad aoa_config
    auto_parallel_resume_form_hybrid_parallel auto_parallel_sync_shared_params batch_p2p_comm
    best_unbalanced_scheduler bf16 bf16_full_eval ckpt_quant_stage clear_every_step_cache context_parallel_size
    convert_from_hf count_trained_tokens cp_balance_mode cp_comm_type data_parallel_config dataloader_drop_last
    dataloader_num_workers dataloader_shuffle ddp_find_unused_parameters deterministic_mode device disable_tqdm
    distributed_dataloader do_eval do_export do_predict do_train dp_allreduce_avg_in_gradinent_scale dp_comm_overlap
    dsa_indexer_loss_coeff enable_auto_parallel enable_zero_cost_checkpoint eval_accumulation_steps eval_steps
    evaluation_strategy expert_model_parallel_size expert_tensor_model_parallel_size fa_version
    flash_device_save_steps flatten_param_grads flex_ckpt_comm_method force_reshard_pp
    forward_backward_overlap_scheduler fp16 fp16_full_eval fp16_opt_level freeze_training fuse_optimizer_states
    fuse_sequence_parallel_allreduce gradient_accumulation_steps gradient_sync_after_accumulate greater_is_better
    hybrid_parallel_expert_grad_scale hybrid_parallel_topo_order ignore_data_skip ignore_load_lr_and_optim
    ignore_save_lr_and_optim label_names lazy_data_processing learning_rate load_best_model_at_end
    load_checkpoint_format load_from_hf load_sharded_model load_sharded_model_remap_parameter_name load_via_cpu
    local_rank log_on_each_node logging_dir logging_first_step logging_steps logging_strategy lr_end
    lr_scheduler_type max_evaluate_steps max_grad_norm max_steps metric_for_best_model metrics_output_path min_lr
    minimum_eval_times moe_router_bias_update_rate mp_async_allreduce mp_fused_linear_param_grad_add
    mp_skip_c_identity mtp_distillation_loss mtp_num_layers muon_exclude_patterns muon_extra_scale_factor
    muon_ffn_split muon_momentum muon_ns_coeff_type muon_ns_coeffs muon_ns_steps muon_qkv_update_mode
    muon_use_symmetric_gemm muon_version nccl_comm_group_config no_cuda non_batch_p2p_comm num_cycles
    num_nextn_predict_layers num_train_epochs offload_fp8_expert_master_weight offload_queue online_merge_ema optim
    optim_shard_num ordered_save_group_size output_dir output_signal_dir overlap overlap_p2p_comm
    overwrite_output_dir p2p_cache_shape pad_token_id partial_send_recv past_index pdc_download_ckpt
    pdc_download_timeout per_device_eval_batch_size per_device_train_batch_size pipeline_model_parallel_size
    pipeline_parallel_config power pp_delay_scale_loss pp_release_grads pp_sharding_comm_overlap pp_sync_moment
    pp_sync_param pre_alloc_memory prediction_loss_only prefetch_factor profile profile_step_end profile_step_start
    recompute_granularity recompute_method recompute_modules recompute_mtp_granularity recompute_mtp_method
    recompute_mtp_modules recompute_num_layers release_grads remove_unused_columns reorder_pipeline_priority
    replace_with_c_embedding replace_with_parallel_cross_entropy replicate_saved_into_local report_to
    reshard_bucketed_broadcast_max_chunk_gb reshard_master_weight_device_gather resume_from_checkpoint
    resume_from_huggingface_ckpt run_name save_checkpoint_format save_hf_memory_growth_threshold save_hf_steps
    save_hf_total_limit save_last_step save_on_each_node save_rng_states save_safetensors save_sharded_model
    save_sharding_stage1_model_include_freeze_params save_steps save_strategy save_tokenizer save_total_limit
    scale_loss sd_release_grads sd_sharding_comm_overlap sd_shardingv1_comm_overlap seed send_recv_overlap
    sep_parallel_size sequence_parallel sequence_parallel_config sharded_model_from_ema sharding
    sharding_comm_buffer_size_MB sharding_comm_group_call_opt sharding_degree sharding_machine_balanced_2d_partition
    sharding_offload_opt_buffersize_GB sharding_parallel_config sharding_parallel_mesh_dimension
    sharding_parallel_size skip_data_intervals skip_memory_metrics skip_profile_timer
    sp_allreduce_avg_in_gradinent_scale sp_async_reduce_scatter split_backward split_inputs_sequence_dim
    split_norm_comm split_param stage1_allgather_overlap stage1_broadcast_overlap stage1_overlap stage1_reduce_avg
    stage1_tensor_fusion stage2_overlap sync_grad tensor_fusion tensor_model_parallel_size tensor_parallel_config
    tensorwise_offload_optimizer timer to_static tp_async_allreduce tp_sync_moment tp_sync_param train_mtp_only
    unified_checkpoint unified_checkpoint_config use_async_save use_cache use_dualpipev use_expert_parallel
    use_flex_async_save use_intermediate_api use_lowprecision_moment using_sonic_moe variable_seq_lengths
    wandb_api_key wandb_http_proxy warmup_ratio warmup_steps weight_decay zcc_ema_interval zcc_ema_loss_threshold
    zcc_pipeline_hooks_capacity_usage zcc_save_ema_coef zcc_workers_num
"""

# Megatron-SWIFT's and ms-swift's base parameters (2026-08), with names of older versions.
_MEGATRON_SWIFT = """
    lorap_lr_ratio
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split accumulate_allreduce_grads_in_fp32
    adam_beta1 adam_beta2 adam_eps adapters add_non_thinking_prefix add_version advantage_estimator agent_template
    align_grad_reduce align_param_gather aligner_lr apply_dsa_kernel_fusion apply_query_key_layer_scaling
    apply_rope_fusion apply_wd_to_qk_layernorm async_generate async_save attention_backend attention_softmax_in_fp32
    attn_impl batch_p2p_comm beta bf16 bias_activation_fusion bias_dropout_fusion bnb_4bit_compute_dtype
    bnb_4bit_quant_storage bnb_4bit_quant_type bnb_4bit_use_double_quant bridge_backend cached_dataset
    cached_val_dataset calculate_per_token_loss callbacks center_rewards_coefficient check_model clip_grad columns
    completion_length_limit_scope context_parallel_size cosine_max_len cosine_max_len_value_correct
    cosine_max_len_value_wrong cosine_min_len_value_correct cosine_min_len_value_wrong cp_comm_type
    cp_partition_mode create_checkpoint_symlink cross_entropy_fusion_impl cross_entropy_loss_fusion csa_dense_mode
    custom_dataset_info data_parallel_random_init data_parallel_sharding_strategy data_seed data_sharding
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor dataset
    dataset_num_proc dataset_shuffle ddp_backend ddp_timeout decoder_first_pipeline_num_layers
    decoder_last_pipeline_num_layers delta desirable_weight deterministic_mode device_groups device_map
    disable_auto_column_mapping disable_ignore_empty_think dist_ckpt_optim_fully_reshardable
    dist_ckpt_save_pre_mcore_014 distrib_optim_fully_reshardable_mem_efficient download_mode dsa_indexer_loss_coeff
    dsa_indexer_use_sparse_loss dynamic_sample enable_channel_loss enable_dft_loss enable_npu_model_patch
    enable_thinking end_weight_decay epsilon epsilon_high eval_iters eval_steps exist_ok exp_avg_dtype
    exp_avg_sq_dtype expert_model_parallel_size expert_tensor_parallel_size experts_impl external_plugins
    f_divergence_type finetune fipo_clip_high_only fipo_clip_range fipo_decay_rate fipo_safety_threshold fp16
    fp4_format fp4_param_gather fp4_recipe fp8_amax_compute_algo fp8_amax_history_len fp8_format fp8_param_gather
    fp8_recipe freeze_aligner freeze_llm freeze_parameters freeze_parameters_ratio freeze_parameters_regex
    freeze_vit generation_batch_size gkd_logits_topk global_batch_size gradient_accumulation_fusion
    greater_is_better group_by_length gym_env hqq_axis hub_token ignore_args_error importance_sampling_level
    init_special_tokens init_strategy interleave_prob is_binary_loss_scale kl_in_reward label_smoothing
    language_model_only lazy_tokenize linear_decoupled_in_proj lmbda load load_args load_data_args
    load_from_cache_file local_rank local_repo_path log_completions log_entropy log_rollout_offpolicy_metrics
    logging_steps logprobs lora_alpha lora_bias lora_dropout lora_dtype lora_rank loss_scale loss_type lr
    lr_decay_iters lr_decay_style lr_warmup_fraction lr_warmup_init lr_warmup_iters lr_wsd_decay_iters
    lr_wsd_decay_style main_grads_dtype main_params_dtype make_vocab_size_divisible_by manual_gc manual_gc_eval
    manual_gc_steps masked_softmax_fusion max_completion_length max_length max_memory max_model_len max_new_tokens
    max_pixels max_resample_times max_shard_size max_turns mcore_adapter mcore_model mcore_ref_adapter
    mcore_ref_model megatron_extra_kwargs merge_lora metric_for_best_model mhc_recompute_layer_num micro_batch_size
    microbatch_group_size_per_vp_stage min_lr mlp_padding_free model model_author model_kwargs model_name
    model_revision model_type modules_to_save moe_aux_loss_coeff moe_enable_deepep moe_expert_capacity_factor
    moe_grouped_gemm moe_layer_recompute moe_pad_expert_input_to_capacity moe_permute_fusion moe_router_dtype
    moe_router_load_balancing_type moe_shared_expert_overlap moe_token_dispatcher_type moe_token_drop_policy
    moe_z_loss_coeff move_model_batches mrl_dims mtp_decoder_input_detach mtp_loss_scaling_factor mtp_num_layers
    mtp_shared_weights multi_turn_scheduler muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec
    muon_momentum muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode
    muon_use_nesterov nccl_comm_warmup new_special_tokens new_special_tokens_config no_load_optim no_load_rng
    no_save_optim no_save_rng norm_bbox num_beams num_generations num_generations_eval num_iterations num_labels
    num_train_epochs off_policy_sequence_mask_delta offload_bridge offload_model offload_optimizer
    offload_teacher_model optimizer optimizer_cpu_offload optimizer_cuda_graph optimizer_offload_fraction output_dir
    overlap_grad_reduce overlap_p2p_comm overlap_param_gather overlap_param_gather_with_optimizer_step
    overlong_filter packing packing_length packing_num_proc padding_free padding_side perform_initialization
    pipeline_model_parallel_layout pipeline_model_parallel_size preserve_thinking problem_type quant_bits
    quant_method ray_exp_name real_tau recompute_granularity recompute_method recompute_modules recompute_num_layers
    ref_adapters ref_model ref_model_mixup_alpha ref_model_sync_steps reference_free remove_unused_columns
    repetition_max_penalty repetition_n_grams repetition_penalty report_to response_prefix reward_funcs reward_model
    reward_model_plugin reward_weights rlhf_type rollout_importance_sampling_mode
    rollout_importance_sampling_threshold rope_scaling router_replay_mode rpo_alpha save save_interval
    save_missing_weights save_safetensors save_steps save_strategy save_total_limit scale_rewards seed seq_kd
    sequence_packing_scheduler sequence_parallel sequence_parallel_size sft_alpha sgd_momentum shuffle_buffer_size
    skip_megatron_init sleep_level soft_cache_length soft_max_length split_dataset_ratio start_weight_decay
    steps_per_generation stop_words stopping_strategy stream streaming strict structured_outputs_regex
    swanlab_exp_name swanlab_project sync_ref_model system target_modules target_regex task_type tau_neg tau_pos
    te_rng_tracker teacher_kl_coef teacher_model teacher_model_revision teacher_model_server teacher_model_type
    teacher_tag_key temperature template template_backend tensor_model_parallel_size tensorboard_dir
    tensorboard_queue_size test_convert_dtype test_convert_precision to_hf to_mcore top_entropy_quantile top_k
    top_logprobs top_p torch_dtype tp_comm_overlap train_dataloader_shuffle train_iters train_type
    trainable_parameters trainable_parameters_regex truncation_strategy tuner_backend tuner_type undesirable_weight
    use_chat_template use_cpu_initialization use_distributed_optimizer use_fused_mhc use_gym_env use_hf
    use_megatron_fsdp use_persistent_ckpt_worker use_precision_aware_optimizer use_ray use_rslora use_vllm
    val_dataset val_dataset_shuffle virtual_pipeline_model_parallel_size vit_attn_impl vit_gradient_checkpointing
    vit_gradient_checkpointing_kwargs vit_lr vllm_disable_cascade_attn vllm_enable_lora vllm_enable_prefix_caching
    vllm_enforce_eager vllm_engine_kwargs vllm_gpu_memory_utilization vllm_limit_mm_per_prompt vllm_max_model_len
    vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_mode vllm_server_base_url vllm_server_group_port
    vllm_server_host vllm_server_pass_dataset vllm_server_port vllm_server_timeout vllm_tensor_parallel_size
    wandb_exp_name wandb_log_unique_prompts wandb_project weight_decay weight_decay_incr_style
"""

# every dataclass field and launch line of MedicalGPT (2026-04), and its merging tool.
_MEDICALGPT = """
    base_model base_model_name_or_path beta bf16 block_size cache_dir chat_template_path dataset_config
    dataset_config_name dataset_name dataset_splits dataset_test_split dataset_train_split
    ddp_find_unused_parameters ddp_timeout device_map do_eval do_train dtype eval_steps eval_strategy flash_attn
    fp16 gradient_accumulation_steps gradient_checkpointing hf_hub_model_id hf_hub_token ignore_pad_token_for_loss
    keep_linebreaks learning_rate load_in_4bit load_in_8bit logging_first_step logging_steps logging_strategy
    lora_alpha lora_dropout lora_model lora_r lora_rank lora_target_modules lr_scheduler_type max_completion_length
    max_eval_samples max_length max_new_tokens max_prompt_length max_source_length max_steps max_target_length
    max_train_samples min_target_length model_max_length model_name_or_path model_revision modules_to_save
    neft_alpha num_generations num_train_epochs opd_beta opd_lambda optim orpo_beta output_dir overwrite_cache
    overwrite_output_dir packing pad_to_multiple_of padding peft_model_path peft_path per_device_eval_batch_size
    per_device_train_batch_size preprocessing_num_workers qlora remove_unused_columns report_to resize_emb
    reward_model_path rope_scaling save_steps save_strategy save_total_limit seed sft_model_path shift_attn
    streaming subset_name target_modules teacher_device_map teacher_load_in_4bit teacher_load_in_8bit
    teacher_model_name_or_path temperature template_name tokenizer tokenizer_name_or_path tool_format torch_dtype
    train_file_dir train_on_inputs train_samples trust_remote_code use_fast_tokenizer use_peft use_vllm
    validation_file_dir validation_split_percentage warmup_ratio warmup_steps weight_decay
"""

# fms_fsdp/config/training.py (2025-07).
_FMS_FSDP = """
    batch_size bol_token bos_token checkpoint_interval ckpt_load_path ckpt_save_path col_name data_path datasets
    eol_token eos_token file_type fsdp_activation_checkpointing grad_clip_thresh learning_rate logical_shards
    low_cpu_fsdp mixed_precision model_arch model_path model_variant n_speculator_heads num_steps num_workers
    profiler_rank0_only report_interval resuming_dataset seed selective_checkpointing sep_token seq_length
    sharding_strategy speculator_scale_input speculator_tie_weights speculator_width stage2_batch_size
    stage2_prompt_length stage2_seq_length stage2_start_step strip_tokens tokenizer_path tp_size tracker tracker_dir
    tracker_project_name tracker_run_id training_stage use_dummy_dataset use_profiler use_torch_compile vocab_size
    weights
"""

# names that transformers 5 has removed.
_TRANSFORMERS_BEFORE_5 = """
    adafactor dispatch_batches evaluation_strategy fp16_backend fp16_opt_level fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap group_by_length half_precision_backend include_inputs_for_metrics
    include_tokens_per_second jit_mode_eval logging_dir mp_parameters no_cuda overwrite_output_dir past_index
    per_gpu_eval_batch_size per_gpu_train_batch_size push_to_hub_model_id push_to_hub_organization push_to_hub_token
    ray_scope save_safetensors sharded_ddp split_batches torch_dtype torchdynamo tpu_metrics_debug tpu_num_cores
    use_ipex use_mps_device warmup_ratio xpu_backend
"""

TOOLS: dict[str, tuple[str, ...]] = {
    "ERNIEKit": tuple(_ERNIEKIT.split()),
    "PaddleFormers": tuple(_PADDLEFORMERS.split()),
    "Megatron-SWIFT": tuple(_MEGATRON_SWIFT.split()),
    "MedicalGPT": tuple(_MEDICALGPT.split()),
    "fms-fsdp": tuple(_FMS_FSDP.split()),
    "transformers before 5": tuple(_TRANSFORMERS_BEFORE_5.split()),
}


def tools_of(name: str) -> list[str]:
    """The tools that have a name."""
    return [tool for tool, names in TOOLS.items() if name in names]
