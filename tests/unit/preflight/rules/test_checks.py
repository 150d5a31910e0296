"""The language of the tables of checks, and that what they name is there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune import checks as language
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import algorithms, stage_parser
from hftune.checks import Check, checks, holds, value_of
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused
from hftune.preflight.rules.without_effect import needs

RULES = "hftune.preflight.rules"


class Kind(Enum):
    """As transformers has its choices."""

    NO = "no"


RUN = SimpleNamespace(
    on=True, off=False, none=None, kind=Kind.NO, text="galore_adamw", names=["a", "b"], three=3, half=0.5, all=-1,
    config={"zero": {"stage": 2, "device": "none"}},
)  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("on", True), ("!on", False), ("off", False), ("none", False), ("kind", False), ("all", False), ("!gone", True),
        ("on & off", False), ("off or on", True), ("off & on or on & three", True), ("off or off", False),
        ("text=(galore|apollo).*", True), ("text=galore", False), ("!text=galore", True), ("kind=no", True),
        ("names=b|c", True), ("names=c", False), ("on=True", True), ("none=x", False),
        ("three>2", True), ("three<3", False), ("three<=3", True), ("three>=3.5", False), ("half<1", True),
        ("none<1", False), ("!none>=0", True), ("text>1", False), ("half<three", True), ("three>none", False),
        ("three%2", True), ("three%3", False), ("config.zero.stage=2", True), ("config.zero.stage>1", True),
        ("config.zero.device", False), ("config.other.stage", False), ("gone.part", False),
        ("installed.json", True), ("installed.no_such_module", False),
    ],
)  # fmt: skip
def test_a_condition(condition: str, expected: bool) -> None:
    assert holds(condition, [SimpleNamespace(other=1), RUN]) is expected


def test_the_groups_of_a_run_come_before_what_is_known_of_it() -> None:
    run = SimpleNamespace(arguments=(SimpleNamespace(a=1), SimpleNamespace(a=2, b=3)), a=4, c=5)
    assert [value_of(name, [run]) for name in "abcd"] == [1, 3, 5, None]


def test_a_row_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Check("t", "on & three>2", "{three} and {half} of {config.zero}", "--three {text}", "leave it out"),
        Check("t", "on", ": they {text}", "--on, --three, --half {half}", ""),
        Check("t", "off", "never", "", ""),
    ]
    monkeypatch.setattr(language, "checks", lambda package: {"t": rows})
    first, second = refused("t", RUN)
    assert (first.place, first.fix) == ("--three galore_adamw", "leave it out")
    assert first.cause.startswith("3 and 0.5 of {'stage': 2")
    assert second.cause == "--on does not go with --three, --half 0.5: they galore_adamw"
    assert second.fix == "leave one of them out"


def known_names() -> set[str]:
    """Arguments of all stages, properties of their classes, and what `Facts` knows."""
    parsers = [stage_parser(stage) for stage in STAGES] + [stage_parser("rl", one) for one in algorithms()]
    classes: list[Any] = [cls for parser in parsers for cls in parser.dataclass_types]
    of_classes = {name for cls in [*classes, Facts] for name in (*dir(cls), *(one.name for one in fields(cls)))}
    named = {"flag", "splits", "router_jitter_noise", "hidden_act"}  # given beside a run, and of configs
    return of_classes | named | {"installed"}


def test_what_the_tables_name_is_there() -> None:
    known, names = known_names(), set()
    conditions = [check.when for rows in checks(RULES).values() for check in rows] + [need.read for need in needs()]
    for term in (term for one in conditions for terms in one.split(" or ") for term in terms.split(" & ")):
        parts = language._TERM.fullmatch(term)
        assert parts is not None, term
        names.add(parts[2].partition(".")[0])
        if parts[4] and parts[3] != "=" and parts[4][0].isalpha():
            names.add(parts[4])
    for row in (row for rows in checks(RULES).values() for row in rows):
        texts = f"{row.cause} {row.place} {row.fix}"
        names |= {name.partition(".")[0] for name in re.findall(r"\{([a-z][\w.]*)\}", texts)}
        assert row.cause and row.place, row
        assert not row.cause.startswith(":") or ", " in row.place, row
    assert sorted(names - known) == []


def example_of(check: Check, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a row's example is to the table: arguments, and behind `@` what is not said by arguments."""
    words = check.example.split()
    stage = words.pop(0) if words and words[0] in STAGES else "sft"
    said = dict(word[1:].split("=", 1) for word in words if word.startswith("@"))
    flags = [word for word in words if not word.startswith("@")]
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", *flags]
    arguments = parse_arguments(stage, argv)
    beside = SimpleNamespace(flag="--flag", splits="S", **{name: json.loads(value) for name, value in said.items()})
    monkeypatch.setattr(language.importlib.util, "find_spec", lambda name: "installed" not in check.when or None)
    return SimpleNamespace(arguments=(beside, *arguments), stage=stage)


@pytest.mark.parametrize("topic", sorted(checks(RULES)))
def test_an_example_is_refused_by_its_row_alone(topic: str) -> None:
    for check in checks(RULES)[topic]:
        with pytest.MonkeyPatch.context() as patch:
            run = example_of(check, patch)
            fired = [one.when for one in checks(RULES)[topic] if holds(one.when, [run])]
            assert fired == [check.when], check.example
            for problem in refused(topic, run):
                assert "{" not in problem.cause + str(problem.place) and "None" not in problem.cause


def test_each_topic_is_asked() -> None:
    modules = Path(language.__file__).parent / "preflight" / "rules"
    text = "".join(file.read_text() for file in modules.glob("*.py"))
    assert [topic for topic in checks(RULES) if f'"{topic}"' not in text] == []
