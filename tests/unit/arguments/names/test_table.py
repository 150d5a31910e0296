"""The table of other tools' names, row by row, through the real parsers; and that it is complete."""

from __future__ import annotations

import functools
from dataclasses import fields
from pathlib import Path

import pytest

from hftune import logging
from hftune.arguments.merging import MERGE_ALIASES, MergeArguments
from hftune.arguments.names.row import ALIAS, NO_EFFECT, OFF, REFUSED, WORKS, Request, Row
from hftune.arguments.names.table import read_row, table, tools
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import done_by_hftune
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser
from hftune.errors import ArgumentError
from hftune.secrets import says_secret
from hftune.tools.pipeline.steps import HUB_TOKENS

MERGING = {entry.name for entry in fields(MergeArguments)}
ROOT = Path(__file__).parents[4]
NAMES_CSV = ROOT / "hftune/arguments/names/names.csv"


@functools.cache
def parser_of(stage: str) -> HftuneParser:
    """One parser a stage; translating leaves no trace in it."""
    return stage_parser(stage)


def example(row: Row) -> list[str]:
    """A command line with the row's typical value; some need a further argument."""
    return [f"--{row.name}", *row.example.split()]


def arguments(stage: str, argv: list[str], *, to_the_end: bool = True) -> dict[str, str]:
    """What reaches argparse, by name; `to_the_end` with argparse's own checks of values and types."""
    parser = parser_of(stage)
    entries = parser.translate(argv)
    if to_the_end:
        assert not [*parser.misfits(entries)]
    return {entry.name: " ".join(map(str, entry.values)) for entry in entries}


def stages_of(row: Row) -> tuple[str, ...]:
    """The scripts of the stages that a row's example fits."""
    return tuple(stage for stage in row.stages or STAGES if stage in STAGES)


def expected(row: Row, stage: str) -> dict[str, str]:
    """Arguments that a row's example becomes."""
    if row.translation is not None:
        return dict(row.expect)
    return {row.target(stage) or "": row.example.split(" --")[0]}


def rows(*verdicts: str) -> list[Row]:
    """A thousand in all: a loop takes them in half the time of a test each."""
    return [row for row in table().values() if row.verdict in verdicts]


def test_what_works_arrives_with_its_value() -> None:
    for row in rows(WORKS, ALIAS):
        for number, stage in enumerate(stages_of(row)):
            arrived = arguments(stage, example(row), to_the_end=number == 0)  # stages share the fields of an argument
            assert {key: arrived.get(key) for key in expected(row, stage)} == expected(row, stage), (row.name, stage)
            if not row.expect and row.translation is not None:
                assert not set(arrived) & {row.name}, f"{stage}: {arrived}"


def test_what_is_refused_names_what_to_use() -> None:
    for row in rows(REFUSED):
        for stage in STAGES:
            with pytest.raises(ArgumentError) as caught:
                arguments(stage, example(row))
            filled = done_by_hftune(stage).get(row.name)
            assert f"--{row.name} cannot be used: {filled or row.because}" in str(caught.value)


