"""Arguments that have no effect without another one: one table, one rule, for runs and for `hftune plan`.

An argument that was given and would not be read is refused, whatever its value. Two things are not mistakes: a value
that asks for nothing (False, 0, null), and one next to a switch that was turned off by name (`--use_peft False` in a
command that is kept for both); the latter is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hftune.arguments.ranges import SMOOTHED, UNPAIRED
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.preflight.facts import Facts
from hftune.preflight.rules.optimizer import REACTING, WSD

_OFF = ("False", "no", "none", "None", "")
# transformers hands none of Adam's numbers to these.
_NOT_ADAM = ("sgd", "adagrad", "rmsprop", "adafactor", "lomo", "adalomo")
# TRL's losses of GRPO that clip the ratio from both sides.
_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


@dataclass(frozen=True)
class Need:
    """Arguments, and the one without which they are not read.

    Args:
        names: With spaces between them.
        other: The argument that they need.
        values: Values of it with which they are read; empty for all but those that turn it off.
        holds: Asked in place of the value, where more than that decides.
        fails: Upstream does not pass them over: they are refused next to what was turned off by name, too.
    """

    names: str
    other: str
    values: tuple[str, ...] = ()
    holds: Callable[[Facts[Any]], bool] | None = None
    fails: bool = False


def _trains_lora(facts: Facts[Any]) -> bool:
    return facts.adapter_args.use_peft and not facts.adapter_args.train_new_tokens_only


def _holds_out(facts: Facts[Any]) -> bool:
    data = facts.data_args
    # A tokenised folder may hold a split of its own.
    return bool(data.validation_file_dir or data.validation_split_percentage > 0 or data.tokenized)


def _limits_records(facts: Facts[Any]) -> bool:
    return facts.data_args.max_train_samples > 0 or facts.data_args.max_eval_samples > 0


def _compares_checkpoints(facts: Facts[Any]) -> bool:
    args = facts.training_args
    return args.load_best_model_at_end or args.save_strategy == "best" or args.schedule in REACTING


def _reads_records(facts: Facts[Any]) -> bool:
    return bool(facts.data_args.train_file_dir or facts.data_args.dataset_name or facts.data_args.validation_file_dir)


def _packs(facts: Facts[Any]) -> bool:
    return bool(facts.training_args.packing or facts.training_args.eval_packing)


def _drops_out(facts: Facts[Any]) -> bool:
    return facts.training_args.asks_for_dropout


def _has_optim(facts: Facts[Any], *beginnings: str) -> bool:
    return facts.training_args.optim_name.startswith(beginnings)


NEEDS = (
    # Adapters.
    Need(
        "lora_r lora_alpha lora_dropout lora_target_modules target_regex exclude_modules layers_to_transform "
        "lora_target_parameters init_lora_weights rank_pattern alpha_pattern trainable_token_indices "
        "lora_modules_to_save lora_bias use_rslora use_dora fused_lora loraplus_lr_ratio",
        "use_peft",
        holds=_trains_lora,
    ),
    Need("loraplus_lr_embedding", "loraplus_lr_ratio"),
    Need("create_new_adapter", "peft_path"),
    Need("bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant", "load_in_4bit"),
    Need("freeze_extra_modules freeze_trainable_modules", "freeze_trainable_layers"),
    # Data.
    Need("columns on_bad_record dataset_dir", "train_file_dir", holds=_reads_records),
    Need("train_dataset_prob", "mix_strategy", ("under", "over")),
    Need("shuffle_seed", "max_train_samples", holds=lambda facts: facts.data_args.max_train_samples > 0),
    Need("count_rows", "max_train_samples", holds=_limits_records),
    Need("logical_shards shuffle_buffer", "tokenized_dir", holds=lambda facts: facts.data_args.tokenized),
    Need("weights validation_tokenized_dir", "tokenized_dir", holds=lambda facts: facts.data_args.tokenized),
    Need("packing_strategy cross_document_attention", "packing", holds=_packs),
    # Evaluation, saving and logging.
    Need(
        "eval_accumulation_steps max_eval_samples eval_packing batch_eval_metrics include_for_metrics "
        "prediction_loss_only bf16_full_eval fp16_full_eval num_generations_eval",
        "validation_file_dir",
        holds=_holds_out,
    ),
    Need("do_eval", "validation_file_dir", holds=lambda facts: _holds_out(facts) or not facts.training_args.do_train),
    # Held-out data bring a strategy of their own, unless one was given.
    Need(
        "eval_steps eval_delay eval_on_start",
        "validation_file_dir",
        holds=lambda facts: _holds_out(facts) or "eval_strategy" in facts.training_args.given,
    ),
    Need("eval_steps", "eval_strategy", ("steps",)),
    Need("eval_delay eval_on_start", "eval_strategy", ("steps", "epoch")),
    Need("save_steps", "save_strategy", ("steps",)),
    Need("logging_steps", "logging_strategy", ("steps",)),
    Need("metric_for_best_model greater_is_better", "load_best_model_at_end", holds=_compares_checkpoints),
    Need("early_stopping_threshold", "early_stopping_patience"),
    Need("hub_model_id hub_private_repo hub_revision hub_strategy hub_always_push", "push_to_hub"),
    Need("ignore_data_skip restore_callback_states_from_checkpoint", "resume_from_checkpoint"),
    # How steps are computed.
    Need("profile_step_start profile_step_end profiler_rank0_only", "profile"),
    Need("dropout_warmup_steps layerwise_dropout", "hidden_dropout_prob", holds=_drops_out),
    Need("liger_kernel_config", "use_liger_kernel"),
    Need("dataloader_persistent_workers dataloader_multiprocessing_context", "dataloader_num_workers", fails=True),
    # Optimizer and schedule.
    Need("muon_momentum muon_scale_mode muon_extra_scale_factor", "optim", ("muon",)),
    Need("sgd_momentum", "optim", ("sgd",)),
    Need("optim_target_modules", "optim", ("galore_adamw",), holds=lambda facts: _has_optim(facts, "galore", "apollo")),
    Need(
        "adam_beta1 adam_beta2 adam_epsilon",
        "optim",
        ("adamw_torch",),
        holds=lambda facts: not _has_optim(facts, *_NOT_ADAM),
    ),
    Need("lr_wsd_decay_steps lr_wsd_decay_style", "lr_scheduler_type", (WSD,)),
    # Preference losses.
    Need("simpo_gamma", "loss_type", ("simpo", "cpo_simpo")),
    Need("cpo_alpha", "loss_type", ("cpo", "cpo_simpo")),
    Need("dpop_lambda", "loss_type", ("dpop",)),
    Need("discopop_tau", "loss_type", ("discopop",)),
    Need("offset_alpha", "loss_type", ("sigmoid",)),
    Need("label_smoothing", "loss_type", (*sorted(SMOOTHED), "robust")),
    Need("desirable_weight undesirable_weight", "loss_type", tuple(sorted(UNPAIRED))),
    Need("f_alpha_divergence_coef", "f_divergence_type", ("alpha_divergence",)),
    Need("precompute_ref_batch_size", "precompute_ref_log_probs"),
    Need("ref_model_mixup_alpha ref_model_sync_steps", "sync_ref_model"),
    # Reward models.
    Need("score_difference center_rewards_coefficient max_prompt_length", "reward_kind", ("outcome",)),
    Need("score_difference_scale", "score_difference", ("margin", "weight")),
    Need("step_separator train_on_last_step_only", "reward_kind", ("process",)),
    # RL.
    Need(
        "epsilon epsilon_high normalize_advantages mask_truncated_completions", "rl_algorithm", ("grpo", "rloo", "ppo")
    ),
    Need("sapo_temperature_neg sapo_temperature_pos", "loss_type", ("sapo",)),
    Need("vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos", "loss_type", ("vespo",)),
    Need("delta epsilon", "loss_type", _CLIPPED),
    Need("epsilon_high", "loss_type", (*_CLIPPED, "cispo")),
    Need("entropy_target entropy_coef_delta entropy_coef_max entropy_coef_min", "use_adaptive_entropy"),
    Need("max_sampling_rounds", "dynamic_sampling"),
    Need("max_tool_calling_iterations", "tools"),
    Need("sync_ref_model use_bias_correction_kl kl_estimator", "beta"),
    Need("kl_horizon", "kl_target"),
    Need("normalize_rewards", "reward_model_path"),
    Need("transformers_continuous_batching_config", "use_transformers_continuous_batching"),
    Need("num_completions_to_print log_unique_prompts", "log_completions"),
    Need(
        "vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
        "vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size "
        "vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_importance_sampling_cap "
        "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_mode",
        "use_vllm",
    ),
    # Distillation.
    Need("on_policy_share", "distill_mode", ("mixed",)),
    Need(
        "max_completion_length top_p top_k min_p repetition_penalty generation_kwargs cache_implementation "
        "sample_completions use_vllm",
        "distill_mode",
        ("on_policy", "mixed"),
    ),
    Need("teacher_top_k", "teacher_server_url"),
    Need("drop_untaught", "teacher_targets"),
    Need("teacher_dtype teacher_load_in_4bit teacher_load_in_8bit", "teacher_model_name_or_path"),
)
"""Every argument that is read only where another one says so."""


def check_without_effect(facts: Facts[Any]) -> Iterator[UserError]:
    """Problems of arguments that were given and that nothing reads, those with one cause together."""
    left = set(facts.training_args.given)
    for need in NEEDS:
        named = [name for name in need.names.split() if name in left and not _is_off(_value(facts, name))]
        if named and _has(facts, need.other) and not _is_read(facts, need):
            left -= {*named}
            yield from _refuse_or_say(facts, need, [f"--{name}" for name in named])


def _refuse_or_say(facts: Facts[Any], need: Need, named: list[str]) -> Iterator[UserError]:
    value = _value(facts, need.other)
    have = f"{', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect"
    if need.other in facts.training_args.given and _is_off(value) and not need.fails:
        notice(f"{have} with --{need.other} {value}")
        return
    needed = f"--{need.other}" + (f" {' or '.join(need.values)}" if need.values else "")
    fix = f"add {needed}, or leave {'it' if len(named) == 1 else 'them'} out"
    yield ArgumentError(f"{have} without {needed}", place=", ".join(named), fix=fix)


def _is_read(facts: Facts[Any], need: Need) -> bool:
    if need.holds is not None:
        return need.holds(facts)
    value = _value(facts, need.other)
    texts = [str(one) for one in (value if isinstance(value, list) else [value])]
    return not set(need.values).isdisjoint(texts) if need.values else not _is_off(value)


def _is_off(value: Any) -> bool:
    return not value or str(value) in _OFF or value == -1


def _has(facts: Facts[Any], name: str) -> bool:
    return any(hasattr(group, name) for group in facts.arguments)


def _value(facts: Facts[Any], name: str) -> Any:
    """An argument of the run; an enum as its text, None where the stage has no such argument."""
    value = next((getattr(group, name) for group in facts.arguments if hasattr(group, name)), None)
    return getattr(value, "value", value)
