"""The table of `--print_groups`: which parameters train at which rate."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hftune.trainers.optimizers.parameter_groups import Group


def group_table(groups: list[Group], optimizer: str) -> str:
    """What `--print_groups` shows: a line a group, then its members, layers folded."""
    lines = [f"{'group':>5}  {'learning rate':>13}  {'decay':>8}  {'tensors':>7}  {'elements':>13}  optimizer"]
    for number, group in enumerate(groups):
        lines.append(
            f"{number:>5}  {group.lr:>13.6g}  {group.weight_decay:>8.4g}  {len(group.members):>7}  "
            f"{group.elements:>13,}  {_rule(group, optimizer)}"
        )
        lines += [f"{'':>7}{name}" for name in fold_layer_numbers(name for name, _ in group.members)]
    total = sum(group.elements for group in groups)
    lines.append(f"{'all':>5}  {'':>13}  {'':>8}  {sum(len(g.members) for g in groups):>7}  {total:>13,}")
    return "\n".join(lines)


def _rule(group: Group, optimizer: str) -> str:
    extra = [f"{name}={value}" for name, value in group.options.items() if name not in ("use_muon", "betas", "eps")]
    name = f"{optimizer}: {'AdamW' if group.rule == 'adam' else 'Muon'}" if group.rule else optimizer
    return " ".join([name, *extra])


def fold_layer_numbers(names: Iterable[str]) -> list[str]:
    """Names with the numbers of their layers folded: layers.0-29.self_attn.q_proj.weight."""
    numbers: dict[str, list[list[int]]] = {}
    for name in names:
        found = [int(number) for number in re.findall(r"(?<=\.)\d+(?=\.)", name)]
        numbers.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "{}", name), []).append(found)
    return [
        pattern.format(*(_ranges(column) for column in zip(*rows, strict=True))) for pattern, rows in numbers.items()
    ]


def _ranges(numbers: Iterable[int]) -> str:
    """0,1,2,5 as 0-2,5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][-1:] = [number] if len(parts[-1]) > 1 else [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
