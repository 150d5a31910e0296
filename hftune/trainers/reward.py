"""What reward trainers share: scores and their scale; and that of pairs, one score a conversation (Bradley-Terry)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from peft import PeftModel
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.preference import RMArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints.reward_scale import RewardScale, scale_of
from hftune.constants import FILLER
from hftune.constants import REWARD_SCALE_FIELD as FIELD
from hftune.data.pair_collators import FlatPairCollator, PairCollator
from hftune.data.splits import Splits
from hftune.logging import get_logger, notice
from hftune.losses.reward_model import bradley_terry, centring
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.pair_figures import PairFigures
from hftune.trainers.features.run import Inputs, mean_over_processes, plain_model, say_if_nothing_learnt
from hftune.trainers.isolation import prove_rows_isolated
from hftune.trainers.rewards.held_out import describe, pair_figures, pair_report
from hftune.trainers.stage_trainer import StageTrainer

TRAINING_RECORDS = 500
"""As many are scored for the scale where none are held out."""


def longest_first(dataset: Dataset) -> Dataset:
    """The records, longest first, with their place in that order as `index`.

    Batches of equal length waste no padding, and what does not fit into memory shows at once.
    """
    order = np.argsort([-length for length in dataset["length"][:]], kind="stable")
    return dataset.select(order).flatten_indices().add_column("index", np.arange(len(order)))


class ScoredTrainer(StageTrainer):
    """Put before an upstream trainer: evaluates over all records at once, and measures the scale that RL wants.

    A stage's `score_figures` fills in `report`, `all_scores` and `whole_loss`.

    Args:
        collator: Of the stage.

    Attributes:
        scored: The records that are being scored, from `longest_first`.
        report: Of the last evaluation, plain values for the manifest.
        all_scores: Of the last evaluation, (scores,).
        whole_loss: Its loss over all records.
        scale: Known once training is over.
    """

    scored: Any = None
    report: Any = None
    all_scores: Any = None
    whole_loss = float("nan")
    scale: RewardScale | None = None
    _training: Any = None  # the training records that are scored where none are held out

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: RMArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        collator: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=data.train,
            eval_dataset=None if data.evaluation is None else longest_first(data.evaluation),
            data_collator=collator,
            compute_metrics=self.score_figures,
            **kwargs,
        )
        # A step's losses are divided by what is counted over accumulated batches and processes.
        self.model_accepts_loss_kwargs = True
        self.mixture = data.mixture

    def score_figures(self, prediction: EvalPrediction) -> dict[str, float]:
        """Figures over all held-out records; the report of them is kept for the manifest."""
        raise NotImplementedError

    def end_training(self) -> None:
        """Say whether the loss has fallen."""
        say_if_nothing_learnt(self)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Overrides `Trainer.evaluation_loop`: the loss over all records in place of a mean of batches' means."""
        self.scored = self._training if metric_key_prefix == "train" else self.eval_dataset
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics[f"{metric_key_prefix}_loss"] = self.whole_loss
        return output

    def before_saving(self) -> None:
        """Measure the scale of the trained model's scores and store it in its config."""
        if self.eval_dataset is not None:
            # The scores of an evaluation at the last step are still here.
            if self.current_evaluation is None:
                self.evaluate()
            get_logger().info("%s", describe(self.report))
        if hasattr(self.model.config, FIELD):
            delattr(self.model.config, FIELD)  # the base's, if that was a reward model
        if self.args.normalize_scores:
            self._measure_scale()
        super().before_saving()

    def figures(self) -> dict[str, Any]:
        """The report of held-out records, and the scale."""
        found = {} if self.report is None or self.eval_dataset is None else {"held_out": self.report}
        return found | ({} if self.scale is None else {FIELD: self.scale.to_dict()})

    def _measure_scale(self) -> None:
        if self.eval_dataset is None:
            self._score_training()
        measured_on = "training records" if self.eval_dataset is None else "held-out records"
        self.scale = scale = scale_of(self.all_scores, measured_on)
        if scale is None:
            notice("all scores are the same, or not finite: no scale is stored with the model")
            return
        setattr(self.model.config, FIELD, scale.to_dict())
        notice(
            f"scores of {measured_on}: mean {scale.mean:.4g}, standard deviation {scale.std:.4g} over {scale.scores}; "
            "stored with the model, for RL and `hftune score`"
        )

    def _score_training(self) -> None:
        count = min(TRAINING_RECORDS, len(self.train_dataset))
        notice(f"no records are held out: the scale of scores is that of {count} training records")
        self._training = longest_first(self.train_dataset.select(range(count)))
        self.predict(self._training, metric_key_prefix="train")


