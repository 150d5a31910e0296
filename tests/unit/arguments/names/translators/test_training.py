"""Sums of losses."""

from __future__ import annotations

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.names.row import Request
from hftune.arguments.names.translators import training
from hftune.distributed import ranks
from hftune.errors import ArgumentError
from tests.unit.arguments.names.translators.questions import ask, translated


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("loss_type=ipo", {"loss_type": "ipo"}),
        ("rpo_alpha=0.5", {"loss_type": "sigmoid sft", "loss_weights": "1 0.5"}),
        ("loss_type=ipo sft_loss_ratio=0.2 pref_loss_ratio=0.8",
         {"loss_type": "ipo sft", "loss_weights": "0.8 0.2"}),
        ("sft_loss_ratio=0 pref_loss_ratio=1.0", {}),
        ("loss_type=or sft_loss_ratio=1", {"loss_type": "odds_ratio sft", "loss_weights": "1 1"}),
        ("loss_type=kto_pair", {"loss_type": "kto_pair"}),
        ("orpo_beta=0.2", {"loss_type": "orpo", "beta": "0.2"}),
    ],
)  # fmt: skip
def test_sums_of_losses(command: str, expected: dict[str, str]) -> None:
    assert translated(training.preference_loss, ask(command, stage="dpo")) == expected


@pytest.mark.parametrize(
    ("command", "others", "stage"),
    [
        ("orpo_beta=0.1 loss_type=ipo", "", "dpo"),
        ("rpo_alpha=1", "loss_weights=1,1", "dpo"),
        ("rpo_alpha=1", "", "sft"),
    ],
)
def test_losses_that_cannot_be(command: str, others: str, stage: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be used"):
        training.preference_loss(ask(command, others, stage))


# 64 rows a step: 4 processes x 2 rows x 8 micro batches; 16 x 1 x 4; 1 x 2 x 32.
@pytest.mark.parametrize(("world", "micro", "steps"), [(4, 2, 8), (16, 1, 4), (1, 2, 32)])
def test_a_global_batch_is_shared(world: int, micro: int, steps: int) -> None:
    answer = translated(training.batches, ask(f"global_batch_size=64 micro_batch_size={micro}", world=world))
    assert answer == {
        "per_device_train_batch_size": str(micro),
        "per_device_eval_batch_size": str(micro),
        "gradient_accumulation_steps": str(steps),
    }


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (ask("global_batch_size=64 micro_batch_size=3", world=4), "use a multiple of 12"),
        (ask("global_batch_size=4 micro_batch_size=1", world=8), "use a multiple of 8"),
        (ask("global_batch_size=64"), "give --micro_batch_size too"),
        (ask("global_batch_size=64 micro_batch_size=2", "gradient_accumulation_steps=4"), "means"),
        (ask("global_batch_size=many micro_batch_size=2"), "not a number"),
    ],
)
def test_a_global_batch_that_cannot_be(question: Request, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        training.batches(question)
    assert said in str(caught.value)


def test_an_own_batch_size_counts_and_rl_keeps_its_evaluation() -> None:
    own = ask("global_batch_size=32", "per_device_train_batch_size=4", world=2)
    assert translated(training.batches, own) == {"gradient_accumulation_steps": "4"}
    assert translated(training.batches, ask("micro_batch_size=2", stage="rl")) == {"per_device_train_batch_size": "2"}


def test_mixing_and_what_is_trained() -> None:
    assert translated(training.interleaved, ask("interleave_prob=0.3,0.7")) == {
        "train_dataset_prob": "0.3,0.7",
        "mix_strategy": "under",
    }
    assert not training.interleaved(ask("stopping_strategy=all_exhausted")).given
    assert translated(training.loss_scale, ask("loss_scale=all")) == {"train_on_inputs": "True"}
    with pytest.raises(ArgumentError, match="weights of turns"):
        training.loss_scale(ask("loss_scale=hermes"))
    with pytest.raises(ArgumentError, match="loses its end"):
        training.truncation(ask("truncation_strategy=left"))
    for stage, value in (("sft", "True"), ("dpo", "False")):
        assert not training.per_token(ask(f"calculate_per_token_loss={value}", stage=stage)).given
        with pytest.raises(ArgumentError, match="same weight"):
            training.per_token(ask(f"calculate_per_token_loss={'False' if value == 'True' else 'True'}", stage=stage))


def test_processes_that_see_the_same_rows_count_once() -> None:
    shared = ask("global_batch_size=64 micro_batch_size=2", "tensor_parallel_size=2 sequence_parallel_size=2", world=8)
    assert translated(training.batches, shared)["gradient_accumulation_steps"] == "16"  # two groups of four


@pytest.mark.parametrize("order", [1, -1])
def test_their_tensor_parallelism_comes_before_their_batches(order: int) -> None:
    flags = [["--tensor_model_parallel_size", "2"], ["--global_batch_size", "8", "--micro_batch_size", "2"]][::order]
    with ranks.planning_for(ranks.PlannedWorld(4, 4, on_cpu=True)):
        given = [*flags[0], *flags[1], "--model_name_or_path", "m", "--deepspeed", "zero1"]
        training_args = parse_arguments("sft", given)[3]
        assert training_args.data_parallel_size == 2
    assert (training_args.tensor_parallel_size, training_args.gradient_accumulation_steps) == (2, 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("enable_thinking=False", '{"enable_thinking": false}'),
        ("enable_thinking=true preserve_thinking=False", '{"enable_thinking": true, "preserve_thinking": false}'),
    ],
)
def test_flags_of_thinking_are_arguments_of_the_template(given: str, expected: str) -> None:
    assert translated(training.thinking, ask(given)) == {"chat_template_kwargs": expected}


def test_presets_of_loss_scale_are_joined() -> None:
    found = translated(training.loss_scale, ask("loss_scale=last_round+ignore_empty_think"))
    assert found == {"train_on_last_turn": "True", "empty_thoughts": "mask"}
    assert translated(training.loss_scale, ask("loss_scale=default")) == {}


def test_a_system_message_is_for_rl() -> None:
    assert translated(training.system, ask("system=a\\nb", stage="rl")) == {"system_prompt": "a\nb"}
    with pytest.raises(ArgumentError, match="of role system"):
        training.system(ask("system=x", stage="sft"))
    with pytest.raises(ArgumentError, match="--system_prompt TEXT"):
        training.system(ask("system=f.txt", stage="rl"))


@pytest.mark.parametrize("name", ["split_dataset_ratio", "val_size", "val_set_size"])
def test_a_share_that_is_held_out(name: str) -> None:
    assert translated(training.held_out_share, ask(f"{name}=0.05")) == {"validation_split_percentage": "5"}
    with pytest.raises(ArgumentError, match=f"--{name} 500 cannot be used: give a share below 1"):
        training.held_out_share(ask(f"{name}=500"))
