"""The words that inherited arguments take are upstream's, none more and none less."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from transformers import GenerationConfig
from trl.trainer import grpo_trainer

from hftune.arguments.ranges import choices_of
from hftune.trainers.losses.divergences import scores


@pytest.mark.parametrize("stage", ["rl", "distill"])
def test_caches(stage: str) -> None:
    known = choices_of(stage)["cache_implementation"]
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
    assert found | older == set(choices_of("rl")[name])


def test_modes_of_the_compiler() -> None:
    assert set(choices_of("pt")["torch_compile_mode"]) == set(torch._inductor.list_mode_options())


def test_divergences() -> None:
    for name in choices_of("dpo")["f_divergence_type"]:
        assert scores(torch.zeros(2), name, 0.5).shape == (2,)
    with pytest.raises(ValueError, match="no divergence"):
        scores(torch.zeros(2), "nope", 0.5)
