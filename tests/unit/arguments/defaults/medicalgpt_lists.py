"""MedicalGPT's launch commands and the defaults of its argument classes (2026-04), as its repository has them."""

# fmt: off
from __future__ import annotations

COMMANDS = {
    "pt": """
        --model_name_or_path Qwen/Qwen3.5-2B --train_file_dir ./data/pretrain --validation_file_dir
        ./data/pretrain --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --do_train --do_eval
        --use_peft True --seed 42 --max_train_samples 10000 --max_eval_samples 10 --num_train_epochs 0.5
        --learning_rate 2e-4 --warmup_steps 5 --weight_decay 0.01 --logging_strategy steps --logging_steps 10
        --eval_steps 50 --eval_strategy steps --save_steps 500 --save_strategy steps --save_total_limit 13
        --gradient_accumulation_steps 8 --preprocessing_num_workers 10 --block_size 512 --packing True
        --output_dir outputs-pt-qwen-v1 --ddp_timeout 30000 --logging_first_step True --target_modules all
        --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --torch_dtype bfloat16 --bf16 --report_to tensorboard
        --ddp_find_unused_parameters False --gradient_checkpointing True --cache_dir ./cache
    """,
    "sft": """
        --model_name_or_path Qwen/Qwen3.5-0.8B --train_file_dir ./data/sft --validation_file_dir ./data/sft
        --per_device_train_batch_size 2 --per_device_eval_batch_size 1 --do_train --do_eval --use_peft True
        --max_train_samples 1000 --max_eval_samples 10 --model_max_length 512 --num_train_epochs 1
        --learning_rate 2e-5 --warmup_steps 5 --weight_decay 0.05 --logging_strategy steps --logging_steps 10
        --eval_steps 50 --eval_strategy steps --save_steps 500 --save_strategy steps --save_total_limit 13
        --gradient_accumulation_steps 8 --preprocessing_num_workers 4 --output_dir outputs-sft-qwen-v1
        --ddp_timeout 30000 --logging_first_step True --target_modules all --lora_rank 8 --lora_alpha 16
        --lora_dropout 0.05 --torch_dtype bfloat16 --bf16 --report_to tensorboard --ddp_find_unused_parameters
        False --gradient_checkpointing True --tool_format default --cache_dir ./cache --flash_attn True
    """,
    "rm": """
        --model_name_or_path Qwen/Qwen3.5-2B --train_file_dir ./data/reward --validation_file_dir ./data/reward
        --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --per_device_eval_batch_size 4 --do_train
        --use_peft True --seed 42 --max_train_samples 1000 --max_eval_samples 10 --num_train_epochs 1
        --learning_rate 2e-5 --warmup_steps 5 --weight_decay 0.001 --logging_strategy steps --logging_steps 10
        --eval_steps 50 --eval_strategy steps --save_steps 500 --save_strategy steps --save_total_limit 3
        --max_source_length 1024 --max_target_length 256 --output_dir outputs-rm-qwen-v1 --overwrite_output_dir
        --ddp_timeout 30000 --logging_first_step True --target_modules all --lora_rank 8 --lora_alpha 16
        --lora_dropout 0.05 --bf16 --torch_dtype bfloat16 --report_to tensorboard --ddp_find_unused_parameters
        False --remove_unused_columns False --gradient_checkpointing True
    """,
    "dpo": """
        --model_name_or_path Qwen/Qwen3.5-2B --train_file_dir ./data/reward --validation_file_dir ./data/reward
        --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --per_device_eval_batch_size 1 --do_train
        --do_eval --use_peft True --max_train_samples 1000 --max_eval_samples 10 --max_steps 100 --eval_steps 20
        --save_steps 50 --max_source_length 1024 --max_target_length 512 --output_dir outputs-dpo-qwen-v1
        --target_modules all --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --torch_dtype bfloat16 --bf16 True
        --fp16 False --report_to tensorboard --remove_unused_columns False --gradient_checkpointing True
        --tool_format default --cache_dir ./cache
    """,
    "orpo": """
        --model_name_or_path Qwen/Qwen3.5-2B --train_file_dir ./data/reward --per_device_train_batch_size 2
        --per_device_eval_batch_size 2 --gradient_accumulation_steps 8 --do_train --do_eval --use_peft True
        --max_train_samples 1000 --max_eval_samples 50 --max_steps 100 --eval_steps 20 --save_steps 50
        --max_source_length 1024 --max_target_length 512 --output_dir outputs-orpo-qwen-v1 --target_modules all
        --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --torch_dtype bfloat16 --bf16 True --report_to
        tensorboard --remove_unused_columns False --gradient_checkpointing True --orpo_beta 0.1 --cache_dir
        ./cache
    """,
    "rloo": """
        --sft_model_path Qwen/Qwen3.5-2B --reward_model_path Qwen/Qwen3.5-2B --model_name_or_path Qwen/Qwen3.5-2B
        --dtype bfloat16 --train_file_dir ./data/sft --validation_file_dir ./data/sft --max_source_length 1024
        --max_completion_length 1000 --per_device_train_batch_size 1 --gradient_accumulation_steps 4
        --gradient_checkpointing True --do_train --max_steps 3000 --output_dir outputs-ppo-qwen-v1
        --eval_strategy steps --eval_steps 100 --num_train_epochs 3 --report_to tensorboard
    """,
    "distill": """
        --model_name_or_path Qwen/Qwen3.5-2B --teacher_model_name_or_path Qwen/Qwen3.5-7B-Instruct --train_file_dir
        ./data/sft --validation_file_dir ./data/sft --per_device_train_batch_size 2 --per_device_eval_batch_size 1
        --do_train --do_eval --use_peft True --teacher_load_in_4bit True --max_train_samples 1000 --max_eval_samples
        10 --max_prompt_length 1024 --max_new_tokens 512 --num_train_epochs 1 --learning_rate 5e-5 --warmup_steps 5
        --weight_decay 0.05 --logging_strategy steps --logging_steps 10 --eval_steps 50 --eval_strategy steps
        --save_steps 500 --save_strategy steps --save_total_limit 3 --gradient_accumulation_steps 8
        --preprocessing_num_workers 4 --output_dir outputs-opd-qwen-v1 --ddp_timeout 30000 --logging_first_step True
        --target_modules all --lora_rank 8 --lora_alpha 16 --lora_dropout 0.05 --torch_dtype bfloat16 --bf16
        --report_to tensorboard --ddp_find_unused_parameters False --gradient_checkpointing True --opd_lambda 0.5
        --opd_beta 0.5 --temperature 0.9 --tool_format default --cache_dir ./cache
    """,
    "grpo": """
        --model_name_or_path Qwen/Qwen3.5-2B --train_file_dir data/grpo --train_samples -1 --max_steps -1
        --num_train_epochs 1 --save_steps 50 --save_strategy steps --save_total_limit 13 --output_dir
        outputs-grpo-qwen-v1 --dtype bfloat16 --bf16 True --report_to tensorboard --remove_unused_columns False
        --gradient_checkpointing False --beta 0.001 --learning_rate 5.0e-7 --lr_scheduler_type cosine
        --warmup_ratio 0.03 --use_vllm False --logging_steps 10 --use_peft True --qlora False --load_in_4bit
        False --lora_target_modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj --lora_r 16
        --lora_alpha 32 --lora_dropout 0.1 --per_device_train_batch_size 4 --per_device_eval_batch_size 1
        --num_generations 4 --gradient_accumulation_steps 1 --max_completion_length 512
    """,
}
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
