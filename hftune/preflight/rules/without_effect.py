"""Arguments that have no effect without another one: one table, one rule, for runs and for `hftune plan`.

An argument that was given and would not be read is refused, whatever its value. Two things are not mistakes: a value
that asks for nothing (False, 0, null), and one next to a switch that was turned off by name (`--use_peft False` in a
command that is kept for both); the latter is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hftune.arguments.stage_table import RunArguments
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.losses.preference import losses_with
from hftune.preflight.facts import Facts
from hftune.preflight.rules.optimizer import COSINES, REACTING, WSD

_OFF = ("False", "no", "none", "None", "")
_SMOOTHED, _UNPAIRED = ("|".join(sorted(losses_with(trait))) for trait in ("smoothed", "unpaired"))
_CLIPPED = "grpo|bnpo|dr_grpo|dapo|luspo"  # TRL's losses of GRPO that clip the ratio from both sides

NEEDS = f"""
use_peft: lora_r lora_alpha lora_dropout lora_target_modules target_regex exclude_modules
    lora_target_parameters init_lora_weights rank_pattern alpha_pattern trainable_token_indices lora_modules_to_save
    lora_bias use_rslora use_dora fused_lora loraplus_lr_ratio
loraplus_lr_ratio: loraplus_lr_embedding
peft_path: create_new_adapter
load_in_4bit: bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant

train_file_dir: columns on_bad_record dataset_dir
mix_strategy under|over: train_dataset_prob
max_train_samples: shuffle_seed
max_train_samples: count_rows
tokenized_dir: logical_shards shuffle_buffer
tokenized_dir: weights validation_tokenized_dir
packing: packing_strategy cross_document_attention

validation_file_dir: eval_accumulation_steps max_eval_samples eval_packing batch_eval_metrics include_for_metrics
    prediction_loss_only bf16_full_eval fp16_full_eval num_generations_eval
validation_file_dir: do_eval
validation_file_dir: eval_steps eval_delay eval_on_start
eval_strategy steps: eval_steps
eval_strategy steps|epoch: eval_delay eval_on_start
save_strategy steps: save_steps
logging_strategy steps: logging_steps
load_best_model_at_end: metric_for_best_model greater_is_better
early_stopping_patience: early_stopping_threshold
push_to_hub: hub_model_id hub_private_repo hub_revision hub_strategy hub_always_push
resume_from_checkpoint: ignore_data_skip restore_callback_states_from_checkpoint

profile: profile_step_start profile_step_end profiler_rank0_only
hidden_dropout_prob: dropout_warmup_steps layerwise_dropout
use_liger_kernel: liger_kernel_config
dataloader_num_workers: dataloader_persistent_workers dataloader_multiprocessing_context
optim muon: muon_momentum muon_scale_mode muon_extra_scale_factor
optim sgd: sgd_momentum
optim galore_adamw: optim_target_modules
optim adamw_torch: adam_beta1 adam_beta2 adam_epsilon
lr_scheduler_type {"|".join(COSINES)}: num_cycles
lr_scheduler_type polynomial: lr_end
lr_scheduler_type polynomial: power
lr_scheduler_type {WSD}: lr_wsd_decay_steps lr_wsd_decay_style

loss_type simpo|cpo_simpo: simpo_gamma
loss_type cpo|cpo_simpo: cpo_alpha
loss_type dpop: dpop_lambda
loss_type discopop: discopop_tau
loss_type sigmoid: offset_alpha
loss_type {_SMOOTHED}: label_smoothing
loss_type {_UNPAIRED}: desirable_weight undesirable_weight
f_divergence_type alpha_divergence: f_alpha_divergence_coef
precompute_ref_log_probs: precompute_ref_batch_size
sync_ref_model: ref_model_mixup_alpha ref_model_sync_steps

reward_kind outcome: score_difference center_rewards_coefficient max_prompt_length
score_difference margin|weight: score_difference_scale
reward_kind process: step_separator train_on_last_step_only

rl_algorithm grpo|rloo|ppo: epsilon epsilon_high normalize_advantages mask_truncated_completions
loss_type sapo: sapo_temperature_neg sapo_temperature_pos
loss_type vespo: vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
loss_type {_CLIPPED}: delta epsilon
loss_type {_CLIPPED}|cispo: epsilon_high
use_adaptive_entropy: entropy_target entropy_coef_delta entropy_coef_max entropy_coef_min
dynamic_sampling: max_sampling_rounds
tools: max_tool_calling_iterations
beta: sync_ref_model use_bias_correction_kl kl_estimator
kl_target: kl_horizon
reward_model_path: normalize_rewards
use_transformers_continuous_batching: transformers_continuous_batching_config
log_completions: num_completions_to_print log_unique_prompts
use_vllm: vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode
    vllm_structured_outputs_regex vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_mode

distill_mode mixed: on_policy_share
distill_mode on_policy|mixed: max_completion_length top_p top_k min_p repetition_penalty generation_kwargs
    cache_implementation sample_completions use_vllm
