"""Every number of every class of arguments has a range, which is held at its edges."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig
from trl.trainer import grpo_trainer

import hftune.arguments
from hftune.arguments.asking import AskArguments, ScoreArguments
from hftune.arguments.merging import MergeArguments
from hftune.arguments.names.translate import Entry
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import RANGES, Range, choices_of, is_number, numbers_of, out_of_range
from hftune.arguments.raw_arguments import COMMAND_LINE
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser
from hftune.errors import ArgumentError
from hftune.losses.preference import scores
from hftune.tools.pipeline.checking import stage_problems


def argument_classes() -> Iterator[type]:
    """All dataclasses of arguments, each stage's on the config of its trainer, and those of the tools."""
    modules = [module.name for module in pkgutil.walk_packages(hftune.arguments.__path__, "hftune.arguments.")]
    tools = ["hftune.tools.export.arguments", "hftune.tools.consolidating"]
    for module in [*modules, *tools]:
        for name, found in vars(importlib.import_module(module)).items():
            if dataclasses.is_dataclass(found) and isinstance(found, type) and name.endswith(("Arguments", "Fields")):
                yield found


CLASSES = sorted({*argument_classes()}, key=lambda cls: cls.__name__)
NUMBERS = numbers_of(CLASSES)


def test_the_walk_finds_every_class() -> None:
    names = {cls.__name__ for cls in CLASSES}
    trained = {stage.arguments.partition(":")[2] for stage in STAGES.values()}
    trained |= {cls.__name__ for cls in algorithms().values()}
    assert {*trained, "DataArguments", "AdapterArguments", "ModelArguments"} <= names
    assert {"ScoreArguments", "AskArguments", "ConsolidateArguments"} <= names
    assert len(NUMBERS) > 140


def test_every_number_has_a_range_and_every_range_a_number() -> None:
    assert {*NUMBERS} == {*RANGES}


def test_the_parser_of_a_merge_reads_no_numbers() -> None:
    assert not numbers_of([MergeArguments]), "give `parse_light` the ranges as well"


def test_defaults_are_in_range() -> None:
    for entry in (entry for cls in CLASSES for entry in dataclasses.fields(cls)):
        if is_number(entry) and isinstance(entry.default, int | float):
            assert RANGES[entry.name].holds(entry.default), entry.name


def is_whole(name: str) -> bool:
    return "float" not in str(NUMBERS[name].type)


def edges(name: str) -> tuple[list[float], list[float]]:
    """Numbers just inside and just outside of a range."""
    allowed = RANGES[name]
    tiny = 1 if is_whole(name) or allowed.steps else 1e-6
    low, high = (allowed.low, allowed.high)
    inside = [low + tiny if allowed.above else low, high - tiny if allowed.below else high, *allowed.also]
    outside = [low if allowed.above else low - tiny, high if allowed.below else high * (1 + 1e-9) + tiny]
    outside = [value for value in outside if value not in allowed.also]
    return inside, [*outside, low - 7, high * 2 + 7, math.nan, math.inf, -math.inf]


def problems(name: str, *values: object) -> list[ArgumentError]:
    return list(out_of_range(NUMBERS[name], values, "here"))


def written(name: str, value: float) -> str:
    return str(int(value)) if is_whole(name) and math.isfinite(value) else repr(value)


def test_edges() -> None:
    for name in NUMBERS:
        inside, outside = edges(name)
        for value in inside:
            assert not problems(name, written(name, value)), (name, value)
            assert not problems(name, int(value) if is_whole(name) else value), (name, value)
        for value in outside:
            (problem,) = problems(name, written(name, value))
            assert f"--{name} cannot be" in problem.cause and f"--{name} (here)" == problem.place and problem.fix
            assert problems(name, value), f"{name} as a YAML file has it"
        assert problems(name, "9" * 5000) and problems(name, 10**400), f"{name}: no digits are counted"
        assert problems(name, True) and problems(name, [1]), f"{name}: YAML's other kinds"
        assert problems(name, inside[0], outside[0]), f"{name}: any value of a list"
        assert bool(problems(name, None)) == ("None" not in str(NUMBERS[name].type)), name
        if is_whole(name):  # YAML would hand them on as they are
            assert problems(name, 2.5) and problems(name, 2.0), name


def test_steps_or_a_share_of_them() -> None:
    for name in (name for name, found in RANGES.items() if found.steps):
        assert not problems(name, "0.1", "1", "7", "7.0", 0.5)
        assert problems(name, "1.5") and problems(name, 2.25)


BREAKING = {
    0: "gradient_accumulation_steps max_steps lora_r lora_alpha discopop_tau epsilon adam_epsilon"
    " score_difference_scale repetition_penalty top_p num_train_epochs reward_timeout",
    0.5: "label_smoothing",
    1: "max_length block_size adam_beta1 adam_beta2 sgd_momentum lora_dropout hidden_dropout_prob",
    100: "validation_split_percentage",
}
MEANT = {
    -1: "max_steps max_train_samples save_total_limit top_k missing_eos_penalty entropy_coef reward_weights",
    0: "save_total_limit beta temperature label_smoothing max_grad_norm learning_rate weight_decay top_k seed gamma",
    1: "gamma lam top_p hard_label_share on_policy_share freeze_parameters_ratio lora_r",
    2: "max_length block_size",
}


