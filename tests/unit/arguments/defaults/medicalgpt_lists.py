"""MedicalGPT's launch commands, of `lists/`, and the defaults of its argument classes (2026-04), as they are there."""

# fmt: off
from __future__ import annotations

from pathlib import Path

import yaml

_LISTS = yaml.safe_load((Path(__file__).parents[1] / "lists" / "medicalgpt.yaml").read_text(encoding="utf-8"))
_SCRIPTS = {name: name for name in ("pt", "sft", "rm", "dpo", "orpo", "grpo")} | {"rloo": "ppo", "distill": "opd"}
COMMANDS = {kind: " ".join(_LISTS[f"scripts/run_{script}.sh"]["flags"]) for kind, script in _SCRIPTS.items()}
"""By what they train; flags without a value are switched on."""

DEFAULTS = {
    "pt": """
        model_name_or_path -, tokenizer_name_or_path -, load_in_8bit False, load_in_4bit False, cache_dir -,
        model_revision 'main', hf_hub_token -, use_fast_tokenizer False, torch_dtype -, device_map 'auto',
        trust_remote_code True, dataset_name -, dataset_config_name -, train_file_dir -, validation_file_dir -,
        max_train_samples -, max_eval_samples -, streaming False, block_size 1024, overwrite_cache False,
        validation_split_percentage 1, preprocessing_num_workers -, keep_linebreaks True, packing True, use_peft
        True, target_modules 'all', lora_rank 8, lora_dropout 0.05, lora_alpha 32.0, modules_to_save -, peft_path
        -, qlora False
    """,
    "sft": """
        model_name_or_path -, load_in_8bit False, load_in_4bit False, tokenizer_name_or_path -, cache_dir -,
        model_revision 'main', hf_hub_token -, use_fast_tokenizer False, torch_dtype 'float16', device_map
        'auto', trust_remote_code True, rope_scaling -, flash_attn False, shift_attn False, neft_alpha 0,
        dataset_name -, dataset_config_name -, train_file_dir -, validation_file_dir -, max_train_samples -,
        max_eval_samples -, ignore_pad_token_for_loss True, overwrite_cache False, validation_split_percentage 1,
        preprocessing_num_workers -, use_peft True, train_on_inputs False, target_modules 'all', lora_rank 8,
        lora_dropout 0.05, lora_alpha 32.0, modules_to_save -, peft_path -, qlora False, model_max_length 512,
        template_name -, tool_format -
    """,
    "rm": """
        model_name_or_path -, tokenizer_name_or_path -, load_in_4bit False, load_in_8bit False, cache_dir -,
        use_fast_tokenizer False, torch_dtype -, device_map 'auto', trust_remote_code True, dataset_name -,
        dataset_config_name -, train_file_dir -, validation_file_dir -, max_source_length 2048, max_target_length
        512, max_train_samples -, max_eval_samples -, overwrite_cache False, validation_split_percentage 1,
        preprocessing_num_workers 4, use_peft True, target_modules 'all', lora_rank 8, lora_dropout 0.05,
        lora_alpha 32.0, modules_to_save -, peft_path -, template_name -, tool_format -, padding True, max_length
        None, pad_to_multiple_of None, return_tensors 'pt'
    """,
    "dpo": """
        model_name_or_path -, tokenizer_name_or_path -, load_in_8bit False, load_in_4bit False, cache_dir -,
        use_fast_tokenizer False, torch_dtype -, device_map 'auto', trust_remote_code True, dataset_name -,
        dataset_config_name -, train_file_dir -, validation_file_dir -, template_name -, tool_format -,
        per_device_train_batch_size 4, per_device_eval_batch_size 1, max_source_length 2048, max_target_length
        512, min_target_length 4, max_train_samples -, max_eval_samples -, overwrite_cache False,
        validation_split_percentage 1, preprocessing_num_workers 4, use_peft True, qlora False, target_modules -,
        lora_rank 8, lora_dropout 0.05, lora_alpha 16.0, peft_path -, do_train False, do_eval False,
        learning_rate 0.0005, lr_scheduler_type 'cosine', warmup_steps 100, weight_decay 0.05, optim
        'adamw_torch', fp16 True, bf16 False, gradient_checkpointing True, gradient_accumulation_steps 4,
        save_steps 50, eval_steps 50, logging_steps 1, output_dir 'outputs-dpo', max_steps 200, eval_strategy
        'steps', remove_unused_columns False, report_to 'tensorboard'
    """,
    "orpo": """
        model_name_or_path -, tokenizer_name_or_path -, load_in_8bit False, load_in_4bit False, cache_dir -,
        use_fast_tokenizer False, torch_dtype -, device_map 'auto', trust_remote_code True, dataset_name -,
        dataset_config_name -, train_file_dir -, validation_file_dir -, template_name -, tool_format -,
        per_device_train_batch_size 4, per_device_eval_batch_size 1, max_source_length 2048, max_target_length
        512, min_target_length 4, max_train_samples -, max_eval_samples -, overwrite_cache False,
        validation_split_percentage 1, preprocessing_num_workers 4, use_peft True, qlora False, target_modules
        'all', lora_rank 8, lora_dropout 0.05, lora_alpha 16.0, peft_path -, do_train False, do_eval False, beta
        0.1, learning_rate 0.0005, lr_scheduler_type 'cosine', warmup_steps 100, weight_decay 0.05, optim
        'adamw_torch', fp16 True, bf16 False, gradient_checkpointing True, gradient_accumulation_steps 4,
        save_steps 50, eval_steps 50, logging_steps 1, output_dir 'outputs-dpo', max_steps 200, eval_strategy
        'steps', remove_unused_columns False, report_to 'tensorboard', orpo_beta 0.1
    """,
    "distill": """
        model_name_or_path -, tokenizer_name_or_path -, load_in_8bit False, load_in_4bit False, cache_dir -,
        model_revision 'main', hf_hub_token -, use_fast_tokenizer False, torch_dtype 'float16', device_map 'auto',
        teacher_device_map 'auto', trust_remote_code True, rope_scaling -, flash_attn False, dataset_name -,
        dataset_config_name -, train_file_dir -, validation_file_dir -, max_train_samples -, max_eval_samples -,
        overwrite_cache False, validation_split_percentage 1, preprocessing_num_workers -, use_peft True,
        target_modules 'all', lora_rank 8, lora_dropout 0.05, lora_alpha 16.0, modules_to_save -, peft_path -, qlora
        False, template_name -, tool_format -, max_prompt_length 1024, opd_lambda 0.5, opd_beta 0.5,
        teacher_load_in_8bit False, teacher_load_in_4bit False, learning_rate 2e-5, logging_steps 10,
        gradient_checkpointing True, temperature 0.9, max_new_tokens 128
    """,
    "grpo": """
        tokenizer_name_or_path -, dataset_name 'openai/gsm8k', train_file_dir -, train_samples -1, subset_name
        'main', dataset_splits 'train', preprocessing_num_workers 10, qlora False
    """,
    "rloo": """
        sft_model_path -, reward_model_path -, dataset_name -, dataset_config -, dataset_train_split 'train',
        dataset_test_split 'test', train_file_dir -, validation_file_dir -, template_name -, max_source_length
        1024
    """,
}
"""Name and value, `-` for None."""
