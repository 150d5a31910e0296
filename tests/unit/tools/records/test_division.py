"""`--shard` and `--join` on the command line, and which range is a part's."""

from __future__ import annotations

import pytest

from hftune.errors import ArgumentError
from hftune.tools.records.division import Shard, take_own


@pytest.mark.parametrize("count", [0, 1, 7, 8, 1000])
@pytest.mark.parametrize("of", [1, 3, 8])
def test_ranges_follow_each_other_and_are_of_one_size(count: int, of: int) -> None:
    ranges = [Shard(number, of).range(count) for number in range(1, of + 1)]
    assert [at for begin, end in ranges for at in range(begin, end)] == [*range(count)]
    sizes = [end - begin for begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("run_sft --seed 1", (None, [], ["run_sft", "--seed", "1"])),
        ("run_sft --shard 2/4 --seed 1", (Shard(2, 4), [], ["run_sft", "--seed", "1"])),
        ("--shard=2/4 run_sft", (Shard(2, 4), [], ["run_sft"])),
        ("--shard 2/4 run_sft", (Shard(2, 4), [], ["run_sft"])),
        ("run_sft --join a b --seed 1 2", (None, ["a", "b"], ["run_sft", "--seed", "1", "2"])),
        ("run_sft --join=a b", (None, ["a", "b"], ["run_sft"])),
    ],
)
def test_own_flags_are_taken_out(argv: str, expected: tuple[Shard | None, list[str], list[str]]) -> None:
    assert take_own(argv.split()) == expected


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        *((f"run_sft --shard {text}", "is no part") for text in ("0/4", "5/4", "2", "a/b", "-1/2", "1/0", "1/2/3", "")),
        ("run_sft --shard --seed 1", "is no part"),
        ("run_sft --join --seed 1", "no part is named"),
        ("run_sft --shard 1/2 --join a", "parts are made, or joined"),
        ("run_sft --shard 1/2 --shard 2/2", "given twice"),
    ],
)
def test_what_is_no_division_is_refused(argv: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as error:
        take_own(argv.split())
    assert error.value.fix
