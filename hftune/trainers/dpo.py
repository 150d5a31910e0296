"""Direct preference optimisation (arXiv:2305.18290): preference pairs without a reward model."""

from __future__ import annotations

from typing import Any

import trl
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments import DPOArguments
from hftune.data.splits import Splits
from hftune.trainers.base import HftuneTrainerMixin


class DPOTrainer(HftuneTrainerMixin, trl.DPOTrainer):
    """TRL's trainer on pairs that hftune has tokenised.

    The reference is the model as it was at the start: a fresh adapter switched off, a copy of one that goes on or began
    with a part of the base, or a second model in full training.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: DPOArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        *,
        starts_as_base: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.mixture = data.mixture
        if isinstance(model, PeftModel) and starts_as_base:
            # TRL copies any adapter that it did not make itself. One that changes nothing yet needs no copy: the model
            # with its adapter off is the same reference.
            model.delete_adapter("ref")

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """Records are tokenised already (`prompt_ids`, `chosen_ids`, `rejected_ids`); TRL would do it again."""
        return dataset