def test_values_that_ask_for_what_happens_anyway_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In silence where they switch a thing off that is not there; else it is said."""
    for row in table().values():
        for value in row.harmless:
            monkeypatch.setattr(logging, "_notices", [])
            assert parser_of("pt").translate([f"--{row.name}", value]) == [], row.name
            said = [] if value in OFF or value == "0.0" else [f"--{row.name} {value} has no effect: it is so anyway"]
            assert logging.notices() == said or float(value) == 0, row.name


@pytest.mark.parametrize(
    ("argv", "passes"),
    [
        (["--muon_use_nesterov"], True),
        (["--muon_use_nesterov", "yes"], True),
        (["--muon_use_nesterov", "False"], False),
        (["--moe_z_loss_lambda", "0"], True),
        (["--muon_num_ns_steps", "5.0"], True),
        (["--apply_wd_to_qk_layernorm"], False),  # a switch without a value is switched on
        (["--apply_wd_to_qk_layernorm", "0"], True),
    ],
)
def test_switches_and_numbers_however_they_are_written(argv: list[str], passes: bool) -> None:
    if passes:
        parser_of("pt").translate(argv)
    else:
        with pytest.raises(ArgumentError, match="cannot be used"):
            parser_of("pt").translate(argv)


def test_what_has_no_effect_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in rows(NO_EFFECT):
        monkeypatch.setattr(logging, "_notices", [])
        for stage in STAGES:
            assert arguments(stage, example(row), to_the_end=False) == {}, row.name
        assert logging.notices() == [f"--{row.name} has no effect: {row.because}"]


def test_examples_that_are_not_harmless() -> None:
    """A row whose typical value passes in silence would be tested for nothing."""
    for row in table().values():
        if row.verdict in (NO_EFFECT, REFUSED):
            assert not row.asks_for_nothing(row.example.split()), row.name
            assert row.because.strip(), row.name
        assert row.does, row.name


@pytest.mark.parametrize("tool", tools())
def test_no_parameter_of_another_tool_is_unknown(tool: str) -> None:
    """Names without a row are those of transformers in every script, or of the one that merges."""
    everywhere = set.intersection(*(set(parser_of(stage).known) for stage in STAGES))
    merging = {*MERGING, *MERGE_ALIASES}
    assert [name for name in tools()[tool] if name not in table() and name not in everywhere | merging] == []


def test_counterparts_exist() -> None:
    """An alias that leads nowhere in the scripts that its row names is out of date."""
    known = {stage: set(parser_of(stage).known) for stage in STAGES} | {"merge": MERGING}
    for row in table().values():
        if row.verdict in (WORKS, ALIAS) and row.translation is None:
            assert [stage for stage in row.stages or STAGES if row.target(stage) not in known[stage]] == [], row.name


def test_refusals_name_arguments_that_exist() -> None:
    """`use --optim` must not send a user to a name that nobody has."""
    known = MERGING.union(*(parser_of(stage).known for stage in STAGES))
    known |= {row.name for row in table().values() if row.verdict == ALIAS}
    for row in table().values():
        words = row.because.replace("(", " ").replace(")", " ").replace(",", " ").replace(";", " ").split()
        flags = {word.lstrip("-").partition("=")[0] for word in words if word.startswith("--")}
        assert flags - known - {"config"} == set(), row.name


def cells(**given: str) -> dict[str, str]:
    """A line of names.csv; what is not given is empty."""
    columns = NAMES_CSV.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {*given} <= {*columns}
    return dict.fromkeys(columns, "") | {"name": "n", "topic": "data", "verdict": ALIAS} | given


def test_a_line_of_the_table_is_read() -> None:
    by_stage = read_row(cells(to="pt=block_size; sft=max_length"))
    assert by_stage.target("pt") == "block_size" and by_stage.target("rl") is None and by_stage.stages == ("pt", "sft")
    assert read_row(cells(verdict=WORKS)).to == "n"
    assert read_row(cells(harmless="-1|OFF")).harmless == ("-1", *OFF)
    assert read_row(cells(harmless="none|")).harmless == ("none", "") and read_row(cells()).harmless == ()
    assert read_row(cells(expect='a=1; b={"c": "d=e"}')).expect == (("a", "1"), ("b", '{"c": "d=e"}'))
    by_code = read_row(cells(by="models.targets")).translation
    assert by_code is read_row(cells(name="m", by="models.targets")).translation is not None
    assert by_code(Request({"target_modules": ["all-linear"]})).given == [("lora_target_modules", ["all"])]


def test_values_that_are_data() -> None:
    kinds = read_row(cells(to="use_peft", values="lora=True; none=", because="use lora"))
    answer = kinds.translation
    assert answer is not None and answer(Request({"n": ["LoRA"]})).given == [("use_peft", ["True"])]
    assert answer(Request({"n": ["none"]})).given == []
    with pytest.raises(ArgumentError, match="--n boft cannot be used: use lora"):
        answer(Request({"n": ["boft"]}))
    others_stay = read_row(cells(to="optim", values="adamw_custom=adamw_torch")).translation
    assert others_stay is not None and others_stay(Request({"n": ["sgd"]})).given == [("optim", ["sgd"])]
    switch = read_row(cells(to="bf16", values="on=True; off=False")).translation
    assert switch is not None and [switch(Request({"n": [value]})).given[0][1] for value in ("1", "no")] == [
        ["True"],
        ["False"],
    ]
    # Two names that say the same are one question: `--recompute` alone and under its older name.
    assert read_row(cells(name="m", to="bf16", values="on=True; off=False")).translation is switch


def test_a_name_stands_there_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "n,data,refused,,d,b,,,,x,,"
    (tmp_path / "names.csv").write_text(",".join(cells()) + f"\n{line}\n{line}\n")
    monkeypatch.setattr("hftune.tables.files", lambda package: tmp_path)
    with pytest.raises(AssertionError, match="twice"):
        table.__wrapped__()


def test_an_argument_of_another_script_says_which(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        arguments("sft", ["--block_size", "8", "--max_prompt_len", "4", "--lora_rnk", "2"])
    message = str(caught.value)
    assert "--block_size is no argument of run_sft.py" in message and "it belongs to run_pt.py" in message
    assert "it belongs to run_rm.py, run_dpo.py, run_rl.py" in message
    assert "did you mean --lora_rank?" in message


def test_no_harmless_argument_is_taken_for_a_secret() -> None:
    """Else manifests would lack it."""
    names = {name.replace("-", "_") for stage in STAGES for name in parser_of(stage).known} | {*table()}
    others = {"wandb_api_key", "swanlab_api_key", "swanlab_lark_secret", "ms_hub_token", "om_hub_token"}
    assert {name for name in names if says_secret(name)} == {*HUB_TOKENS, *others}
