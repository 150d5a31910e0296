"""The page of --help: hftune's own arguments first, by topic."""

from __future__ import annotations

import functools

import pytest

from hftune.arguments.parser import HftuneParser
from hftune.arguments.rl_algorithms import RLOOArguments
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser


@functools.cache
def parser_of(stage: str) -> HftuneParser:
    """One parser a stage; translating leaves no trace in it."""
    return stage_parser(stage)


@pytest.mark.parametrize("stage", STAGES)
def test_help_shows_all_arguments_ours_first(stage: str) -> None:
    text = stage_parser(stage, RLOOArguments if stage == "rl" else None).format_help()
    shown = {word.strip(",-") for word in text.split()}
    assert stage == "rl" or not {name for name in parser_of(stage).known if "_" in name} - shown
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith((" ", "Names"))]
    assert titles.index("model and tokenizer:") < titles.index("training:") < len(titles) - 1
    assert "transformers" in titles[-1]
