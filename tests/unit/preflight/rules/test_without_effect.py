"""Arguments that have no effect without another are refused, in a run and in a plan, from one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import ALGORITHMS, stage_parser
from hftune.errors import UserError
from hftune.logging import notices
from hftune.preflight.facts import resolve
from hftune.preflight.rules.without_effect import check_without_effect, needs
from hftune.tools.planning.command import plan

HELD = ("--validation_file_dir", "held-out")
NONE = "--dataloader_num_workers 0"


def said(stage: str, *flags: str) -> list[str]:
    """The places of what is refused."""
    given = parse_arguments(stage, ["--output_dir", "o", "--train_file_dir", "records", *flags])
    return [f"{problem.place}: {problem.cause}" for problem in check_without_effect(resolve(stage, given))]


@pytest.mark.parametrize(
    "stage, flags, names, needed",
    [
        ("sft", "--lora_rank 8", "--lora_r", "--use_peft"),
        ("sft", "--lora_alpha 32 --target_modules all", "--lora_alpha, --lora_target_modules", "--use_peft"),
        ("sft", "--train_new_tokens_only --lora_r 16", "--lora_r", "--use_peft"),
        ("sft", "--bnb_4bit_quant_type fp4 --load_in_8bit --use_peft", "--bnb_4bit_quant_type", "--load_in_4bit"),
        ("sft", "--loraplus_lr_embedding 1e-6 --use_peft", "--loraplus_lr_embedding", "--loraplus_lr_ratio"),
        ("sft", "--create_new_adapter --use_peft", "--create_new_adapter", "--peft_path"),
        ("sft", "--eval_steps 5", "--eval_steps", "--validation_file_dir"),
        ("sft", "--do_train --do_eval", "--do_eval", "--validation_file_dir"),
        ("sft", "--max_eval_samples 5", "--max_eval_samples", "--validation_file_dir"),
        ("sft", f"{' '.join(HELD)} --eval_strategy epoch --eval_steps 5", "--eval_steps", "--eval_strategy steps"),
        ("sft", "--save_strategy epoch --save_steps 5", "--save_steps", "--save_strategy steps"),
        ("sft", "--early_stopping_threshold 0.1", "--early_stopping_threshold", "--early_stopping_patience"),
        ("sft", "--packing_strategy wrapped", "--packing_strategy", "--packing"),
        ("sft", "--hub_model_id me/x", "--hub_model_id", "--push_to_hub"),
        ("sft", "--train_dataset_prob 2,1 --mix_strategy concat", "--train_dataset_prob", "under or over"),
        ("sft", f"{NONE} --dataloader_persistent_workers", "--dataloader_persistent_workers", "_num_workers"),
        ("sft", "--shuffle_seed 3", "--shuffle_seed", "--max_train_samples"),
        ("sft", "--sgd_momentum 0.9", "--sgd_momentum", "--optim sgd"),
        ("sft", "--optim sgd --adam_beta2 0.95", "--adam_beta2", "--optim adamw_torch"),
        ("sft", "--muon_momentum 0.9", "--muon_momentum", "--optim muon"),
        ("sft", "--power 2", "--power", "--lr_scheduler_type polynomial"),
        ("sft", "--lr_scheduler_type cosine --lr_end 1e-5", "--lr_end", "--lr_scheduler_type polynomial"),
        ("sft", "--num_cycles 2 --lr_scheduler_type linear", "--num_cycles", "cosine_warmup_with_min_lr"),
        ("sft", "--dropout_warmup_steps 10", "--dropout_warmup_steps", "--hidden_dropout_prob"),
        ("sft", "--lr_wsd_decay_style cosine", "--lr_wsd_decay_style", "--lr_scheduler_type warmup_stable_decay"),
        ("dpo", "--simpo_gamma 0.5", "--simpo_gamma", "--loss_type simpo or cpo_simpo"),
        ("dpo", "--loss_type ipo --offset_alpha 0.2", "--offset_alpha", "--loss_type sigmoid"),
        ("dpo", "--desirable_weight 2", "--desirable_weight", "--loss_type apo_zero_unpaired or kto"),
        ("dpo", "--ref_model_sync_steps 5", "--ref_model_sync_steps", "--sync_ref_model"),
        ("rm", "--train_on_last_step_only", "--train_on_last_step_only", "--reward_kind process"),
        ("rm", "--reward_kind process --center_rewards_coefficient 0.1", "--center_rewards_coefficient", "outcome"),
        ("rl", "--sapo_temperature_pos 2", "--sapo_temperature_pos", "--loss_type sapo"),
        ("rl", "--rl_algorithm ppo --kl_horizon 50", "--kl_horizon", "--kl_target"),
        ("rl", "--rl_algorithm online_dpo --epsilon 0.3", "--epsilon", "--rl_algorithm grpo or rloo or ppo"),
        ("rl", "--vllm_mode server", "--vllm_mode", "--use_vllm"),
        ("distill", "--on_policy_share 0.3", "--on_policy_share", "--distill_mode mixed"),
        ("distill", "--distill_mode offline --top_p 0.9", "--top_p", "--distill_mode on_policy or mixed"),
        ("distill", "--teacher_top_k 5", "--teacher_top_k", "--teacher_server_url"),
        ("dpo", "--loss_type hinge --label_smoothing 0.1", "--label_smoothing", "sigmoid or sigmoid_norm or simpo"),
    ],
)
def test_refused(stage: str, flags: str, names: str, needed: str) -> None:
    (problem,) = said(stage, *flags.split())
    assert problem.startswith(f"{names}: {names} ha")
    assert problem.endswith(needed)


@pytest.mark.parametrize(
    "stage, flags",
    [
        ("sft", ("--lora_r", "16", "--qlora")),
        ("sft", ("--lora_r", "16", "--peft_path", "adapter")),
        ("sft", ("--use_dora", "False", "--lora_dropout", "0", "--lora_bias", "none", "--max_eval_samples", "-1")),
        ("sft", ("--eval_steps", "5", *HELD)),
        ("sft", ("--eval_steps", "5", "--validation_split_percentage", "5")),
        ("sft", ("--max_train_samples", "9", "--shuffle_seed", "3")),
        ("sft", ("--num_cycles", "0.5", "--lr_end", "1e-7", "--power", "1.0")),
        ("sft", ("--attention_probs_dropout_prob", "0.1", "--dropout_warmup_steps", "9")),
        ("sft", ("--eval_packing", "True", *HELD, "--packing_strategy", "wrapped")),
        ("dpo", ("--loss_type", "sigmoid", "simpo", "--simpo_gamma", "1", "--label_smoothing", "0.1")),
        ("rl", ("--loss_type", "sapo", "--sapo_temperature_pos", "2")),
        ("rl", ("--use_vllm", "--vllm_mode", "server")),
        ("distill", ("--distill_mode", "mixed", "--on_policy_share", "0.3", "--top_p", "0.9")),
    ],
)
def test_fine(stage: str, flags: tuple[str, ...]) -> None:
    assert not said(stage, *flags)


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--use_peft False --lora_rank 8", "--lora_r has no effect with --use_peft False"),
        ("--packing False --packing_strategy wrapped", "--packing_strategy has no effect with --packing False"),
        ("--save_strategy no --save_steps 5", "--save_steps has no effect with --save_strategy no"),
        ("--eval_strategy no --eval_steps 5", "--eval_steps has no effect with --eval_strategy no"),
        (
            "--validation_file_dir held-out --validation_split_percentage 5",
            "--validation_split_percentage has no effect with --validation_file_dir: its records are held out",
        ),
    ],
)
def test_next_to_a_switch_turned_off_by_name_it_is_said(
    flags: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    assert not said("sft", *flags.split())
    assert expected in notices()


def test_each_name_of_the_table_is_an_argument() -> None:
    parsers = [stage_parser(stage) for stage in STAGES] + [stage_parser("rl", one) for one in ALGORITHMS]
    known = [parser.known for parser in parsers]
    for need in needs():
        for name in need.names:
            assert any(name in arguments and need.other in arguments for arguments in known), (name, need.other)


def test_values_of_the_table_are_choices() -> None:
    known = [stage_parser(stage).known for stage in STAGES] + [stage_parser("rl", "online_dpo").known]
    for need in needs():
        taken = [arguments[need.other].choices for arguments in known if need.other in arguments]
        for value in need.values:
            assert any(choices is None or value in choices for choices in taken), (need.other, value)


def test_a_plan_refuses_them_as_a_run_does(tiny_model: Path) -> None:
    argv = ["--model_name_or_path", str(tiny_model), "--output_dir", "o", "--train_file_dir", ".", "--lora_rank", "8"]
    with pytest.raises(UserError, match="--lora_r has no effect without --use_peft"):
        plan("sft", argv)