def test_ends_are_where_formulas_break() -> None:
    """Divisions by 0, rows without a token to predict, nothing left: not the number itself; others mean something."""
    for numbers, held in ((BREAKING, False), (MEANT, True)):
        for value, names in numbers.items():
            assert [name for name in names.split() if RANGES[name].holds(value) != held] == [], value


def test_a_range_in_words() -> None:
    assert str(Range.read("[1, 1e12] or -1")) == "from 1 to 1,000,000,000,000, or -1"
    assert str(Range.read("(0, 1]")) == "above 0 to 1" and str(Range.read("[0, 0.5)")) == "from 0 and below 0.5"
    assert str(Range.read("steps [0, 10]")) == "from 0 to 10, whole above 1"
    assert str(Range.read("[0, 1e30]")) == "from 0 to 1e+30"
    assert Range.read("[1, 5] or 0 or -1").also == (0.0, -1.0)


def test_words_that_are_no_numbers_are_left_to_the_parser() -> None:
    assert not problems("pad_to_multiple_of", "auto") and not problems("lora_r", "eight", "")


MODEL = ["--model_name_or_path", "m", "--output_dir", "o"]


@pytest.mark.parametrize(("stage", "algorithm"), [*((s, None) for s in STAGES), *(("rl", a) for a in algorithms())])
def test_all_problems_of_a_stage_together(stage: str, algorithm: str | None, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("num_train_epochs: -1\nseed: .nan\nmax_grad_norm: null\nlora_r: 16\n")
    parser = stage_parser(stage, algorithm)
    with pytest.raises(ArgumentError) as error:
        parser.parse([*MODEL, "--config", str(file), "--max_steps=0", "--max_train_samples", "0", "--lora_rr", "2"])
    said = str(error.value)
    assert "6 problems, nothing was started" in said and "unknown argument --lora_rr" in said
    assert "--max_steps cannot be 0" in said and "(command line)" in said and "--do_eval" in said
    assert f"--num_train_epochs ({file})" in said and f"--seed ({file})" in said and "--max_grad_norm" in said
    assert "--max_train_samples cannot be 0" in said


def test_a_command_line_wins_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("max_steps: 0\n")
    assert [entry.values for entry in stage_parser("sft").translate(["--config", str(file), "--max_steps", "3"])] == [
        ["3"]
    ]


def test_names_of_other_tools() -> None:
    with pytest.raises(ArgumentError, match="--max_steps cannot be 0"):
        stage_parser("sft").translate(["--train_iters", "0"])


@pytest.mark.parametrize(
    ("cls", "flags"),
    [
        (ScoreArguments, ["--batch_tokens", "-1"]),
        (AskArguments, ["--max_new_tokens", "0"]),
    ],
)
def test_other_commands(cls: type, flags: list[str]) -> None:
    with pytest.raises(ArgumentError, match=f"{flags[0]} cannot be {flags[1]}"):
        HftuneParser([cls]).parse(flags)


def test_a_pipeline_says_the_line() -> None:
    found = list(stage_problems("sft", {"max_steps": ["0"], "lora_r": ["x"]}, {"max_steps": "p.yaml:7"}, None))
    assert any("cannot be 0" in problem.cause and "p.yaml:7" in str(problem.place) for problem in found)
    assert any("lora_r" in problem.cause for problem in found)


def test_a_misfit_is_said_once() -> None:
    found = list(stage_parser("sft").misfits([Entry("lora_r", ["x"], COMMAND_LINE)]))
    assert len(found) == 1


@pytest.mark.parametrize("stage", ["rl", "distill"])
def test_caches(stage: str) -> None:
    known = choices_of(stage, ["cache_implementation"])["cache_implementation"]
    for name in known:
        GenerationConfig(cache_implementation=name)
    with pytest.raises(ValueError, match="Choose one of") as raised:
        GenerationConfig(cache_implementation="nope")
    assert set(re.findall(r"'(\w+)'", str(raised.value))) == set(known)


@pytest.mark.parametrize(
    "name", ["loss_type", "importance_sampling_level", "multi_objective_aggregation", "scale_rewards"]
)
def test_words_of_grpo(name: str) -> None:
    """As TRL's trainer compares with them: it has no list."""
    code = inspect.getsource(grpo_trainer)
    found = set(re.findall(rf'\b{name} == "(\w+)"', code))
    for several in re.findall(rf"\b{name} in \[(.*?)\]", code):
        found |= set(re.findall(r'"(\w+)"', several))
    older = {"True", "False"} if name == "scale_rewards" else set()
    assert found | older == set(choices_of("rl", [name])[name])


def test_modes_of_the_compiler() -> None:
    assert set(choices_of("pt", ["torch_compile_mode"])["torch_compile_mode"]) == set(
        torch._inductor.list_mode_options()
    )


def test_divergences() -> None:
    for name in choices_of("dpo", ["f_divergence_type"])["f_divergence_type"]:
        assert scores(torch.zeros(2), name, 0.5).shape == (2,)