class RewardTrainer(ScoredTrainer, trl.RewardTrainer):
    """TRL's trainer with score differences, label smoothing and rows without padding.

    Figures of held-out pairs, the loss as well, are taken over all pairs at once: means of batches' means are other
    numbers where the last batch is smaller or ranks differ.
    """

    extra_columns = ("index",)

    # By what `count_items` counts over accumulated batches and processes.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: RMArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        pad = tokenizer.pad_token_id
        self.measured = PairFigures(args.device)
        collator = FlatPairCollator(pad) if args.flat_batches else PairCollator(pad, args.pad_to_multiple_of)
        super().__init__(model, args, tokenizer, data, collator, **kwargs)

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """Overrides TRL's: pairs are tokenised and within their limits; TRL would go through all to see that."""
        return dataset

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Figures over all pairs."""
        return [self.measured, *super().make_features(model, args)]

    def count_items(self, batches: list[Inputs], device: torch.device) -> torch.Tensor:
        """Pairs of a step, as a mean over processes."""
        return mean_over_processes(self, torch.stack([_kept(batch).sum() for batch in batches]).sum().to(device))

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The mean loss of a batch of pairs, or their sum over `num_items_in_batch`.

        With `return_outputs` also the scores, (pairs, 2).
        """
        kept = _kept(inputs)
        inputs.pop(FILLER, None)
        # Neither is an input of the model.
        difference = inputs.pop("margin", None)
        inputs.pop("index", None)
        chosen, rejected = self.conversation_scores(model, inputs).chunk(2)
        losses = self.pair_losses(chosen, rejected, difference) * kept
        loss = losses.sum() / (kept.sum() if num_items_in_batch is None else num_items_in_batch)
        if self.model.training:
            self._measure(inputs, chosen.detach(), rejected.detach(), kept)
        return (loss, torch.stack([chosen, rejected], dim=1)) if return_outputs else loss

    def conversation_scores(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """The score of each conversation in a batch, (conversations,), float32."""
        ends = inputs.pop("ends", None)
        if ends is None:
            scores: torch.Tensor = model(**inputs, use_cache=False).logits.squeeze(-1).float()
            return scores
        with token_scores(self.model) as heard:
            model(**inputs)
        return heard[-1][0, ends, 0].float()

    def pair_losses(
        self, chosen: torch.Tensor, rejected: torch.Tensor, difference: torch.Tensor | None
    ) -> torch.Tensor:
        """One loss a pair, (pairs,), as the arguments say."""
        how = self.args
        given = {}
        if difference is not None and how.score_difference != "none":
            given[how.score_difference] = difference * how.score_difference_scale
        losses = bradley_terry(chosen, rejected, label_smoothing=how.label_smoothing, **given)
        if how.center_rewards_coefficient is not None:
            losses = losses + how.center_rewards_coefficient * centring(chosen, rejected)
        return losses

    def stage_prediction(
        self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Loss, scores (pairs, 2) as chosen and rejected, and the number of each pair, so that ranks are gathered."""
        inputs = self._prepare_inputs(inputs)
        index = inputs["index"]
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, scores = self.compute_loss(model, inputs, return_outputs=True)
        # The loss of all pairs comes from their scores (`score_figures`); the Trainer only wants scores with this.
        return loss, scores, index

    def score_figures(self, prediction: EvalPrediction) -> dict[str, float]:
        """Figures over all held-out pairs; the report of them is kept for the manifest."""
        scores, index = np.asarray(prediction.predictions, dtype=np.float32), np.asarray(prediction.label_ids)
        # By their numbers: ranks and batches bring them in another order.
        pairs: Dataset = self.scored[index]
        self.report = pair_report(scores, pairs["source"] if "source" in pairs else ["all"] * len(index))
        self.all_scores = scores.flatten()
        difference = torch.tensor(pairs["margin"]) if "margin" in pairs else None
        chosen, rejected = torch.tensor(scores).unbind(1)
        self.whole_loss = float(self.pair_losses(chosen, rejected, difference).double().mean())
        return pair_figures(scores)

    def prove_isolation(self, model: Any) -> None:
        """Show it by the scores of tokens: a reward model gives one score of a row."""
        prove_rows_isolated(self, model, self._scores_of_tokens)

    def _scores_of_tokens(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """(1, tokens, 1)"""
        with token_scores(self.model) as heard:
            model(**inputs)
        return heard[-1]

    def _measure(self, inputs: Inputs, chosen: torch.Tensor, rejected: torch.Tensor, kept: torch.Tensor) -> None:
        """What TRL logs of training batches, under its names; `kept` (pairs,) is 0 for those that only fill up."""
        # Of each conversation, all chosen ones before the rejected.
        lengths = inputs["attention_mask"].sum(1) if "attention_mask" in inputs else inputs["cu_seq_lens_q"].diff()
        self.measured.seen_tokens += (lengths.view(2, -1) * kept.to(lengths.device)).sum().long()
        metrics, scores = self.measured.metrics["train"], torch.stack([chosen, rejected])
        metrics.add("mean_reward", scores, kept.expand_as(scores))
        metrics.add("accuracy", (chosen > rejected).float(), kept)
        metrics.add("margin", chosen - rejected, kept)


def _kept(inputs: Inputs) -> torch.Tensor:
    """1.0 for each pair of a batch, 0.0 for those that only fill up the last one of an epoch, (pairs,)."""
    scored = inputs["ends"] if "ends" in inputs else inputs["input_ids"]
    kept = torch.ones(len(scored) // 2, device=scored.device)
    return kept if FILLER not in inputs else kept * inputs[FILLER].to(scored.device).logical_not()


@contextmanager
def token_scores(model: Any) -> Iterator[list[torch.Tensor]]:
    """What the score head says of every token while the block runs: (rows, tokens, labels), one a forward pass.

    transformers scores all tokens of a row, and then gives the last one's alone. The model is called as ever, so that
    DeepSpeed's and DDP's own hooks have their way.
    """
    heard: list[torch.Tensor] = []
    handle = plain_model(model).score.register_forward_hook(lambda module, args, output: heard.append(output))
    try:
        yield heard
    finally:
        handle.remove()
