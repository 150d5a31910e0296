"""What argparse and the classes of arguments say, as messages with a way out that can be taken."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.ranges import SAID
from hftune.arguments.raw_arguments import class_error, take_config
from hftune.arguments.stages import parse_command
from hftune.errors import ArgumentError
from hftune.tools.export.arguments import GgufArguments

GOOD = ["--output_dir", "o"]


def refused(*flags: str, stage: str = "sft") -> ArgumentError:
    with pytest.raises(ArgumentError) as caught:
        parse_arguments(stage, [*GOOD, *flags])
    return caught.value


@pytest.mark.parametrize(
    ("flags", "cause", "fix"),
    [
        (["--max_steps", "many"], "--max_steps cannot be 'many': it takes a whole number", "leave it out for whole"),
        (["--save_steps", "x"], "--save_steps cannot be 'x': it takes a number", "give a number, or leave it out"),
        (["--bf16", "ja"], "--bf16 cannot be 'ja': it takes True or False", "give True or False"),
        (["--learning_rate"], "--learning_rate needs a value", "write --learning_rate VALUE"),
        (["--save_strategy", "step"], "--save_strategy cannot be 'step'", "did you mean --save_strategy steps?"),
        (["--config"], "--config needs a value", "write --config FILE.yaml"),
        (["--config", "a", "--config", "b"], "--config is given twice", "put all of it into one file"),
        (["--config=a", "--config=b"], "--config is given twice", "put all of it into one file"),
    ],
)
def test_values(flags: list[str], cause: str, fix: str) -> None:
    problem = refused(*flags)
    assert problem.cause == cause
    assert str(problem.fix).startswith(fix)
    assert problem.place == "command line"


@pytest.mark.parametrize(
    ("stage", "flags", "fix"),
    [
        ("sft", ["--fp8", "delayed"], "one of: tensorwise, rowwise, rowwise_with_gw_hp"),
        ("rl", ["--grpo_variant", "drgrpo"], "did you mean --grpo_variant dr_grpo?"),
        ("sft", ["--torch_compile_backend", "xyz"], "one of: no, eager, aot_eager, inductor"),
        ("sft", ["--torch_compile_mode", "max"], "one of: default, reduce-overhead, max-autotune, "),
        ("dpo", ["--f_divergence_type", "kl"], "one of: reverse_kl, forward_kl, js_divergence, alpha_divergence"),
        ("rl", ["--cache_implementation", "statik"], "did you mean --cache_implementation static?"),
        ("rl", ["--generation_kwargs", "nope"], "give an object of JSON, such as '{"),
        ("rl", ["--transformers_continuous_batching_config", "0"], "give an object of JSON"),
        ("sft", ["--accelerator_config", "nowhere.json"], "change what is named"),
    ],
)
def test_what_upstream_would_find_out_in_the_middle_of_a_run(stage: str, flags: list[str], fix: str) -> None:
    problem = refused(*flags, stage=stage)
    assert flags[1] in problem.cause
    assert str(problem.fix).startswith(fix)


def test_words_of_upstream_are_taken() -> None:
    def taken(*flags: str, stage: str = "rl") -> Any:
        return parse_arguments(stage, [*GOOD, *flags]).training

    assert taken("--scale_rewards", "False").scale_rewards == "none"
    assert taken("--scale_rewards", "True").scale_rewards == taken().scale_rewards == "group"
    assert taken("--loss_type", "cispo", "--importance_sampling_level", "token").loss_type == "cispo"
    assert taken("--generation_kwargs", '{"min_new_tokens": 2}').generation_kwargs == {"min_new_tokens": 2}
    assert taken("--pad_to_multiple_of", "auto").pad_to_multiple_of is None
    assert taken("--pad_to_multiple_of", "8").pad_to_multiple_of == 8
    # What hftune does itself may be refused by a word.
    assert taken("--model_init_kwargs", "0").model_init_kwargs is None
    # online_dpo has choices of its own for this name.
    assert taken("--rl_algorithm", "online_dpo", "--loss_type", "ipo").loss_type == "ipo"
    assert taken("--loss_type", "hinge", stage="dpo").loss_type == ["hinge"]


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        (["--bf16", "True", "--fp16", "True"], "--bf16, --fp16"),
        (["--load_best_model_at_end"], "--load_best_model_at_end, --save_strategy"),
    ],
)
def test_what_transformers_says_names_its_arguments(flags: list[str], place: str) -> None:
    problem = refused(*flags)
    assert problem.place == place and "\n" not in problem.cause and problem.fix in SAID.values()


def test_what_nobody_knows_names_its_arguments() -> None:
    problem = class_error(ValueError("save_steps is odd\nin this way"), ["save_steps", "bf16"], "command line")
    assert problem.cause == "save_steps is odd in this way"
    assert (problem.place, problem.fix) == (
        "--save_steps",
        "leave out or change --save_steps: `hftune explain save_steps`",
    )
    nameless = class_error(ValueError("it is odd"), ["save_steps"], "command line")
    assert (nameless.place, nameless.fix) == ("command line", "change what is named, or leave it out")


def test_one_file_of_settings() -> None:
    assert take_config(["--a", "1", "--config", "x", "--b"]) == ("x", ["--a", "1", "--b"])
    assert take_config(["--config=x=y", "--b"]) == ("x=y", ["--b"])


def test_a_choice_that_is_none_proposes_the_next() -> None:
    with pytest.raises(ArgumentError, match="did you mean --outtype q8_0"):
        parse_command(GgufArguments, ["--outtype", "q8"])
