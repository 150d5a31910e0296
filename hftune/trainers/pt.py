"""Pre-training: the next token of plain text."""

from __future__ import annotations

from typing import Any

from peft import PeftModel
from torch.utils.data import IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from hftune.arguments.training import PTArguments, StageArguments
from hftune.data.collators import causal_collator
from hftune.data.splits import Splits
from hftune.trainers.features.corpora import Blocks, Streams
from hftune.trainers.features.token_loss import TokenLoss
from hftune.trainers.token_trainer import TokenTrainer


class PTTrainer(TokenTrainer, Trainer):
    """`transformers.Trainer` on blocks of text; evaluation reports token accuracy and perplexity.

    The training data are a map-style dataset, a `BlockDataset` over tokenised folders, or a `StreamingDataset`.
    """

    reports_perplexity = True

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: PTArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        **kwargs: Any,
    ) -> None:
        self.stream, self.blocks = (Streams(), None) if isinstance(data.train, IterableDataset) else (None, Blocks())
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            data_collator=causal_collator(tokenizer.pad_token_id, flat=args.flat_batches),
            train_dataset=data.train,
            eval_dataset=data.evaluation,
            **kwargs,
        )
        self.mixture = data.mixture

    def make_token_loss(self, args: StageArguments) -> TokenLoss:
        """Without entropy, and in training without accuracy: nobody reads them."""
        return TokenLoss(measures_tokens=False, device=args.device)
