"""Every number of every class of arguments has a range, which is held at its edges; words are those of upstream."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from transformers import GenerationConfig
from trl.trainer import grpo_trainer

import hftune.arguments
from hftune.arguments.asking import AskArguments, ScoreArguments
from hftune.arguments.names.translate import Entry
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import RANGES, Range, choices_of, misfit
from hftune.arguments.raw_arguments import COMMAND_LINE
from hftune.arguments.stages import stage_parser
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


def test_every_number_has_a_range_that_holds_its_default_and_every_range_a_number() -> None:
    numbers, wrong = set[str](), list[str]()
    for cls in {*argument_classes()}:
        hints = get_type_hints(cls)  # a parser writes over the types of fields
        for entry in dataclasses.fields(cls):
            if re.search(r"\b(int|float)\b", str(hints[entry.name])):
                numbers.add(entry.name)
                wrong += [entry.name] if misfit(entry.name, entry.default) else []
    assert numbers == {*RANGES} and wrong == []


def test_edges() -> None:
    for name, allowed in RANGES.items():
        low, high, tiny = allowed.low, allowed.high, 1 if allowed.steps else 1e-6
        inside = [low + tiny if allowed.above else low, high - tiny if allowed.below else high, *allowed.also]
        outside = [low if allowed.above else low - tiny, high if allowed.below else high * (1 + 1e-9) + tiny]
        outside += [low - 7, high * 2 + 7, math.nan, math.inf, -math.inf, 10**400]
        assert not [value for value in inside if misfit(name, value)], name
        passing = [value for value in outside if value not in allowed.also and not misfit(name, value)]
        assert passing == [], name
        if allowed.steps:  # or a share of them
            assert misfit(name, 2.5) and not misfit(name, 0.5) and not misfit(name, 7.0)


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


MODEL = ["--model_name_or_path", "m", "--output_dir", "o"]


@pytest.mark.parametrize(("stage", "algorithm"), [("pt", None), ("sft", None), ("rl", "ppo")])
def test_all_problems_of_a_stage_together(stage: str, algorithm: str | None, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("num_train_epochs: -1\nseed: .nan\nmax_grad_norm: null\nlora_r: 16\n")
    parser = stage_parser(stage, algorithm)
    with pytest.raises(ArgumentError) as error:
        parser.parse([*MODEL, "--config", str(file), "--max_steps=0", "--max_train_samples", "0", "--lora_rr", "2"])
    said = str(error.value)
    assert "6 problems, nothing was started" in said and "unknown argument --lora_rr" in said
    assert "--max_steps cannot be '0': it takes numbers from 1" in said and "--do_eval" in said
    assert "command line" in said and str(file) in said
    assert all(f"--{name} cannot be" in said for name in ("num_train_epochs", "seed", "max_grad_norm"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("lora_r", 2.0), ("lora_r", True), ("lora_r", [1]), ("lora_r", "9" * 5000), ("seed", 2.5), ("seed", None)],
)
def test_what_a_file_holds_in_place_of_a_whole_number(name: str, value: object) -> None:
    assert len([*stage_parser("sft").misfits([Entry(name, [value], "f.yaml")])]) == 1


def test_words_and_null_are_left_to_the_field() -> None:
    parser = stage_parser("rl")
    given = {"pad_to_multiple_of": ["auto"], "eval_steps": [None], "reward_weights": ["1", "-2"], "save_steps": ["0.5"]}
    assert [*parser.misfits(Entry(name, [*values], COMMAND_LINE) for name, values in given.items())] == []
    wrong = {"reward_weights": ["1", "1e9"], "save_steps": ["1.5"]}
    assert len([*parser.misfits(Entry(name, [*values], COMMAND_LINE) for name, values in wrong.items())]) == 2


def test_a_command_line_wins_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("max_steps: 0\n")
    found = stage_parser("sft").translate(["--config", str(file), "--max_steps", "3"])
    assert [entry.values for entry in found] == [["3"]]


def test_names_of_other_tools_and_other_commands() -> None:
    with pytest.raises(ArgumentError, match="--max_steps cannot be '0'"):
        stage_parser("sft").translate(["--train_iters", "0"])
    for cls, flags in ((ScoreArguments, ["--batch_tokens", "-1"]), (AskArguments, ["--max_new_tokens", "0"])):
        with pytest.raises(ArgumentError, match=f"{flags[0]} cannot be '{flags[1]}'"):
            HftuneParser([cls]).parse(flags)


def test_a_pipeline_says_the_line() -> None:
    found = list(stage_problems("sft", {"max_steps": ["0"], "lora_r": ["x"]}, {"max_steps": "p.yaml:7"}, None))
    assert any("--max_steps cannot be" in problem.cause and "p.yaml:7" in str(problem.place) for problem in found)
    assert any("lora_r" in problem.cause for problem in found)


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
