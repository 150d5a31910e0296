"""Names that other tools use for what hftune has: translated, or accepted with a notice, never dropped in silence."""

from __future__ import annotations

# MedicalGPT, its wiki, ERNIEKit, Megatron-SWIFT, and what transformers 5 removed -> hftune.
ALIASES: dict[str, str] = {
    "torch_dtype": "dtype",
    "lora_rank": "lora_r",
    "lora": "use_peft",
    "rslora": "use_rslora",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "template_name": "chat_template",
    "chat_template_path": "chat_template",
    "neft_alpha": "neftune_noise_alpha",
    "train_samples": "max_train_samples",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "lr": "learning_rate",
    "clip_grad": "max_grad_norm",
    "adam_eps": "adam_epsilon",
    "micro_batch_size": "per_device_train_batch_size",
    "train_iters": "max_steps",
    "num_steps": "max_steps",
    "save": "output_dir",
    "save_interval": "save_steps",
    "checkpoint_interval": "save_steps",
    "report_interval": "logging_steps",
    "train_dataset_path": "train_file_dir",
    "eval_dataset_path": "validation_file_dir",
    "recompute": "gradient_checkpointing",
    "warmup_ratio": "warmup_steps",
    "new_special_tokens": "add_special_tokens",
    "make_vocab_size_divisible_by": "pad_vocab_to_multiple_of",
}

# The same name means another thing in each stage.
STAGE_ALIASES: dict[str, dict[str, str]] = {
    "pt": {
        "seq_length": "block_size",
        "max_seq_len": "block_size",
        "model_max_length": "block_size",
        "greedy_intokens": "packing",
    },
    "sft": {
        "model_max_length": "max_length",
        "max_seq_len": "max_length",
        "seq_length": "max_length",
        "greedy_intokens": "packing",
    },
    "rm": {
        "max_source_length": "max_prompt_length",
        "max_target_length": "max_completion_length",
        "max_prompt_len": "max_prompt_length",
        "max_seq_len": "max_length",
    },
    "dpo": {
        "max_source_length": "max_prompt_length",
        "max_target_length": "max_completion_length",
        "max_prompt_len": "max_prompt_length",
        "max_seq_len": "max_length",
    },
    "rl": {
        "max_source_length": "max_prompt_length",
        "max_target_length": "max_completion_length",
        "sft_model_path": "model_name_or_path",
    },
}

# Accepted because scripts in the wild pass them; each notice says why nothing happens.
NO_EFFECT: dict[str, str] = {
    "train_dataset_type": "formats are recognised from the records",
    "eval_dataset_type": "formats are recognised from the records",
    "eval_dataset_prob": "all held-out records are used",
    "model_type": "the architecture is read from the model's config",
    "use_fast_tokenizer": "transformers 5 has fast tokenizers only",
    "tool_format": "tools are rendered by the tokenizer's own chat template",
    "keep_linebreaks": "a paragraph a line; line breaks separate documents",
    "save_safetensors": "weights are always saved as safetensors",
    "group_by_length": "use --train_sampling_strategy group_by_length",
    "logging_dir": "logs are written below --output_dir",
    "fp16_opt_level": "apex is no longer used",
    "fp16_backend": "torch's own mixed precision is used",
    "half_precision_backend": "torch's own mixed precision is used",
    "use_ipex": "transformers has dropped it",
    "jit_mode_eval": "transformers has dropped it",
    "sharded_ddp": "use --deepspeed ds_configs/zero2.json",
    "xpu_backend": "torch finds the backend",
    "tpu_num_cores": "transformers has dropped it",
    "past_index": "transformers has dropped it",
    "torchdynamo": "use --torch_compile",
    "ray_scope": "transformers has dropped it",
    "include_inputs_for_metrics": "use --include_for_metrics inputs",
    "ddp_find_unused_parameters": "DeepSpeed has no such switch",
}

# Fields of the trainers below whose work hftune does itself, before the trainer sees the data: a value given for them
# would be dropped in silence, so it is refused. A value that means "no" is harmless and let through.
DONE_BY_HFTUNE: dict[str, dict[str, str]] = {
    "sft": {
        "assistant_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "completion_only_loss": "answers alone are trained already; --train_on_inputs trains all tokens",
        "truncation_mode": "what is longer than --max_length loses its end",
        "dataset_text_field": "formats are recognised from the records; run_pt.py takes plain text",
        "shuffle_dataset": "the Trainer shuffles; --data_seed sets its seed",
        "eos_token": "turns end as the chat template says; --chat_template takes another",
    },
    "rm": {"eos_token": "turns end as the chat template says; --chat_template takes another"},
    "dpo": {
        "truncation_mode": "prompts lose their start, answers their end; see --max_prompt_length",
        "padding_free": "batches are padded; group them with --train_sampling_strategy group_by_length",
    },
}
DONE_BY_HFTUNE_EVERYWHERE: dict[str, str] = {
    "model_init_kwargs": "use --dtype, --attn_implementation, --model_revision, --load_in_4bit, ...",
    "dataset_num_proc": "use --preprocessing_num_workers",
    "dataset_kwargs": "records are read, masked and tokenised by hftune",
}

# Several values of one name, also from a list in a YAML file, become one text with this between them.
JOINED: dict[str, str] = {
    "train_file_dir": ",",
    "validation_file_dir": ",",
    "train_dataset_prob": ",",
    "datasets": ",",
    "weights": ",",
    "columns": " ",
    "add_tokens": ",",
    "add_special_tokens": ",",
}

# Refused, with what to use instead.
REFUSED: dict[str, str] = {
    "use_dummy_dataset": "use --dummy_data 10000, the number of generated records",
    "data_path": "give each of --train_file_dir (--datasets) with its folder",
    "device_map": "DeepSpeed places the model; start one process a GPU with deepspeed or torchrun",
    "pipeline_model_parallel_size": "there is no pipeline parallelism under the HF Trainer; use ZeRO-3",
    "pipeline_parallel_degree": "there is no pipeline parallelism under the HF Trainer; use ZeRO-3",
    "context_parallel_size": "there is no counterpart; lower --max_length or use ZeRO-3 with checkpointing",
    "new_special_tokens_config": "give the tokens with --add_special_tokens; rows begin as --init_new_embeddings says",
    "init_special_tokens": "use --init_new_embeddings pieces, mean or normal",
    "sequence_parallel": "Megatron's sequence_parallel has no counterpart; use ZeRO-3",
}
