"""Preference optimisation (DPO, arXiv:2305.18290, and its relatives): one loss whatever the layout of a batch."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.models import get_act_offloading_ctx_manager
from trl.trainer import disable_dropout_in_model

from hftune.arguments.preference import DPOArguments
from hftune.arguments.training import StageArguments
from hftune.constants import FILLER
from hftune.data.splits import Splits
from hftune.models.kernels.heads import add_answer_head
from hftune.models.vocabulary import predicted_rows
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.pair_figures import PairFigures, marked
from hftune.trainers.features.reference_policy import PRECOMPUTED, ReferencePolicy
from hftune.trainers.features.run import Inputs, mean_over_processes, plain_model, say_if_nothing_learnt
from hftune.trainers.isolation import made_up_answers, prove_answers_isolated
from hftune.trainers.preference.batches import COLUMNS, PairCollator, counts_of
from hftune.trainers.preference.loss import PairLoss, forward_answers
from hftune.trainers.stage_trainer import StageTrainer


class DPOTrainer(StageTrainer, trl.DPOTrainer):
    """TRL's trainer on pairs that hftune has tokenised, with losses and a reference of its own.

    Arguments, metrics and methods are TRL's (1.16). Its loss pads and reads metrics back in every step, and its
    constructor copies adapters, loads a second model and projects prompts onto the vocabulary on a CPU: neither runs.

    Args:
        model: As it is trained.
        args: Settled by `preflight.rules.preference.settle_rows`.
        ref_model: Another model as reference; None: the model as it is now.
        starts_as_base: Whether the model with its adapter off is what it is with it on.
    """

    extra_columns = (*COLUMNS, FILLER)

    # By what `count_items` counts over accumulated batches and processes.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: DPOArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        *,
        ref_model: PreTrainedModel | None = None,
        starts_as_base: bool = False,
        **kwargs: Any,
    ) -> None:
        self.ref_model = None
        self.reference_policy, self.pair_figures = ReferencePolicy(self), PairFigures(args.device)
        assert isinstance(tokenizer.pad_token_id, int), "load_tokenizer gives it a pad token"
        collator = PairCollator(
            tokenizer.pad_token_id,
            flat=args.flat_batches,
            shared=bool(args.shared_prompts),
            pad_to_multiple_of=args.pad_to_multiple_of,
        )
        plain = plain_model(model)
        plain.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        # Before the constructor, which wraps and compiles.
        for each in (plain, ref_model):
            if each is not None:
                if args.disable_dropout:
                    disable_dropout_in_model(each)
                add_answer_head(each)
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=collator,
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = True  # as `loss_is_scaled_for_ga`, before transformers 5.20
        self.mixture = data.mixture
        self.pair_loss = PairLoss(self, self.reference_policy, self.pair_figures)
        self.reference_policy.choose(ref_model, starts_as_base)
        self.precompute_ref_logps = self.reference_policy.kind == PRECOMPUTED

    def build_upstream(self, **kwargs: Any) -> None:
        """Leave TRL's own constructor out; those of its methods that run find the attributes that it would have set."""
        # The class above TRL's DPOTrainer in the order of bases.
        super(trl.DPOTrainer, self).__init__(**kwargs)
        self._tokenizer, self._is_vision_dataset = self.processing_class, False
        self.maybe_activation_offload_context = (
            get_act_offloading_ctx_manager(self.model) if self.args.activation_offloading else nullcontext()
        )
        # Metrics are kept by a feature, and TRL's `log` finds none to add.
        self._metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list), "eval": defaultdict(list)}

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """The reference before all that asks for data, and figures over all."""
        return [self.pair_figures, self.reference_policy, *super().make_features(model, args)]

    def count_items(self, batches: list[Inputs], device: torch.device) -> torch.Tensor:
        """Records and chosen tokens of a step, (2,), as a mean over processes."""
        self.pair_loss.begin_step(batches)
        return mean_over_processes(self, torch.stack([counts_of(batch) for batch in batches]).sum(0).to(device))

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The weighted sum of the losses asked for, a scalar; metrics are added up on the way."""
        loss, outputs = self.pair_loss.loss(model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def answer_sums(self, model: Any, inputs: Inputs) -> torch.Tensor:
        """log pi of each answer of a batch under a model, (answers,)."""
        return self.pair_loss.answer_sums(forward_answers(model, inputs), inputs)

    def stage_prediction(self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any) -> tuple[Any, ...]:
        """The loss alone: logits of an evaluation are kept nowhere."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        # Metrics are added up on the way; logits of long answers would fill the memory.
        return loss.detach(), None, None

    def held_out(self, dataset: Any) -> Any:
        """As many records as fill every rank's last batch; those are marked, and not counted."""
        return marked(dataset, self.args.eval_batch_size * self.args.world_size)

    def end_training(self) -> None:
        """Say whether the loss has fallen."""
        say_if_nothing_learnt(self)

    def saving_weights(self, folder: Path) -> AbstractContextManager[None]:
        """Without the copy of the adapter that the reference may be."""
        return self.reference_policy.left_out()

    def prove_isolation(self, model: Any) -> None:
        """By the log-probabilities of answers, in the layout of this run and padded."""
        names = ("prompt_ids", "chosen_ids", "rejected_ids")
        made = made_up_answers(predicted_rows(self.model), self.args.device)
        records = [dict(zip(names, one, strict=True)) for one in made]

        def score(collator: PairCollator) -> torch.Tensor:
            log_probs = forward_answers(model, self._prepare_inputs(collator(records))).log_probs
            assert log_probs is not None
            return log_probs

        prove_answers_isolated(
            self,
            model,
            partial(score, self.data_collator),
            partial(score, PairCollator(self.data_collator.pad_token_id, flat=False)),
            place="--shared_prompts / --padding_free / --attn_implementation",
            fix="add --shared_prompts False, or if that does not help --padding_free False",
        )

    # TRL's methods of a reference, which its `evaluate` calls for records that the trainer was not given.

    def compute_ref_log_probs(self, model: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Overrides TRL's: log pi_ref of chosen and rejected answers of any layout, (pairs,) each."""
        return self.reference_policy.log_probs(model, inputs).chunk(2)

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """Overrides TRL's: tokenised records stay as they are; others are tokenised as TRL does it."""
        if "prompt_ids" in dataset.column_names:
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        """Overrides TRL's: by hftune's cache, whatever the world."""
        return self.reference_policy.add_to_others(dataset, name)
