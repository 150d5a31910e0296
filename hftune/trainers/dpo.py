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

    The reference is the model as it was at the start: a fresh adapter switched off, a copy of a continued adapter, or
    a second model in full training.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: DPOArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        *,
        continues_adapter: bool = False,
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
        if isinstance(model, PeftModel) and not continues_adapter:
            # TRL copies any adapter that it did not make itself. A fresh one changes nothing yet, so the model with
            # its adapter off is the same reference without the copy.
            model.delete_adapter("ref")

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """Records are tokenised already (`prompt_ids`, `chosen_ids`, `rejected_ids`); TRL would do it again."""
        return dataset
