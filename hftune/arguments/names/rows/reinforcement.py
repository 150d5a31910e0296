"""RL from rewards, and distillation."""

from hftune.arguments.names.row import OFF, alias, no_effect, refused, translated, works
from hftune.arguments.names.translators import runs

_RL = ("rl",)
_DISTIL = "there is no distillation; train on the teacher's answers with run_sft.py"
_REWARD = "write it as a Python function and give it with --reward_funcs file.py:function"


def _rl(to: str) -> dict[str, str]:
    return {"rl": to}


ROWS = (
    translated(
        "advantage_estimator",
        "rl_algorithm",
        "GRPO or RLOO",
        "grpo",
        {"rl_algorithm": "grpo"},
        runs.advantage_estimator,
        stages=_RL,
    ),
    translated(
        "sft_model_path",
        "model_name_or_path",
        "model to start from",
        "m",
        {"model_name_or_path": "m", "rl_algorithm": "rloo"},
        runs.sft_model,
        stages=_RL,
    ),
    works("reward_model_path", "reward models", "r", stages=_RL),
    alias("reward_model", _rl("reward_model_path"), "reward models", "r"),
    works("reward_funcs", "reward functions", "f.py:g", stages=_RL),
    works("reward_weights", "weights of the rewards", "1.0", stages=_RL),
    refused("reward_model_plugin", "code around a reward model", _REWARD, "x"),
    *(
        works(name, does, value, stages=_RL)
        for name, does, value in (
            ("num_generations", "answers a prompt", "4"),
            ("num_iterations", "updates a batch", "1"),
            ("temperature", "temperature of answers", "0.9"),
            ("top_p", "nucleus of answers", "0.9"),
            ("top_k", "best tokens of answers", "50"),
            ("repetition_penalty", "penalty of repetition", "1.1"),
            ("epsilon", "clip range", "0.2"),
            ("epsilon_high", "upper clip range", "0.28"),
            ("delta", "clip of two sides", "2.0"),
            ("importance_sampling_level", "token or sequence", "token"),
            ("scale_rewards", "how rewards are scaled", "group"),
            ("log_completions", "log answers", "False"),
            ("top_entropy_quantile", "train uncertain tokens only", "1.0"),
            ("num_generations_eval", "answers in evaluation", "4"),
            ("use_vllm", "answers by vLLM", "False"),
            ("vllm_mode", "vLLM as a server or here", "colocate"),
            ("vllm_server_host", "its host", "h"),
            ("vllm_server_base_url", "its address", "http://h"),
            ("vllm_server_timeout", "seconds to wait", "240"),
            ("vllm_server_port", "its port", "8000"),
            ("vllm_gpu_memory_utilization", "share of the memory", "0.3"),
            ("vllm_tensor_parallel_size", "its devices", "1"),
        )
    ),
    works("generation_batch_size", "answers made together", "8", stages=_RL),
    works("steps_per_generation", "steps on them", "1", stages=_RL),
    alias("overlong_filter", _rl("mask_truncated_completions"), "leave out cut answers", "True"),
    alias("vllm_max_model_len", _rl("vllm_max_model_length"), "vLLM's context", "1024"),
    alias("vllm_server_group_port", _rl("vllm_group_port"), "vLLM's port for weights", "51216"),
    alias(
        "rollout_importance_sampling_mode",
        _rl("vllm_importance_sampling_mode"),
        "correct for vLLM's numbers",
        "token_truncate",
    ),
    alias("rollout_importance_sampling_threshold", _rl("vllm_importance_sampling_cap"), "limit of that", "2.0"),
    alias("wandb_log_unique_prompts", _rl("log_unique_prompts"), "log each prompt once", "True"),
    alias("tau_pos", _rl("sapo_temperature_pos"), "SAPO's temperature", "1.0"),
    alias("tau_neg", _rl("sapo_temperature_neg"), "SAPO's temperature", "1.05"),
    alias("off_policy_sequence_mask_delta", _rl("off_policy_mask_threshold"), "mask stale answers", "0.5"),
    refused(
        "vllm_engine_kwargs", "further settings of vLLM", "start a server with them, and use --vllm_mode server", "x"
    ),
    refused("sleep_level", "free vLLM's memory while training", "use --vllm_enable_sleep_mode", "1"),
    no_effect("log_entropy", "log the entropy", "it is logged"),
    no_effect("log_rollout_offpolicy_metrics", "log vLLM's difference", "it is logged where vLLM is used"),
    refused("kl_in_reward", "KL in the reward", "use --rl_algorithm rloo with --beta"),
    refused(
        "dynamic_sample", "draw prompts again whose answers are all alike", "they give no gradient; raise the batch"
    ),
    no_effect("max_resample_times", "how often", "prompts are not drawn again", "3"),
    refused("async_generate", "answers while training", "answers are made between the steps"),
    refused("multi_turn_scheduler", "conversations with tools", "answers are of one turn", "x"),
    refused("max_turns", "turns of a conversation", "answers are of one turn", "3", harmless=("1", "none")),
    no_effect("completion_length_limit_scope", "limit of a turn", "answers are of one turn", "per_round"),
    refused("use_gym_env", "an environment", _REWARD),
    refused("gym_env", "an environment", _REWARD, "x"),
    refused("vllm_server_pass_dataset", "send columns to the server", "rewards get the columns here"),
    refused("vllm_enable_lora", "send the adapter to vLLM", "merged weights are sent"),
    refused("offload_optimizer", "optimizer on the CPU while answers are made", "use ds_configs/zero2_offload.json"),
    refused("offload_model", "model on the CPU while answers are made", "lower --vllm_gpu_memory_utilization"),
    no_effect("move_model_batches", "pieces in which weights are sent", "TRL decides", "4"),
    *(
        no_effect(name, does, "TRL starts vLLM with its own settings", value)
        for name, does, value in (
            ("vllm_enforce_eager", "no CUDA graphs", "True"),
            ("vllm_enable_prefix_caching", "share prompts", "True"),
            ("vllm_disable_cascade_attn", "no cascade attention", "True"),
            ("vllm_max_num_seqs", "answers at once", "64"),
            ("vllm_limit_mm_per_prompt", "images a prompt", "{}"),
            ("vllm_mm_processor_cache_gb", "cache of images", "4"),
        )
    ),
    *(
        refused(name, "a built-in reward's setting", _REWARD, value, harmless=())
        for name, value in (
            ("cosine_min_len_value_wrong", "-0.5"),
            ("cosine_max_len_value_wrong", "0.0"),
            ("cosine_min_len_value_correct", "1.0"),
            ("cosine_max_len_value_correct", "0.5"),
            ("cosine_max_len", "512"),
            ("repetition_n_grams", "3"),
            ("repetition_max_penalty", "-1.0"),
            ("soft_max_length", "512"),
            ("soft_cache_length", "64"),
        )
    ),
    *(
        refused(name, "FIPO's loss", "use another --loss_type of TRL", value, harmless=())
        for name, value in (
            ("fipo_decay_rate", "32"),
            ("fipo_clip_range", "0.2"),
            ("fipo_clip_high_only", "True"),
            ("fipo_safety_threshold", "4"),
            ("real_tau", "0.5"),
        )
    ),
    # distillation
    *(
        refused(name, does, _DISTIL, value, harmless=() if name in ("lmbda", "opd_lambda", "opd_beta") else OFF)
        for name, does, value in (
            ("teacher_model", "teacher", "m"),
            ("teacher_model_name_or_path", "teacher", "m"),
            ("teacher_model_type", "its architecture", "x"),
            ("teacher_model_revision", "its revision", "v"),
            ("teacher_model_server", "its address", "http://h"),
            ("teacher_tag_key", "column that chooses it", "dataset"),
            ("teacher_device_map", "where its layers go", "auto"),
            ("teacher_load_in_4bit", "quantised teacher", "True"),
            ("teacher_load_in_8bit", "quantised teacher", "True"),
            ("offload_teacher_model", "teacher on the CPU", "True"),
            ("teacher_kl_coef", "weight of its divergence", "1.0"),
            ("lmbda", "share of own answers", "0.5"),
            ("opd_lambda", "share of own answers", "0.5"),
            ("opd_beta", "kind of divergence", "0.5"),
            ("seq_kd", "train on its answers", "True"),
            ("sft_alpha", "weight of the SFT loss", "0.5"),
            ("gkd_logits_topk", "logits of it that count", "64"),
        )
    ),
)
