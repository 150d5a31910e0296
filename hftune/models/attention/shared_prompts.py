"""Several answers behind one prompt in a row: each attends to the prompt and to itself, none to another.

The first answer follows its prompt as in any document. Every other one is a run of tokens of its own, whose keys and
values begin with those of the prompt; its positions continue where these end. The
prompt is computed once, and gets the gradients of all answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch

from hftune.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class SharedPrompts:
    """How a row is made up: prompt, its answers, next prompt, its answers, ...

    Args:
        prompts: Tokens of each prompt.
        answers: For each prompt the tokens of its answers, in their order in the row; at least one.
    """

    prompts: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    # All layers ask for the same masks and borders.
    _masks: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def parts(self) -> list[int]:
        """Tokens of every prompt and answer, in the order of the row."""
        groups = zip(self.prompts, self.answers, strict=True)
        return [length for prompt, answers in groups for length in (prompt, *answers)]

    @property
    def runs(self) -> list[int]:
        """Tokens of every run of queries: a prompt with its first answer, or a further answer."""
        groups = zip(self.prompts, self.answers, strict=True)
        return [length for prompt, answers in groups for length in (prompt + answers[0], *answers[1:])]

    @property
    def key_runs(self) -> list[int]:
        """Tokens that each run of queries has as keys, itself and its prompt."""
        groups = zip(self.prompts, self.answers, strict=True)
        return [prompt + length for prompt, answers in groups for length in answers]

    @property
    def counts(self) -> torch.Tensor:
        """How many answers each token of the row belongs to, float32 (tokens,): more than 1 in prompts."""
        times = []
        for prompt, answers in zip(self.prompts, self.answers, strict=True):
            times += [torch.full((prompt,), float(len(answers))), torch.ones(sum(answers))]
        return torch.cat(times)

    def check(self, lengths: Sequence[int]) -> None:
        """See that an attention's runs are those of this row.

        Raises:
            ArgumentError: They are not, as in a model that cuts its own runs (chunked attention).
        """
        if list(lengths) != self.runs:
            raise ArgumentError(
                "this model's attention does not see the prompts and answers of a row as they were put there",
                place="--shared_prompts",
                fix="add --shared_prompts False",
            )

    def with_prompts(self, states: torch.Tensor, dim: int) -> list[torch.Tensor]:
        """Keys or values of a row, by run of queries, each behind those of its prompt.

        Args:
            states: A tensor with the row's tokens along `dim`.
        """
        # Split, not sliced: the backward of slices would fill a tensor of zeros for each of them.
        parts = iter(states.split(self.parts, dim=dim))
        out = []
        for answers in self.answers:
            prompt = next(parts)
            out += [torch.cat([prompt, next(parts)], dim=dim) for _ in answers]
        return out

    def borders(self, lengths: Sequence[int], device: torch.device) -> torch.Tensor:
        """Where each of `lengths` begins, and the end: int32 (runs + 1,)."""
        key = (tuple(lengths), device)
        if key not in self._masks:
            self._masks[key] = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        return self._masks[key]

    def seen(self, queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor | None:
        """Which query (row) of a run sees which key (column), bool (queries, keys); None where causal says it all.

        Args:
            queries: Tokens of the run.
            keys: The same, and those of its prompt unless it holds the prompt itself.
            window: A token sees this many tokens, itself included; None: all before it.
        """
        if queries == keys and (window is None or keys <= window):
            return None
        key = (queries, keys, window, device)
        if key not in self._masks:
            place = torch.arange(keys, device=device)
            distance = place[keys - queries :, None] - place[None, :]
            self._masks[key] = (distance >= 0) & (distance < (window or keys))
        return self._masks[key]


def shared_row(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]], device: torch.device | None = None
) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """A row of prompts with their answers behind each, and for each answer the places whose states predict its tokens.

    Args:
        prompts: Token ids of each.
        answers: For each prompt those of its answers, none of which is empty.
    """
    texts: list[Sequence[int]] = []
    positions: list[range] = []
    places: list[list[list[int]]] = []
    end = 0
    for prompt, those in zip(prompts, answers, strict=True):
        texts.append(prompt)
        positions.append(range(len(prompt)))
        places.append([])
        # The prompt's last token predicts the first token of each of its answers.
        end += len(prompt)
        last = end - 1
        for ids in those:
            places[-1].append([last, *range(end, end + len(ids) - 1)])
            texts.append(ids)
            positions.append(range(len(prompt), len(prompt) + len(ids)))
            end += len(ids)
    # Plain numbers, not tensors: masks are built of them on the host, without waiting for the device.
    shared = SharedPrompts(tuple(map(len, prompts)), tuple(tuple(map(len, those)) for those in answers))
    return {**flat_row(texts, positions, shared.runs, device), "shared_prompts": shared}, places


def flat_row(
    texts: Sequence[Sequence[int]],
    positions: Sequence[range],
    lengths: Sequence[int],
    device: torch.device | None = None,
) -> dict[str, Any]:
    """What a model is called with for one row; `lengths` are those of the runs that see only themselves."""
    row: dict[str, Any] = {
        "input_ids": torch.tensor([list(chain.from_iterable(texts))], device=device),
        "position_ids": torch.tensor([list(chain.from_iterable(positions))], device=device),
        # With a cache, transformers does not look for documents in a row.
        "use_cache": False,
    }
    borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    for side in ("q", "k"):
        row |= {f"cu_seq_lens_{side}": borders, f"max_length_{side}": max(lengths)}
    return row
