"""Prompts whose answers all score alike are replaced by others until a batch is full (DAPO, arXiv:2503.14476, 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from trl.trainer.utils import pad

from hftune.data.mixture import MixtureSampler
from hftune.trainers.features.order import data_seed
from hftune.trainers.features.run import Run

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
        # One number for a batch, such as its tokens: computed again by the caller.
        if tensor.dim() == 0:
            continue
        found = [batches[batch][name][row] for batch, row in rows]
        side = "left" if name.startswith("prompt_") else "right"
        value = fill.get(name, 0)
        taken[name] = torch.stack(found) if tensor.dim() == 1 else pad(found, padding_value=value, padding_side=side)
    return taken


def logged_columns(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of TRL's (1.16) table of answers, a value an answer of all ranks, by their names."""
    nested = {f"{kind}/{name}": column for kind in ("rewards", "extra") for name, column in logs[kind].items()}
    return {name: logs[name] for name in ("prompt", "completion", "advantages")} | nested


class DynamicSampling:
    """Replaces groups of equal rewards, which have no advantage and only thin out the gradient.

    They are replaced by the answers to another prompt, up to `max_sampling_rounds` batches of answers a step. Groups
    are whole on a process, as preflight makes sure of; which prompts come instead depends on the seed and the step
    alone.

    Args:
        run: The trainer.
        generate: Its way from rows to a scored batch, which leaves `run.own_scores`, and its answers in the log.
    """

    def __init__(self, run: Run, generate: Callable[[list[dict[str, Any]]], Batch]) -> None:
        self.run, self.generate = run, generate

    def fill(self, output: Batch, rows: int) -> Batch:
        """A batch of `rows` rows of this process with its groups replaced; every rank must call it."""
        batches, places, uniform = [output], list(self._rows_by_group(0, rows)), self._uniform_groups(rows)
        rounds, found, shown = 1, len(uniform), [self._shown(rows)]
        while (missing := self._most_missing(uniform)) and rounds < self.run.args.max_sampling_rounds:
            fresh = self._other_rows(missing, rounds)
            batches.append(self.generate(fresh))
            shown.append(self._shown(len(fresh)))
            # The scores of the batch that was just made.
            still = set(self._uniform_groups(len(fresh)))
            groups = self._rows_by_group(len(batches) - 1, len(fresh))
            for group in (group for number, group in enumerate(groups) if number not in still):
                if uniform:
                    places[uniform.pop()] = group
            rounds += 1
        self._note_rounds(rounds, found, len(uniform), len(places))
        if len(batches) == 1:
            return output
        chosen = [row for group in places for row in group]
        merged = take_rows(batches, chosen, self.run.processing_class.pad_token_id)
        self._show(shown, chosen)
        # TRL divides by the tokens of the whole batch, which has other answers now.
        mask = merged["completion_mask"] * merged.get("tool_mask", 1)
        merged["num_items_in_batch"] = self.run.accelerator.gather(mask.sum()).sum()
        return merged

    def _shown(self, rows: int) -> dict[str, list[Any]]:
        """What the log holds of the last answers, of so many rows a process."""
        count = rows * self.run.accelerator.num_processes
        return {name: list(column)[-count:] for name, column in logged_columns(self.run._logs).items()}

    def _show(self, shown: list[dict[str, list[Any]]], chosen: list[Row]) -> None:
        """Put those answers of all batches into the log that are trained on."""
        accelerator = self.run.accelerator
        sizes = [len(batch["prompt"]) // accelerator.num_processes for batch in shown]
        own = [(batch, accelerator.process_index * sizes[batch] + row) for batch, row in chosen]
        everyone = accelerator.gather(torch.tensor(own, device=accelerator.device)).tolist()
        for name, column in logged_columns(self.run._logs).items():
            column.clear()
            # A function need not log its columns with every batch.
            column.extend(shown[batch][name][place] if name in shown[batch] else None for batch, place in everyone)

    def _rows_by_group(self, batch: int, rows: int) -> list[list[Row]]:
        number = self.run.num_generations
        return [[(batch, first + row) for row in range(number)] for first in range(0, rows, number)]

    def _uniform_groups(self, rows: int) -> list[int]:
        """Groups of this process's last answers whose rewards are all alike."""
        differ = groups_that_differ(self.run.own_scores(rows), self.run.num_generations)
        return [group for group, differs in enumerate(differ) if not differs]

    def _most_missing(self, uniform: list[int]) -> int:
        """Groups that the process lacks which lacks most: all answer together."""
        own = torch.tensor([len(uniform)], device=self.run.accelerator.device)
        return int(self.run.accelerator.gather(own).max().item())

    def _other_rows(self, groups: int, round_: int) -> list[dict[str, Any]]:
        """This process's share of further prompts, each as often as it is answered."""
        # Primes, so that no two steps and rounds of a run share a seed.
        seed = (data_seed(self.run.args) * 1_000_003 + self.run._step) * 1_009 + round_
        mixture, records = self.run.mixture, self.run.train_dataset
        if mixture is not None:
            order = list(MixtureSampler(mixture, seed))
        else:
            generator = torch.Generator().manual_seed(seed % 2**63)
            order = torch.randperm(len(records), generator=generator).tolist()
        # All ranks draw the same order, and each takes its own part of it.
        first = self.run.accelerator.process_index * groups
        # More may be missing than there are prompts.
        chosen = [order[place % len(order)] for place in range(first, first + groups)]
        return [records[index] for index in chosen for _ in range(self.run.num_generations)]

    def _note_rounds(self, rounds: int, found: int, left: int, groups: int) -> None:
        accelerator = self.run.accelerator
        counts = accelerator.gather(torch.tensor([found, left, groups], device=accelerator.device))
        found, left, groups = counts.view(-1, 3).sum(dim=0).tolist()
        metrics = self.run._metrics["train"]
        metrics["dynamic_sampling/rounds"].append(rounds)
        metrics["dynamic_sampling/replaced"].append((found - left) / groups)
        metrics["dynamic_sampling/alike"].append(left / groups)
