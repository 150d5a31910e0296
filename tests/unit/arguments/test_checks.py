"""What arguments of one class contradict: each row of the table refuses its example, with its words."""

from __future__ import annotations

import re

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES
from hftune.checks import Check, checks
from hftune.errors import ArgumentError

ROWS = [check for rows in checks("hftune.arguments").values() for check in rows]


@pytest.mark.parametrize("check", ROWS, ids=lambda check: check.example)
def test_an_example_is_refused_by_its_row(check: Check) -> None:
    stage, *flags = check.example.split() if check.example.split()[0] in STAGES else ["sft", *check.example.split()]
    with pytest.raises(ArgumentError) as refused:
        parse_arguments(stage, ["--output_dir", "o", *flags])
    said = refused.value
    for text, found in ((check.cause, said.cause), (check.place, said.place), (check.fix, said.fix)):
        assert re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(text)), str(found)), found
    assert "{" not in said.cause
