"""The schema of a stage's file takes what its parser takes, and refuses what that refuses."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from hftune.arguments.merging import MergeParser
from hftune.arguments.names.row import ALIAS, NO_EFFECT, REFUSED
from hftune.arguments.names.table import table
from hftune.arguments.names.translate import Entry
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stages import stage_parser
from hftune.tools.schema.stages import DRAFT, argument_names, stage_schema
from tests.documents import ROOT

VALUES = (
    *(True, False, 0, 1, 3, -2, 10**18, 0.25, -0.5, 2.5, "", "text", "3", "-0.25", "1e-3", "yes", "False", "no"),
    *("None", None, [], [1, 2], ["a", "b"], {"a": 1}),
)


SAID = (REFUSED, NO_EFFECT)
"""Verdicts about which a schema says nothing."""


@functools.cache
def checker(stage: str) -> Draft202012Validator:
    schema = {"$schema": DRAFT, **stage_schema(stage)}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@functools.cache
def parser_of(stage: str) -> HftuneParser:
    return MergeParser() if stage == "merge" else stage_parser(stage)


def parser_takes(parser: HftuneParser, name: str, value: Any) -> bool:
    """As a file is read: up to where the classes compare arguments with each other."""
    entry = Entry(name, value if isinstance(value, list) else [value], "file.yaml")
    outcome = parser.translated([entry], 1, 1)
    return not outcome.problems and not [*parser.misfits(outcome.entries)]


def differences(stage: str, names: list[str]) -> list[str]:
    """Names and values of which schema and parser think differently."""
    parser, schema = parser_of(stage), checker(stage)
    found = []
    for name in names:
        for value in VALUES:
            takes, fits = parser_takes(parser, name, value), schema.is_valid({name: value})
            # Whether a number that is written as a text is whole and in its range is beyond JSON Schema.
            beyond = fits and isinstance(value, str) and re.fullmatch(r"[-\d.e]+", value)
            if takes != fits and not beyond:
                found.append(f"{name}: {value!r}: parser {takes}, schema {fits}")
    return found


@pytest.mark.parametrize(("stage", "every"), [("sft", 3), ("dpo", 7), ("pt", 9), ("merge", 1)])
def test_values_are_refused_as_the_parser_refuses_them(stage: str, every: int) -> None:
    parser, odd = parser_of(stage), {row.name for row in table().values() if row.translation or row.verdict in SAID}
    names = [name for name in argument_names(parser) if name not in odd and name not in parser.done_by_hftune]
    assert len(names) > 10 and differences(stage, names[::every]) == []


def test_names_of_other_tools() -> None:
    """The names are those that the parser knows; which of their values it takes, the command says."""
    parser, schema = parser_of("sft"), checker("sft")
    kinds = set()
    for row in [*table().values()][::7]:
        takes = parser_takes(parser, row.name, "none" if row.verdict in SAID else 3)
        fits = schema.is_valid({row.name: 3})
        assert fits or not takes, row
        kinds.add((row.verdict, fits))
    assert kinds >= {(REFUSED, True), (ALIAS, True), (NO_EFFECT, True)}
    assert not checker("pt").is_valid({"simpo_gamma": 3}), "of another stage"


@pytest.mark.parametrize("stage", ["sft", "merge", "rl"])
def test_unknown_names(stage: str) -> None:
    names = ("learning_rat", "help", "no_average_tokens_across_devices", "config")
    assert not any(checker(stage).is_valid({name: 1}) for name in names)


def test_what_an_editor_shows() -> None:
    properties = stage_schema("sft")["properties"]
    assert properties["learning_rate"]["default"] == 2e-5, "as resolved for the stage, not TRL's"
    assert properties["max_length"]["description"] and "%%" not in json.dumps(properties)
    assert "lora_r" in properties and "lora_rank" not in properties, "names of other tools are not proposed"
    assert stage_schema("pt")["properties"]["learning_rate"]["default"] == 2e-5


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"num_generations": 4}, True),
        ({"rl_algorithm": "ppo", "vf_coef": 0.3}, True),
        ({"rl_algorithm": "grpo", "vf_coef": 0.3}, False),
        ({"vf_coef": 0.3}, False),
        ({"rl_algorithm": "none of these"}, False),
        ({"sft_model_path": "m"}, True),
    ],
)
def test_rl_has_the_arguments_of_its_algorithm(given: dict[str, Any], fits: bool) -> None:
    assert checker("rl").is_valid(given) is fits


def test_the_example() -> None:
    file = ROOT / "examples" / "sft.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert [*checker("sft").iter_errors(content)] == []
    assert not checker("sft").is_valid({**content, "max_length": "long"})
    assert file.read_text().startswith("# yaml-language-server: $schema=../.hftune/sft.schema.json\n")


def test_every_default_that_is_shown_is_one_that_is_taken() -> None:
    for stage in ("sft", "dpo", "rm"):
        properties, filled = stage_schema(stage)["properties"], parser_of(stage).done_by_hftune
        shown = {name: one["default"] for name, one in properties.items() if "default" in one and name not in filled}
        faults = [error.json_path for error in checker(stage).iter_errors(shown)]
        assert len(shown) > 50 and faults == [], stage
