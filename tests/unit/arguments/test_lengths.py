"""Lengths of prompts and answers, each alone or as one budget."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hftune.arguments.preference import CHARACTERS, DROP, SUM, PairLengths


@dataclass
class Lengths(PairLengths):
    """With the field of TRL's that both lengths add up to."""

    max_length: int | None = 1024


def resolved(**given: object) -> Lengths:
    lengths = Lengths(**given)  # type: ignore[arg-type] # values by name
    lengths.resolve_lengths()
    return lengths


def test_both_add_up_to_the_whole() -> None:
    both = resolved(max_prompt_length=300, max_completion_length=200)
    assert both.max_length == 500 and both.separate_limits == (300, 200) and both.most_characters is None


@pytest.mark.parametrize("given", [{"max_prompt_length": 300}, {"max_completion_length": 200}, {}])
def test_one_alone_leaves_the_whole(given: dict[str, int]) -> None:
    assert resolved(**given).max_length == 1024


def test_a_sum_has_no_limits_of_its_parts() -> None:
    lengths = resolved(max_prompt_length=3, max_completion_length=2, length_budget=SUM)
    assert lengths.separate_limits == (None, None) and lengths.most_characters is None


def test_characters_are_bounded_by_the_sum() -> None:
    given = {"max_prompt_length": 3, "max_completion_length": 2, "length_budget": CHARACTERS}
    assert resolved(**given, too_long=DROP).most_characters == 5
