"""What the trainers share whose loss is a mean over labelled tokens: pre-training, fine-tuning and distillation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset, Sampler

from hftune.arguments.training import StageArguments
from hftune.constants import ORIGIN
from hftune.models.vocabulary import vocabulary_rows
from hftune.on_demand import on_demand
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, plain_model, say_if_nothing_learnt
from hftune.trainers.features.token_loss import TokenLoss, padded_with_ignored
from hftune.trainers.stage_trainer import StageTrainer

if TYPE_CHECKING:
    from hftune.trainers.features.corpora import Blocks, Streams


class TokenTrainer(StageTrainer):
    """Put before an upstream trainer, as `StageTrainer`; data may be records, a stream, or blocks of tokenised folders.

    Attributes:
        token_loss: Computes the loss and measures tokens.
        stream: Follows a stream of training data; None for others.
        blocks: Follows blocks; None but in pre-training.
    """

    token_loss: TokenLoss
    stream: Streams | None = None
    blocks: Blocks | None = None

    def make_token_loss(self, args: StageArguments) -> TokenLoss:
        """The loss of the stage."""
        return TokenLoss(measures_tokens=True, device=args.device)

    def follow(self, train: Any) -> Any:
        """Follow the training data from before the constructor, and return what upstream's may see of them.

        A stream is asked for when training begins, and not before; TRL wants to see an example, and takes no data sets
        but those of `datasets`.
        """
        if not isinstance(train, IterableDataset):
            return train
        self.stream = on_demand("hftune.trainers.features.corpora:Streams")()
        example = next(iter(train))
        return Dataset.from_list([{name: example[name].tolist() for name in ("input_ids", "labels")}])

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Data before all others, the loss behind all others."""
        self.token_loss = self.make_token_loss(args)
        data = [one for one in (self.stream, self.blocks) if one is not None]
        return [*data, *super().make_features(model, args), self.token_loss]

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """At the labels alone, where that can be."""
        made = self.token_loss.make_loss(self, model, inputs, num_items_in_batch)
        if made is not None:
            return made if return_outputs else made[0]
        return super().stage_loss(model, inputs, return_outputs, num_items_in_batch)

    def count_items(self, batches: list[Inputs], device: torch.device) -> Any:
        """The labels of a step. A held-out batch's loss is the mean over its own tokens on its own rank.

        transformers 5.23 counts those of all ranks there, and what is measured is no mean where ranks have unlike many.
        """
        return None if self.token_loss.evaluates else super().count_items(batches, device)

    def stage_prediction(self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any) -> tuple[Any, ...]:
        """The batch is added to what is measured of held-out tokens."""
        return self.token_loss.add_batch(inputs, super().stage_prediction(model, inputs, loss_only, ignore_keys))

    def held_out(self, dataset: Any) -> Any:
        """As many records as fill every rank's last batch."""
        if isinstance(dataset, Dataset):
            return padded_with_ignored(dataset, self.args.eval_batch_size * self.args.data_parallel_size)
        return dataset

    def end_training(self) -> None:
        """Say whether the model knows more than that there are tokens, and what a stream had to drop."""
        say_if_nothing_learnt(self, math.log(vocabulary_rows(plain_model(self.model))))
        if self.stream is not None:
            self.stream.say_dropped(self)

    # Data that are no list of records.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Overrides `Trainer.get_train_dataloader`: a stream is shared out by itself."""
        return super().get_train_dataloader() if self.stream is None else self.stream.make_loader(self)

    def draw_order(self, dataset: Any) -> Sampler[Any] | None:
        """Blocks are mixed by the data set itself."""
        own = None if self.blocks is None else self.blocks.sampler(dataset)
        return super().draw_order(dataset) if own is None else own

    def training_step(self, model: Any, inputs: Inputs, num_items_in_batch: Any = None) -> torch.Tensor:
        """Overrides `Trainer.training_step`: what is trained of a stream is written down."""
        origins = inputs.pop(ORIGIN, ())  # no input of a model
        loss = super().training_step(model, inputs, num_items_in_batch)
        if origins:
            self.train_dataset.progress.record(origins)
        return loss

    def count_trained_tokens(self) -> int:
        """Tokens with a loss so far, as they were counted; every rank must ask."""
        return self.speed.trained_tokens(self)
