"""`--shard K/N` and `--join PART ...` of `hftune tokenize`, taken out before the script's parser sees the line."""

from __future__ import annotations

from dataclasses import dataclass

from hftune.errors import ArgumentError


@dataclass(frozen=True)
class Shard:
    """Part `number`, counted from 1, `of` so many."""

    number: int
    of: int

    def range(self, count: int) -> tuple[int, int]:
        """The first of `count` things that are this part's, and the first that is not any more."""
        return count * (self.number - 1) // self.of, count * self.number // self.of


def take_own(argv: list[str]) -> tuple[Shard | None, list[str], list[str]]:
    """The part that is asked for, the parts to join, and the script with its arguments.

    Raises:
        ArgumentError: No part of so many, nothing to join, or both flags.
    """
    own: dict[str, list[str]] = {}
    rest: list[str] = []
    into = rest
    for word in argv:
        name, equals, value = word.partition("=")
        if name in own:
            raise ArgumentError(f"{name} is given twice", place=name, fix="leave one of them out")
        if name in ("--shard", "--join"):
            own[name] = into = [value] if equals else []
        else:
            into = rest if word.startswith("--") else into
            into.append(word)
    if len(own) == 2:
        raise ArgumentError("parts are made, or joined", place="--shard, --join", fix="leave one of them out")
    if "--join" in own and not own["--join"]:
        raise ArgumentError("no part is named", place="--join", fix="name the folders of all parts: --join parts/*")
    shard = None
    if "--shard" in own:
        # What follows its value is the script's again: `--shard 1/4 run_sft`.
        text, *others = own["--shard"] or [""]
        shard, rest = _shard(text), [*others, *rest]
    return shard, own.get("--join", []), rest


def _shard(text: str) -> Shard:
    number, slash, of = text.partition("/")
    if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
        return Shard(int(number), int(of))
    raise ArgumentError(f"{text!r} is no part", place="--shard", fix="give K/N: the K-th of N parts, from 1/N to N/N")
