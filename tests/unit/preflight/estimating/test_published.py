"""Today's models by the shapes that their makers publish: parameters as published, and plans without a traceback."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from hftune.arguments.entry import parse_arguments
from hftune.cli import dispatch
from hftune.distributed import ranks
from hftune.models.structure import decoder_layers
from hftune.preflight.estimating.planner import Planner
from hftune.preflight.estimating.traced_step import traced_step
from hftune.preflight.facts import resolve

FOLDER = Path(__file__).parent / "published"
FEW = ("gpt-oss-20b", "granite-4.0-h-tiny")
"""What every run of the tests takes: experts, sinks, states; the others have slow tests."""

METHODS = {"full": (), "lora": ("--use_peft",), "qlora": ("--qlora",)}
CLUSTERS = {"one": ("--gpus", "H200"), "machines": ("--gpus", "8xH200", "--nodes", "4", "--deepspeed", "zero3")}
RUN = ("--output_dir", "o", "--max_length", "4096", "--bf16", "True", "--report_to", "none")


with (FOLDER / "figures.csv").open(newline="", encoding="utf-8") as stream:
    EVERY = {row["model"]: row for row in csv.DictReader(stream)}
"""Name -> what `total` counts ("all", "text": without towers, "mtp": all, and the layer that predicts the token after
the next, with its own embeddings and head), and the parameters as published, such as 30.7B or 1T."""


MODELS = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in EVERY]


def config_of(name: str) -> PreTrainedConfig:
    return AutoConfig.from_pretrained(FOLDER / "configs" / name)


def bare(config: PreTrainedConfig) -> PreTrainedModel:
    """transformers' own model without weights, with all parts that the config names; nothing of hftune's."""
    auto = AutoModelForCausalLM if config.get_text_config() is config else AutoModelForImageTextToText
    with torch.device("meta"), no_init_weights():
        model = auto.from_config(config)
    model.tie_weights()
    return model


def size(model: Any) -> int:
    return sum(one.numel() for one in model.parameters())


def predictor(model: PreTrainedModel) -> int:
    """The parameters that a layer for the token after the next has in checkpoints, which transformers leaves out.

    As DeepSeek-V3 describes it: a layer like the last one, a projection of two hidden states to one, three norms, and
    copies of embeddings and head.
    """
    hidden = model.config.hidden_size
    copies = size(model.get_input_embeddings()) + size(model.get_output_embeddings())
    return size(decoder_layers(model)[-1]) + 2 * hidden * hidden + 3 * hidden + copies


def rounded(count: float, like: str) -> str:
    """A number of parameters written with the unit and the digits of a published figure."""
    unit = {"B": 1e9, "T": 1e12}[like[-1]]
    digits = len(like[:-1].partition(".")[2])
    return f"{count / unit:.{digits}f}{like[-1]}"


@pytest.mark.parametrize("name", MODELS)
def test_as_published(name: str) -> None:
    one, config = EVERY[name], config_of(name)
    model = bare(config.get_text_config() if one["counted"] == "text" else config)
    count = size(model) + (predictor(model) if one["counted"] == "mtp" else 0)
    assert rounded(count, one["total"]) == one["total"], f"{count:,}"


@pytest.mark.parametrize("name", FEW)
def test_a_few_are_planned(name: str) -> None:
    with ranks.planning_for(ranks.PlannedWorld(32, 8, major=9)):
        flags = ("--model_name_or_path", str(FOLDER / "configs" / name), *RUN, "--use_peft", "--deepspeed", "zero3")
        planner = Planner(resolve("sft", parse_arguments("sft", list(flags))), traced_step)
        found = planner.plan(planner.asked())
    # Every layer of the model was traced; a 32nd of the base in bf16, and of an adapter that trains.
    weights = size(bare(config_of(name).get_text_config()))
    assert found.untraced is None and found.moment.parts["weights"] >= 2 * weights / 32
    assert found.device > found.moment.parts["weights"] and found.moment.parts["activations"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EVERY)
def test_every_one_is_planned(name: str, method: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model_name_or_path", str(FOLDER / "configs" / name), *RUN, *METHODS[method], *CLUSTERS[cluster])
    dispatch(["plan", "run_sft", *flags, "--json"])
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    asked = found["choices"][0]
    assert asked["traced"] and asked["peak"] > asked["parts"]["weights"]