teacher_server_url: teacher_top_k
teacher_targets: drop_untaught
teacher_model_name_or_path: teacher_dtype teacher_load_in_4bit teacher_load_in_8bit
"""
"""Every argument that is read only where another one says so: that one, the values of it with which they are read (none
for all but those that turn it off), and the arguments."""


def _holds_out(run: RunArguments[Any]) -> bool:
    # A tokenised folder may hold a split of its own.
    return bool(run.data.validation_file_dir or run.data.validation_split_percentage > 0 or run.data.tokenized)


_HOLDS: dict[str, Callable[[RunArguments[Any]], object]] = {
    "use_peft: lora_r": lambda run: run.adapter.use_peft and not run.adapter.train_new_tokens_only,
    "train_file_dir: columns": lambda run: (
        run.data.train_file_dir or run.data.dataset_name or run.data.validation_file_dir
    ),
    "max_train_samples: shuffle_seed": lambda run: run.data.max_train_samples > 0,
    "max_train_samples: count_rows": lambda run: max(run.data.max_train_samples, run.data.max_eval_samples) > 0,
    "tokenized_dir: logical_shards": lambda run: run.data.tokenized,
    "tokenized_dir: weights": lambda run: run.data.tokenized,
    "packing: packing_strategy": lambda run: run.training.packing or run.training.eval_packing,
    "validation_file_dir: eval_accumulation_steps": _holds_out,
    "validation_file_dir: do_eval": lambda run: _holds_out(run) or not run.training.do_train,
    # Held-out data bring a strategy of their own, unless one was given.
    "validation_file_dir: eval_steps": lambda run: _holds_out(run) or "eval_strategy" in run.training.given,
    "load_best_model_at_end: metric_for_best_model": lambda run: (
        run.training.load_best_model_at_end or run.training.save_strategy == "best" or run.training.schedule in REACTING
    ),
    "hidden_dropout_prob: dropout_warmup_steps": lambda run: (
        run.training.hidden_dropout_prob or run.training.attention_probs_dropout_prob
    ),
    # What ERNIEKit's files list where nothing was chosen changes nothing.
    "lr_scheduler_type: num_cycles": lambda run: run.training.schedule in COSINES or run.training.num_cycles == 0.5,
    "lr_scheduler_type: lr_end": lambda run: run.training.schedule == "polynomial" or run.training.lr_end == 1e-7,
    "lr_scheduler_type: power": lambda run: run.training.schedule == "polynomial" or run.training.power == 1.0,
    "optim: optim_target_modules": lambda run: run.training.optim_name.startswith(("galore", "apollo")),
    # transformers hands none of Adam's numbers to these.
    "optim: adam_beta1": lambda run: (
        not run.training.optim_name.startswith(("sgd", "adagrad", "rmsprop", "adafactor", "lomo", "adalomo"))
    ),
}
"""Beginning of a row -> what decides whether it is read, where more than the other's value does."""

_FAILS = ("dataloader_num_workers",)
"""Without it upstream does not pass the others over: they are refused next to what was turned off by name, too."""


@dataclass(frozen=True)
class Need:
    """A row of `NEEDS`."""

    names: tuple[str, ...]
    other: str
    values: tuple[str, ...]


def needs() -> Iterator[Need]:
    """The rows of `NEEDS`."""
    for row in NEEDS.replace("\n    ", " ").split("\n"):
        if row:
            other, _, names = row.partition(":")
            other, _, values = other.partition(" ")
            yield Need(tuple(names.split()), other, tuple(filter(None, values.split("|"))))


def check_without_effect(facts: Facts[Any]) -> Iterator[UserError]:
    """Problems of arguments that were given and that nothing reads, those with one cause together."""
    left = set(facts.training_args.given)
    for need in needs():
        named = [name for name in need.names if name in left and not _is_off(_value(facts, name))]
        if named and _has(facts, need.other) and not _is_read(facts, need):
            left -= {*named}
            yield from _refuse_or_say(facts, need, [f"--{name}" for name in named])
    # The one that another takes away rather than brings; MedicalGPT's scripts give both.
    data = facts.arguments.data
    if "validation_split_percentage" in left and data.validation_file_dir and data.validation_split_percentage > 0:
        notice("--validation_split_percentage has no effect with --validation_file_dir: its records are held out")


def _refuse_or_say(facts: Facts[Any], need: Need, named: list[str]) -> Iterator[UserError]:
    value = _value(facts, need.other)
    have = f"{', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect"
    if need.other in facts.training_args.given and _is_off(value) and need.other not in _FAILS:
        notice(f"{have} with --{need.other} {value}")
        return
    needed = f"--{need.other}" + (f" {' or '.join(need.values)}" if need.values else "")
    fix = f"add {needed}, or leave {'it' if len(named) == 1 else 'them'} out"
    yield ArgumentError(f"{have} without {needed}", place=", ".join(named), fix=fix)


def _is_read(facts: Facts[Any], need: Need) -> bool:
    if holds := _HOLDS.get(f"{need.other}: {need.names[0]}"):
        return bool(holds(facts.arguments))
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
