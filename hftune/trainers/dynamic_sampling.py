"""Prompts whose answers all score alike are replaced by others until a batch is full (DAPO, arXiv:2503.14476, 3.2)."""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.utils import pad

from hftune.data.corpus.mixing import MixtureSampler
from hftune.logging import notice

Batch = dict[str, Any]
Row = tuple[int, int]
"""Which batch, and which row of it."""

ALIKE = 1e-6
"""Rewards of a group that are no further apart than this say nothing about which answer is better."""


def groups_that_differ(scores: torch.Tensor, number: int) -> list[bool]:
    """Of scores (prompts x answers,), NaN where there is none, whether the answers to each prompt differ in theirs."""
    groups = scores.view(-1, number)
    high = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    low = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    return [bool(differs) for differs in (high - low > ALIKE)]


def take_rows(batches: list[Batch], rows: list[Row], padding: int) -> Batch:
    """One batch of rows of several, padded as TRL's are: prompts on the left, all else on the right.

    Args:
        batches: Tensors (rows,) and (rows, tokens); those without a dimension are left out.
        rows: Which.
        padding: The token that pads prompts and completions; masks of tools are padded with 1, all else with 0.
    """
    fill = {"prompt_ids": padding, "completion_ids": padding, "tool_mask": 1}
    taken = {}
    for name, tensor in batches[0].items():
        if tensor.dim() == 0:
            continue
        found = [batches[batch][name][row] for batch, row in rows]
        side = "left" if name.startswith("prompt_") else "right"
        value = fill.get(name, 0)
        taken[name] = torch.stack(found) if tensor.dim() == 1 else pad(found, padding_value=value, padding_side=side)
    return taken


class DynamicSamplingMixin:
    """Put before `OnlineMixin` and TRL's `GRPOTrainer`; does nothing without `--dynamic_sampling`.

    A group of equal rewards has no advantage, so it only thins out the gradient. It is replaced by the answers to
    another prompt, up to `max_sampling_rounds` batches of answers a step. Groups are whole on a process, as preflight
    makes sure of; which prompts come instead depends on the seed and the step alone.
    """

    _scores: torch.Tensor
    _said_short = False

    def _calculate_rewards(self: Any, *args: Any) -> torch.Tensor:
        """As TRL's; keeps the weighted sums of all processes."""
        rewards: torch.Tensor = super()._calculate_rewards(*args)  # type: ignore[misc]
        weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        self._scores = weighted.masked_fill(rewards.isnan().all(dim=1), torch.nan)
        return rewards

    def _generate_and_score_completions(self: Any, inputs: list[dict[str, Any]]) -> Batch:
        """As TRL's, on the rows of this process; of training with groups replaced."""
        output: Batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if not (self.args.dynamic_sampling and self.model.training):
            return output
        batches, places, dull = [output], list(self._rows_by_group(0, len(inputs))), self._dull_groups(len(inputs))
        rounds, found = 1, len(dull)
        while (missing := self._most_missing(dull)) and rounds < self.args.max_sampling_rounds:
            fresh = self._other_rows(missing, rounds)
            batches.append(super()._generate_and_score_completions(fresh))  # type: ignore[misc]
            still = set(self._dull_groups(len(fresh)))
            rows = self._rows_by_group(len(batches) - 1, len(fresh))
            for group in (group for number, group in enumerate(rows) if number not in still):
                if dull:
                    places[dull.pop()] = group
            rounds += 1
        self._note_rounds(rounds, found, len(dull), len(places))
        if len(batches) == 1:
            return output
        merged = take_rows(batches, [row for group in places for row in group], self._tokenizer.pad_token_id)
        mask = merged["completion_mask"] * merged.get("tool_mask", 1)
        merged["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return merged

    def _rows_by_group(self: Any, batch: int, rows: int) -> list[list[Row]]:
        number = self.num_generations
        return [[(batch, first + row) for row in range(number)] for first in range(0, rows, number)]

    def _dull_groups(self: Any, rows: int) -> list[int]:
        """Groups of this process's last answers whose rewards are all alike."""
        first = self.accelerator.process_index * rows
        differ = groups_that_differ(self._scores[first : first + rows], self.num_generations)
        return [group for group, differs in enumerate(differ) if not differs]

    def _most_missing(self: Any, dull: list[int]) -> int:
        """Groups that the process lacks which lacks most: all answer together."""
        own = torch.tensor([len(dull)], device=self.accelerator.device)
        return int(self.accelerator.gather(own).max().item())

    def _other_rows(self: Any, groups: int, round_: int) -> list[dict[str, Any]]:
        """This process's share of further prompts, each as often as it is answered."""
        seed = (self._data_seed() * 1_000_003 + self._step) * 1_009 + round_
        if self.mixture is not None:
            order = list(MixtureSampler(self.mixture, seed))
        else:
            generator = torch.Generator().manual_seed(seed % 2**63)
            order = torch.randperm(len(self.train_dataset), generator=generator).tolist()
        first = self.accelerator.process_index * groups
        chosen = [order[place % len(order)] for place in range(first, first + groups)]
        return [self.train_dataset[index] for index in chosen for _ in range(self.num_generations)]

    def _note_rounds(self: Any, rounds: int, found: int, left: int, groups: int) -> None:
        counts = self.accelerator.gather(torch.tensor([found, left, groups], device=self.accelerator.device))
        found, left, groups = counts.view(-1, 3).sum(dim=0).tolist()
        metrics = self._metrics["train"]
        metrics["dynamic_sampling/rounds"].append(rounds)
        metrics["dynamic_sampling/replaced"].append((found - left) / groups)
        metrics["dynamic_sampling/alike"].append(left / groups)
        if left and not self._said_short:
            self._said_short = True
            notice(
                f"after {rounds} rounds the answers to {left} of {groups} prompts still all score alike, and are kept; "
                "dynamic_sampling/alike in the log says so of each step"
            )
