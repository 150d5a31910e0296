"""Preference optimisation (DPO, arXiv:2305.18290, and its relatives): one loss whatever the layout of a batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.models import get_act_offloading_ctx_manager
from trl.trainer.utils import disable_dropout_in_model

from hftune.arguments import DPOArguments
from hftune.data.splits import Splits
from hftune.models.answer_head import add_answer_head
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.isolation import plainly
from hftune.trainers.pair_batches import COLUMNS, FILLER, PairCollator
from hftune.trainers.pair_loss import PairLossTrainer, settings_of
from hftune.trainers.pair_metrics import PairMetrics
from hftune.trainers.references import ReferenceMixin
from hftune.trainers.shared_proof import prove_alike
from hftune.trainers.stage_trainer import HftuneTrainerMixin


class DPOTrainer(ReferenceMixin, HftuneTrainerMixin, PairLossTrainer):
    """`transformers.Trainer` on pairs that hftune has tokenised, with the arguments and metrics of TRL's DPO trainer.

    TRL's own (1.16) pads, projects prompts onto the vocabulary on a CPU, and reads metrics back in every step.

    Args:
        model: As it is trained.
        args: Settled by `preflight.preference_checks.settle_rows`.
        ref_model: Another model as reference; None: the model as it is now.
        starts_as_base: Whether the model with its adapter off is what it is with it on.
    """

    # Means over pairs: the Trainer divides by accumulated batches itself.
    loss_is_scaled_for_ga = False

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
        self.metrics = {"train": PairMetrics(), "eval": PairMetrics()}
        self.seen_tokens = torch.zeros((), dtype=torch.long, device=args.device)
        self.settings = settings_of(args)
        assert isinstance(tokenizer.pad_token_id, int), "load_tokenizer gives it a pad token"
        collator = PairCollator(
            tokenizer.pad_token_id,
            flat=args.flat_batches,
            shared=bool(args.shared_prompts),
            pad_to_multiple_of=args.pad_to_multiple_of,
        )
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        plain.config.get_text_config().pad_token_id = tokenizer.pad_token_id
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
        self.model_accepts_loss_kwargs = False  # as `loss_is_scaled_for_ga`, before transformers 5.20
        self.mixture = data.mixture
        self.settle_reference(ref_model, starts_as_base)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's; activations go to the CPU where that was asked for."""
        offloading = get_act_offloading_ctx_manager(self.model) if self.args.activation_offloading else nullcontext()
        with offloading:
            return super().training_step(*args, **kwargs)

    def _prove_apart(self, model: Any) -> None:
        """Once a run, where pairs lie side by side."""
        if self._proven_apart or not self.args.flat_batches:
            return
        self._proven_apart = True

        def score(batch: dict[str, Any]) -> torch.Tensor:
            log_probs = self.forward_answers(model, self._prepare_inputs(batch)).log_probs
            assert log_probs is not None
            return log_probs

        was_training = model.training
        model.eval()  # dropout is no leak
        with self.compute_loss_context_manager(), plainly(self.model, self.args):
            collator: Any = self.data_collator
            prove_alike(score, collator, vocabulary_rows(self.model))
        model.train(was_training)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `Trainer.log`, with the metrics since the last log beside the training loss."""
        if "loss" in logs:
            found = self.metrics["train"].read(self.accelerator)
            found.pop("loss", None)  # the Trainer's own, over accumulated batches
            logs |= found
            logs["num_tokens"] = float(self.accelerator.reduce(self.seen_tokens.double(), "sum"))
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """As the Trainer's; loss and metrics are means over all pairs of all ranks, each counted once."""
        self.metrics["eval"] = PairMetrics()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        found = self.metrics["eval"].read(self.accelerator)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """The loss alone: logits of an evaluation are kept nowhere."""
        self._prove_apart(model)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        return loss.detach(), None, None

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As the Trainer's, with as many records as fill every rank's last batch; those are marked, and not counted."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        return super().get_eval_dataloader(marked(dataset, self.args.eval_batch_size * self.args.world_size))

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*COLUMNS, FILLER]
        super()._set_signature_columns_if_needed()


def marked(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset with a column that marks copies of its first record, as many as lack to a multiple of `multiple`."""
    missing = -len(dataset) % multiple
    whole = concatenate_datasets([dataset, dataset.select([0] * missing)]) if missing else dataset
    return whole.add_column(FILLER, [False] * len(dataset) + [True] * missing)
