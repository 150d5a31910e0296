"""Groups end where both tokenisations have a border."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hftune.data.alignment.groups import Group, aligned_groups, common_regions


def test_by_hand() -> None:
    found = aligned_groups([b"to", b"ken", b"ize", b"!"], [b"token", b"iz", b"e", b"!"])
    assert found == [Group(0, 2, 0, 1), Group(2, 3, 1, 3), Group(3, 4, 3, 4)]


def test_a_space_before_everything_is_nothing() -> None:
    assert aligned_groups([b"Hello", b" you"], [b" Hello", b" you"]) == [Group(0, 1, 0, 1), Group(1, 2, 1, 2)]
    assert aligned_groups([b" ", b"Hello"], [b"Hello"]) == [Group(0, 2, 0, 1)]
    assert aligned_groups([b" a"], [b" a"]) == [Group(0, 1, 0, 1)]


def test_what_only_one_side_says_is_in_no_group() -> None:
    own = [b"Yes", b".", b"<call>", b"get_weather", b"(", b"Paris", b")", b"\xff\xff"]
    other = [b"Yes", b".", b"[", b"get_weather", b"]", b"\xff\xff"]
    assert aligned_groups(own, other) == [Group(0, 1, 0, 1), Group(1, 2, 1, 2), Group(3, 4, 3, 4), Group(7, 8, 5, 6)]
    # Too short to say what is around it.
    assert common_regions(b"ab, cd", b"xy, zw") == []


def test_a_border_within_a_common_part_only() -> None:
    # "cd" is common, but on one side it is the end of a token that begins otherwise.
    assert aligned_groups([b"ab", b"cd", b"e"], [b"xcd", b"e"]) == [Group(2, 3, 1, 2)]


@st.composite
def _cut(draw: st.DrawFn, text: bytes) -> list[bytes]:
    borders = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)))) | {0, len(text)})
    return [text[start:end] for start, end in pairwise(borders)]


@given(st.data(), st.binary(min_size=1, max_size=30))
def test_groups_are_the_smallest_parts_of_both(data: st.DataObject, text: bytes) -> None:
    own, other = data.draw(_cut(text)), data.draw(_cut(text))
    groups = aligned_groups(own, other)
    assert [place for group in groups for place in range(group.first, group.last)] == list(range(len(own)))
    assert [at for group in groups for at in range(group.other_first, group.other_last)] == list(range(len(other)))
    for group in groups:
        mine, theirs = own[group.first : group.last], other[group.other_first : group.other_last]
        assert b"".join(mine) == b"".join(theirs)
        inner = [{len(b"".join(part[:end])) for end in range(1, len(part))} for part in (mine, theirs)]
        assert not inner[0] & inner[1]
    assert aligned_groups(own, own) == [Group(at, at + 1, at, at + 1) for at in range(len(own))]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_regions_are_common_and_in_order(one: bytes, other: bytes) -> None:
    reached = other_reached = 0
    for start, other_start, length in common_regions(one, other):
        assert one[start : start + length] == other[other_start : other_start + length] and length > 0
        assert start >= reached and other_start >= other_reached
        reached, other_reached = start + length, other_start + length
