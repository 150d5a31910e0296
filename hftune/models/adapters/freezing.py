"""Which parameters are trained: by prefix, regex, or share from the bottom.

Flags, order and meaning are Megatron-SWIFT's: first what is frozen, then what is trainable, which wins. Unlike there,
a name that matches nothing is an error.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.distributed import zero
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.structure import decoder_list, other_parameters


def freeze(model: PreTrainedModel, args: AdapterArguments) -> None:
    """Set `requires_grad` of every parameter as the arguments say. Tied parameters are one.

    Raises:
        ArgumentError: As `plan_freezing`.
    """
    trained = plan_freezing(model, args)
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def plan_freezing(model: PreTrainedModel, args: AdapterArguments) -> set[int]:
    """Ids of the parameters that are trained. Reads names and sizes only: a model on the meta device will do.

    Raises:
        ArgumentError: A prefix or regex that matches nothing, or nothing that is left to train.
    """
    # By identity, so that tied parameters, which have two names, are one.
    others = other_parameters(model)
    trained = {id(parameter) for parameter in model.parameters()} - others
    trained -= set(_ids(_first(model, args.freeze_parameters_ratio)))
    problems: list[ArgumentError] = []
    frozen = _named(model, args.freeze_parameters, args.freeze_parameters_regex, "freeze", problems)
    wanted = _named(model, args.trainable_parameters, args.trainable_parameters_regex, "trainable", problems)
    raise_together(problems)
    trained = (trained - set(_ids(frozen))) | set(_ids(wanted))
    if others and trained <= others:
        raise ArgumentError(
            "no text passes through what is to be trained: towers and projectors have no gradient",
            place="--trainable_parameters / --freeze_parameters",
            fix="name parameters of the language model, " + (decoder_list(model) or "layers"),
        )
    trained -= others
    if not trained:
        raise ArgumentError(
            "every parameter is frozen",
            place="--freeze_parameters / --freeze_parameters_ratio",
            fix="name what is trained: --trainable_parameters lm_head",
        )
    return trained


def modules_to_unfreeze(model: PreTrainedModel, args: AdapterArguments) -> list[str]:
    """Whole names of the modules that `--trainable_parameters*` mean next to an adapter.

    An adapter's file holds no parameters of the base but those of whole modules.

    Raises:
        ArgumentError: A name that matches nothing, or a part of a module only.
    """
    if not args.unfreezes:
        return []
    problems: list[ArgumentError] = []
    wanted = _named(model, args.trainable_parameters, args.trainable_parameters_regex, "trainable", problems)
    raise_together(problems)
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in wanted))
    # A module within another that is named is saved with it.
    owners = [owner for owner in owners if not any(owner.startswith(f"{other}.") for other in owners)]
    for owner in owners:
        inside = [name for name, _ in _all(model) if name.startswith(f"{owner}.")]
        left_out = [name for name in inside if name not in wanted]
        if not owner or left_out:
            raise ArgumentError(
                f"an adapter saves whole modules, and {', '.join(left_out or inside)[:80]} of {owner or 'the model'} "
                "would be left out",
                place="--trainable_parameters",
                fix=f"name all of {owner}., or train without --use_peft" if owner else "train without --use_peft",
            )
    return owners


def _all(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Every name, also the second one of a tied parameter."""
    return list(model.named_parameters(remove_duplicate=False))


def _ids(parameters: dict[str, torch.nn.Parameter]) -> Iterator[int]:
    return map(id, parameters.values())


def _first(model: torch.nn.Module, ratio: float) -> dict[str, torch.nn.Parameter]:
    """The first parameters, in the model's order, that together hold no more than this share of all elements."""
    # Full sizes: under ZeRO-3 a parameter's own are those of its part on this rank.
    others = other_parameters(model)
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in others]
    sizes = list(accumulate(zero.full_numel(parameter) for _, parameter in named))
    return dict(named[: bisect_right(sizes, int(sizes[-1] * ratio))]) if ratio > 0 else {}


def _named(
    model: torch.nn.Module,
    prefixes: Iterable[str] | None,
    regex: str | None,
    what: str,
    problems: list[ArgumentError],
) -> dict[str, torch.nn.Parameter]:
    """Parameters whose name begins with one of the prefixes, or contains a match of the regex (`re.search`)."""
    named = _all(model)
    chosen: dict[str, torch.nn.Parameter] = {}
    for prefix in prefixes or []:
        found = {name: parameter for name, parameter in named if name.startswith(prefix)}
        if not found:
            problems.append(_no_match(f"--{what}_parameters {prefix}", "begins with it", named))
        _say_longer_numbers(f"--{what}_parameters", prefix, found)
        chosen |= found
    if regex is not None:
        flag = f"--{what}_parameters_regex {regex}"
        try:
            pattern = compiled(regex, flag)
        except ArgumentError as problem:
            problems.append(problem)
            return chosen
        found = {name: parameter for name, parameter in named if pattern.search(name)}
        if not found:
            problems.append(_no_match(flag, "holds a match of it", named))
        chosen |= found
    return chosen


def compiled(regex: str, flag: str) -> re.Pattern[str]:
    """The compiled regex.

    Raises:
        ArgumentError: It is none.
    """
    try:
        return re.compile(regex)
    except re.error as error:
        fix = "write one as Python's re takes it, such as '.*layers.[0-3].*(q|v)_proj'"
        raise ArgumentError(f"{regex!r} is no regular expression: {error}", place=flag, fix=fix) from error


def _no_match(flag: str, how: str, named: list[tuple[str, torch.nn.Parameter]]) -> ArgumentError:
    middle = named[len(named) // 2][0]
    return ArgumentError(
        f"no parameter's name {how}", place=flag, fix=f"names look like {named[0][0]}, {middle}, {named[-1][0]}"
    )


def _say_longer_numbers(flag: str, prefix: str, found: Iterable[str]) -> None:
    """Say that `model.layers.1` also begins the names of layers 10 to 19, which may not be meant."""
    longer = [name for name in found if prefix[-1:].isdigit() and name[len(prefix) :][:1].isdigit()]
    if longer:
        notice(f"{flag} {prefix} also means {longer[0]} and others like it; write {prefix}. to mean that one alone")
