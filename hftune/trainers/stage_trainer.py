"""What hftune's trainers share beyond the trainers they extend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import has_length

from hftune.arguments import StageArguments
from hftune.data.collators import CausalCollator, FlatCollator
from hftune.data.corpus.mixing import Mixture, MixtureSampler
from hftune.distributed import zero
from hftune.errors import ArgumentError, DataError, UserError
from hftune.models.heads import without_tied
from hftune.models.initialisation import load_trained, rewrite_as_plain, started_from
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.features.adapter_precision import AdapterPrecisionMixin
from hftune.trainers.features.checkpoints import CheckpointMixin
from hftune.trainers.features.dropout import DropoutMixin
from hftune.trainers.features.expert_parallel import ExpertParallelMixin
from hftune.trainers.features.gradient_norms import GradNormMixin
from hftune.trainers.features.nan_guard import FiniteMixin
from hftune.trainers.features.optimizers import OptimizerMixin
from hftune.trainers.features.phases import PhaseMixin
from hftune.trainers.features.router_loss import RouterLossMixin
from hftune.trainers.features.sequence_parallel import SequenceMixin
from hftune.trainers.features.shared_rows import SharedRowsMixin
from hftune.trainers.features.speed import SpeedMixin
from hftune.trainers.features.stopping import StoppingMixin
from hftune.trainers.features.tiling import TilingMixin
from hftune.trainers.features.totals import TotalsMixin
from hftune.trainers.features.whole_epochs import WholeEpochMixin, innermost_sampler
from hftune.trainers.hub import LeavingMixin
from hftune.trainers.isolation import plainly, prove_apart
from hftune.trainers.metrics import load_metric
from hftune.trainers.resharding import ResumeMixin


class HftuneTrainerMixin(
    TotalsMixin,
    StoppingMixin,
    SpeedMixin,
    PhaseMixin,
    FiniteMixin,
    CheckpointMixin,
    ResumeMixin,
    ExpertParallelMixin,
    WholeEpochMixin,
    OptimizerMixin,
    RouterLossMixin,
    DropoutMixin,
    AdapterPrecisionMixin,
    GradNormMixin,
    SharedRowsMixin,
    SequenceMixin,
    TilingMixin,
    LeavingMixin,
):
    """Put before a `Trainer` subclass.

    Evaluation returns all that it measured, and perplexity beside a token loss. Several sources are drawn as the
    `Splits` say. A run that goes on in the middle of an epoch sees the rest of that epoch.
    """

    reports_perplexity = False
    _proven_apart = False
    last_evaluation: tuple[int, dict[str, float]] | None = None
    mixture: Mixture | None = None

    def evaluate(self: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """As `Trainer.evaluate`; TRL's own metrics, which it only logs, are in the result as well."""
        parent: Callable[..., dict[str, float]] = super().evaluate  # type: ignore[misc]
        metrics = parent(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        zero.end_fetches(self.model_wrapped)  # a checkpoint may follow
        logged: dict[str, float] = next(
            (entry for entry in reversed(self.state.log_history) if f"{metric_key_prefix}_loss" in entry), {}
        )
        metrics |= {name: value for name, value in logged.items() if name.startswith(f"{metric_key_prefix}_")}
        loss = metrics.get(f"{metric_key_prefix}_loss")
        if self.reports_perplexity and loss is not None:
            metrics |= {
                f"{metric_key_prefix}_{name}": value
                for name, value in load_metric("perplexity").compute(predictions=[loss], references=[1.0]).items()
            }
        self.last_evaluation = (self.state.global_step, dict(metrics))
        return metrics

    def _set_signature_columns_if_needed(self: Any) -> None:
        """Keep the columns that samplers and collators read: the Trainer drops what the model does not take.

        They are the length of a record, and the lengths of the documents in a packed row.
        """
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        for name in (self.args.length_column_name, "seq_lengths"):
            if name not in self._signature_columns:
                self._signature_columns.append(name)

    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's, once documents in a row are proven not to see each other."""
        self._prove_apart(model)
        step: Callable[..., torch.Tensor] = super().training_step  # type: ignore[misc]
        return step(model, *args, **kwargs)

    def prediction_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, once documents in a row are proven not to see each other."""
        self._prove_apart(model)
        return super().prediction_step(model, *args, **kwargs)  # type: ignore[misc]

    def _prove_apart(self: Any, model: Any) -> None:
        """Once a run, and only where documents share rows."""
        if self.args.flat_batches and not self._proven_apart:
            self._proven_apart = True
            attention, read = self.model.config._attn_implementation, self._read_row if self._sequence else None
            autocast = self.args.bf16 or self.args.fp16
            with plainly(self.model, self.args):
                prove_apart(model, vocabulary_rows(self.model), attention, self.args.device, read, autocast)

    def _get_train_sampler(self: Any, train_dataset: Any = None) -> Sampler | None:
        """As the Trainer's, but a mixture of sources is drawn by its weights."""
        if self.mixture is None:
            return super()._get_train_sampler(train_dataset)  # type: ignore[misc]
        if self.args.train_sampling_strategy != "random":
            raise ArgumentError(
                "records drawn by weights have an order of their own",
                place=f"--train_sampling_strategy {self.args.train_sampling_strategy}",
                fix="Leave it out, or leave out the weights of the sources.",
            )
        return MixtureSampler(self.mixture, self._data_seed())

    def _data_seed(self: Any) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def num_examples(self: Any, dataloader: DataLoader) -> int:
        """Records of an epoch: of the virtual one where sources are mixed."""
        sampler = innermost_sampler(dataloader)
        if isinstance(sampler, MixtureSampler):
            return len(sampler)
        return super().num_examples(dataloader)  # type: ignore[misc]

    def set_initial_training_values(self: Any, args: StageArguments, dataloader: DataLoader) -> Any:
        """Overrides the Trainer's, which goes through an empty loader and calls that training.

        Raises:
            DataError: There is no whole batch.
        """
        if has_length(dataloader) and len(dataloader) == 0:
            raise no_batch(self)
        return super().set_initial_training_values(args, dataloader)  # type: ignore[misc]

    def _run_epoch(self: Any, *, train_dataloader: DataLoader, epoch: int, **kwargs: Any) -> Any:
        """Tell the sampler its epoch before the Trainer does.

        Resumed in the middle of an epoch with several processes, the sampler lies under one more wrapper than
        accelerate's `set_epoch` looks through (accelerate 1.15), and would begin again with the order of epoch 0.
        And train nothing where a checkpoint within an epoch has all steps: transformers 5.23 looks after the next one.
        """
        if self.state.global_step >= self.state.max_steps > 0:
            self.control.should_training_stop = True
            return None
        sampler = innermost_sampler(train_dataloader)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)  # type: ignore[misc]

    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; what a DataLoader worker says of the data is said as if there were no worker."""
        try:
            return super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        except UserError as error:
            raise own_words(error) from error

    def _save(self: Any, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As the Trainer's; a tied matrix once, and an adapter that began with a part of the base as one of it all."""
        super()._save(output_dir, state_dict and without_tied(self.model, state_dict))  # type: ignore[misc]
        if self.args.should_save and started_from(self.model):
            rewrite_as_plain(self.model, output_dir or self.args.output_dir)

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        """As the Trainer's, for runs without DeepSpeed; the inverse of `_save`."""
        if started_from(self.model):
            load_trained(self.model, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_best_model(self: Any) -> None:
        """As the Trainer's; likewise."""
        if started_from(self.model) and not self.is_deepspeed_enabled:
            load_trained(self.model, self.state.best_model_checkpoint)
        else:
            super()._load_best_model()  # type: ignore[misc]

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the manifest is the record of a run, and a card is written from it."""


def causal_collator(args: StageArguments, tokenizer: PreTrainedTokenizerBase) -> CausalCollator | FlatCollator:
    """The collator of PT and SFT: documents side by side in one row, or padded."""
    return FlatCollator() if args.flat_batches else CausalCollator(tokenizer.pad_token_id)


def no_batch(trainer: Any) -> DataError:
    """The error for training records that fill no batch."""
    args, records = trainer.args, len(trainer.train_dataset)
    dropping = ", --dataloader_drop_last" if args.dataloader_drop_last else ""
    return DataError(
        f"{records} training records fill no batch of {args.train_batch_size}, so that nothing would be trained",
        place=f"--per_device_train_batch_size{dropping}",
        fix="give more records or smaller batches" + (", or leave --dataloader_drop_last out" if dropping else ""),
    )


def own_words(error: UserError) -> UserError:
    """An error of a DataLoader worker, which torch rebuilds from the text of its traceback, without the traceback."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    if not error.cause.startswith("Caught ") or name not in error.cause:
        return error
    return type(error)(error.cause.rsplit(name, 1)[1].rstrip())
