"""What the trainers that draw their own data share: order of prompts, guards of rewards, samples of answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils.data import Sampler

from hftune.arguments.training import StageArguments
from hftune.compat.patches import fused_heads
from hftune.data.mixture import ReorderedSampler
from hftune.distributed import phases
from hftune.models.decoding import Drawn, decoding_together
from hftune.models.kernels.heads import add_scoring_head
from hftune.models.loading.build import compute_dtype
from hftune.models.vocabulary import predicted_rows
from hftune.trainers.features.answers import AnswerRound, Completions, PartSeconds
from hftune.trainers.features.engine import reporting_passes
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.reward_guards import RewardGuards
from hftune.trainers.features.run import plain_model
from hftune.trainers.features.sums import MetricSums
from hftune.trainers.isolation import padded_answers, prove_answers_isolated
from hftune.trainers.online.guarded_tokenizer import guarded_tokenizer
from hftune.trainers.stage_trainer import StageTrainer

CLIP_RATIOS = frozenset(f"clip_ratio/{part}_mean" for part in ("low", "high", "region"))
"""Figures of TRL's: the share of tokens, or answers, whose ratio is cut."""


class OnlineTrainer(StageTrainer):
    """Put before one of TRL's trainers (1.16) that generate: each method of TRL's that hftune changes, once.

    Attributes:
        guards: Say where rewards teach nothing.
        scores: Weighted sums of the rewards of the last batch of answers, (completions of all ranks,); NaN where no
            function had an opinion.
        drawn: The last answers with their log-probabilities as they were drawn; None once these are used.
        sums: Means of training and evaluation over all since the last log.
        rollout: The answers of all micro batches, where an algorithm deals them anew in each iteration.
    """

    scores: torch.Tensor
    drawn: Drawn | None = None
    rollout: dict[str, Any] | None = None
    processing_class: Any
    _keeper: Any = None  # stands for the tokenizer where prompts are encoded

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Before all others: rounds of answers go on."""
        self.guards, self.samples = RewardGuards(), Completions()
        self.sums = {mode: MetricSums(args.device) for mode in ("train", "eval")}
        return [AnswerRound(), PartSeconds(), *super().make_features(model, args)]

    def draw_order(self, dataset: Any) -> Sampler[Any] | None:
        """A mixture's order inside TRL's pattern, which repeats prompts for several answers and uses of them."""
        drawn: Any = super().draw_order(dataset)
        if drawn is None:
            return None
        # Over the places 0, 1, 2, ... of an epoch, whichever records are drawn for them.
        pattern = self.upstream_sampler(range(len(drawn)))
        # The mixture is in random order already.
        pattern.shuffle = False
        return ReorderedSampler(pattern, drawn)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Overrides `Trainer.log`: means over all since the last log are added, samples of the answers are written."""
        mode = "train" if self.model.training else "eval"
        # Of a step or an evaluation, which every rank logs; what one alone logs must wait for no other.
        if any(name == "loss" or name.endswith("_loss") for name in logs):
            self._metrics[mode] |= {name: [mean] for name, mean in self.sums[mode].means(self.accelerator).items()}
        super().log(logs, start_time)
        self.samples.write(self)

    def count_trained_tokens(self) -> int | None:
        """Those of all answers."""
        return self.samples.trained_tokens(self)

    def build_upstream(self, **kwargs: Any) -> None:
        """TRL's constructor adds heads that give log-probabilities: only where they are the model's own."""
        args = kwargs["args"]
        # PPO's and GRPO's bonus; GRPO has a coefficient that adapts itself as well.
        bonus = bool(getattr(args, "entropy_coef", 0.0) or getattr(args, "use_adaptive_entropy", False))
        head = partial(add_scoring_head, shares_prompts=args.flat_batches, trains_entropy=bonus)
        with fused_heads(head):
            super().build_upstream(**kwargs)

    def prove_isolation(self, model: Any) -> None:
        """By the log-probabilities of answers that share their prompts in a row, and of each alone."""
        batch = padded_answers(predicted_rows(self.model), self.args.device)

        def scored(rows: list[int]) -> torch.Tensor:
            log_probs: torch.Tensor = model(
                **{name: one[rows] for name, one in batch.items()}, fused_lm_head=True
            ).log_probs
            return log_probs

        every = range(len(batch["labels"]))
        prove_answers_isolated(
            self,
            model,
            lambda: scored([*every]),
            lambda: torch.cat([scored([row]) for row in every]),
            place="--shared_prompts / --attn_implementation",
            fix="add --shared_prompts False",
        )

    def _generate(self, prompts: list[Any]) -> Any:
        """Overrides TRL's: a phase that the watchdog times; what follows it is scoring."""
        phases.enter(phases.GENERATION, self.state.global_step)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        plain = plain_model(model)
        together = decoding_together(plain, compute_dtype(self.args))
        with reporting_passes(model), together as drawn:
            result = super()._generate(prompts)
        self.drawn = drawn
        phases.enter(phases.REWARDS)
        return result

    def drawn_log_probs(self, ids: torch.Tensor, mask: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """What the policy that drew these answers said of their tokens, (rows, tokens), where that is known exactly."""
        drawn, self.drawn = self.drawn, None
        return None if drawn is None else drawn.log_probs_of(ids, mask, tokens)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Overrides TRL's, which scores a batch of answers in micro batches: each reports to the watchdog."""
        # A step with gradients has phases of its own; a compiled model would be compiled anew for the hook.
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        # An evaluation's own pass is neither, and its losses are read with the old ones.
        reference = model is self.ref_model or is_reference(model)
        phases.enter(phases.REFERENCE if reference else phases.OLD)
        # The old policy is the one that has just drawn.
        wants_more = kwargs.get("compute_entropy") or kwargs.get("compute_aux_loss")
        if not reference and not wants_more and (said := self.drawn_log_probs(*args[:3])) is not None:
            return said, None, None
        if self.args.torch_compile:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        with reporting_passes(self.accelerator.unwrap_model(model)):
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], ids: list[list[int]]
    ) -> torch.Tensor:
        """Overrides TRL's (completions of all ranks, functions): guards measure on the way."""
        phases.enter(phases.REWARDS)  # what reads log-probabilities before may have taken long
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, ids)
        # A function that has no opinion gives NaN, which counts as 0 among others that have one.
        weights = self.reward_weights.to(rewards.device)
        # Where none has an opinion, 0 would be a reward like any other. One of weight 0 is logged, and scores nothing.
        unscored = rewards[:, weights != 0].isnan().all(dim=1)
        rewards = rewards.masked_fill(unscored[:, None], torch.nan)
        self.scores = (rewards * weights).nansum(dim=1).masked_fill(unscored, torch.nan)
        self.guards.look_at(self, rewards, self.scores, ids)
        return rewards

    def own_scores(self, rows: int) -> torch.Tensor:
        """This rank's part of `scores`, of a batch of so many rows a rank."""
        return self.scores[self.accelerator.process_index * rows :][:rows]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        """Overrides TRL's: of one scored answer a prompt has a deviation of NaN, and teaches as little as with 0."""
        output = super()._generate_and_score_completions(inputs)
        mode, number = ("train", self.num_generations) if self.model.training else ("eval", self.num_generations_eval)
        lacking = (~self.scores.isnan()).view(-1, number).sum(dim=1) < 2
        alike = self._metrics[mode]["frac_reward_zero_std"]
        alike[-1] = min(1.0, alike[-1] + lacking.float().mean().item())
        return output

    def join_figures(self, mask: torch.Tensor, of_tokens: Collection[str], of_answers: Collection[str]) -> None:
        """Put means over all since the last log in the place of what TRL has logged of the last micro batch.

        TRL logs the mean of the means of micro batches: another one for each way to cut a batch.

        Args:
            mask: (answers, tokens) of this rank's micro batch; 0 for what is left out.
            of_tokens, of_answers: Names of means over tokens, and over answers, of all ranks.
        """
        mode = "train" if self.model.training else "eval"
        figures = self._metrics[mode]
        for names, count in ((of_tokens, mask.sum()), (of_answers, mask.new_tensor(len(mask)))):
            for name in figures.keys() & names:
                *joined, latest = figures.pop(name)
                figures |= {name: joined} if joined else {}
                if not math.isnan(latest):
                    # Each rank has the mean of all: weighted by what each counts, it is that of all again.
                    self.sums[mode].add(name, torch.full_like(count, latest, dtype=torch.float64), count)
        for name, of in (("clip_ratio/low_min", min), ("clip_ratio/high_max", max)):
            if known := [value for value in figures.get(name, []) if not math.isnan(value)]:
                figures[name] = [of(known)]

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        """Overrides TRL's: prompts stay text (`--borders_in_text`)."""
        with self._keeping_text():
            return super()._tokenize_prompts(prompts)

    def _get_tool_suffix_ids(self, tool_messages: list[Any]) -> Any:
        """Overrides TRL's: results of tools stay text."""
        with self._keeping_text():
            return super()._get_tool_suffix_ids(tool_messages)

    @contextmanager
    def _keeping_text(self) -> Iterator[None]:
        given = self.processing_class
        # Made once, and late: TRL's constructor may change the tokenizer.
        if self._keeper is None:
            self._keeper = guarded_tokenizer(given, self.args.borders_in_text)
        self.processing_class = self._keeper
        try:
            yield
        finally:
            self.processing_class = given


def is_reference(model: torch.nn.Module) -> bool:
    """Whether a policy is what it began as now: its adapter is off, or a copy of its beginning is on."""
    layer = next((one for one in model.modules() if isinstance(one, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or "ref" in layer.active_adapters)
