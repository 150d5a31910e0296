"""What hftune changes in transformers' Trainer: every method that it overrides, once, and the order of its features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import get_last_checkpoint

from hftune.arguments.training import StageArguments
from hftune.data.batches.collators import CausalCollator, FlatCollator
from hftune.models.vocabulary.size import vocabulary_rows
from hftune.publishing.uploads import hub_errors
from hftune.trainers.features.adapter_precision import AdapterPrecision
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.dropout import DropoutSettings
from hftune.trainers.features.evaluation_figures import EvaluationFigures
from hftune.trainers.features.expert_parallel import ExpertParallel
from hftune.trainers.features.feature import Epoch, Feature, Features, Inputs
from hftune.trainers.features.gradient_norms import GradientNorms
from hftune.trainers.features.isolation_proof import IsolationProof
from hftune.trainers.features.loader_workers import LoaderWorkers
from hftune.trainers.features.nan_guard import NanGuard
from hftune.trainers.features.optimizers import Optimizers
from hftune.trainers.features.phases import Phases
from hftune.trainers.features.pickled_arguments import NoPickledArguments
from hftune.trainers.features.portable_weights import PortableWeights
from hftune.trainers.features.record_order import RecordOrder
from hftune.trainers.features.repeated_rows import RepeatedRows
from hftune.trainers.features.resume import Resume
from hftune.trainers.features.router_loss import RouterLoss
from hftune.trainers.features.sequence_parallel import SequenceParallel
from hftune.trainers.features.shared_rows import SharedRows
from hftune.trainers.features.speed import Speed
from hftune.trainers.features.stopping import Stopping
from hftune.trainers.features.tiling import Tiling
from hftune.trainers.features.totals import Totals
from hftune.trainers.hub import push_result
from hftune.trainers.packing_isolation import prove_isolation, uncompiled_and_unrounded

if TYPE_CHECKING:
    from transformers import Trainer as Base
else:
    Base = object


class StageTrainer(Base):
    """Put before one upstream trainer: `class SFTTrainer(StageTrainer, trl.SFTTrainer)`.

    Every method of the upstream trainer that hftune changes is overridden here, and calls the hooks of `Feature`. A
    stage adds features to `make_features`, and has a loss or an evaluation of its own by `stage_loss` and
    `stage_prediction`. The private methods among these are listed in `hftune/compat/symbols.csv`.
    """

    reports_perplexity = False
    """Whether the stage's loss is a mean over tokens."""

    extra_columns: tuple[str, ...] = ()
    """Columns of records, besides those of the model, that the stage's collator reads."""

    def __init__(self, *, model: Any, args: StageArguments, **kwargs: Any) -> None:
        self.record_order, self.sequence, self.totals = RecordOrder(), SequenceParallel(), Totals()
        self.checkpoints, self.optimizers = Checkpoints(self.save_feature_state), Optimizers()
        self.evaluations = EvaluationFigures(perplexity=self.reports_perplexity)
        self.features = Features(self.make_features())
        with self.features.around(Feature.building, model, args):
            self.build_upstream(model=model, args=args, **kwargs)
        for feature in self.features.last_to_first(Feature.on_built):
            feature.on_built(self)

    def make_features(self) -> list[Feature]:
        """All features in the order of their effects; stages put theirs before or behind.

        A feature stands around all that follow it: it sees a step before they do, and what comes of it after them.
        """
        routers = RouterLoss(self.sequence)
        return [
            # Sees the metrics of an evaluation last, when they are complete.
            self.evaluations,
            # Before anything counts or times a batch: the proof is no step.
            IsolationProof(self.prove_isolation),
            self.record_order,
            # What is added to a log: the whole run's loss first, then speed and routers, all from the same logs.
            self.totals,
            # Around the NaN guard and the Trainer's own saving: what an evaluation leaves undone is saved here.
            Stopping(),
            # Around phases: what a worker says is said after its phase has ended.
            LoaderWorkers(),
            # Before phases, so that it counts a batch whose forward pass is not yet timed.
            Speed(),
            # Around all that may hang: guards, collectives, the engine's step.
            Phases(),
            # Inside phases, so that a batch is looked at before the optimizer's phase is entered.
            NanGuard(),
            # Before PortableWeights: the best checkpoint must be published before it is read.
            self.checkpoints,
            PortableWeights(),
            Resume(),
            # Before Optimizers: groups are made of the experts that this process keeps.
            ExpertParallel(routers),
            # Before SequenceParallel: rows lose their labels while they are whole.
            RepeatedRows(),
            self.optimizers,
            # Around GradientNorms: what it adds makes a new tensor anyway.
            routers,
            DropoutSettings(),
            AdapterPrecision(),
            # Right around the loss: DeepSpeed compares the tensor with the model's output.
            GradientNorms(),
            SharedRows(),
            # Behind all that reads whole rows.
            self.sequence,
            Tiling(),
            # Last, so that no other feature meets the arguments that stand in for the true ones.
            NoPickledArguments(),
        ]

    # What a stage may have of its own.

    def build_upstream(self, **kwargs: Any) -> None:
        """Run the constructor of the upstream trainer."""
        super().__init__(**kwargs)

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The stage's loss, without what features add: a scalar, or with `return_outputs` (scalar, outputs)."""
        for feature in self.features.first_to_last(Feature.make_loss):
            made = feature.make_loss(self, model, inputs, num_items_in_batch)
            if made is not None:
                return made if return_outputs else made[0]
        return super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    def stage_prediction(self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any) -> tuple[Any, ...]:
        """Loss, predictions and labels of a batch that is evaluated."""
        for feature in self.features.first_to_last(Feature.make_prediction):
            made = feature.make_prediction(self, model, inputs, loss_only)
            if made is not None:
                return made
        result: tuple[Any, ...] = super().prediction_step(model, inputs, loss_only, ignore_keys)
        return result

    def prove_isolation(self, model: Any) -> None:
        """Show that documents in a row do not see each other.

        Raises:
            ArgumentError: They do.
        """
        attention, args = self.model.config._attn_implementation, self.args
        read = self.sequence.read_row if self.sequence.group is not None else None
        with uncompiled_and_unrounded(self.model, args):
            prove_isolation(
                model, vocabulary_rows(self.model), attention, args.device, read, autocast=args.bf16 or args.fp16
            )

    def counts(self) -> dict[str, Any]:
        """What has been counted since the run began or since the last log, over all ranks; every rank must ask."""
        found: dict[str, Any] = {
            "tokens": getattr(self, "_total_train_tokens", 0),
            "seen": 0,
            "sums": None,
            "pairs": {},
        }
        for feature in self.features.first_to_last(Feature.counts):
            found |= feature.counts(self)
        return found

    def resume_counts(self, saved: dict[str, Any]) -> None:
        """Continue to count from what `counts` returned; sums over processes are given to one of them."""
        if hasattr(self, "_total_train_tokens"):  # TRL's trainers
            self._total_train_tokens = saved["tokens"]
        for feature in self.features.first_to_last(Feature.resume_counts):
            feature.resume_counts(self, saved)

    # What a script asks a trainer.

    @property
    def last_evaluation(self) -> tuple[int, dict[str, float]] | None:
        """Step and metrics of the last evaluation."""
        return self.evaluations.last

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far, those before an interruption included."""
        return self.totals.seconds()

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the step just made."""
        self._save_checkpoint(self.model, None)

    def save_feature_state(self, folder: Path) -> None:
        """Have features add their files to a checkpoint; all ranks."""
        for feature in self.features.last_to_first(Feature.save_state):
            feature.save_state(self, folder)

    def count_trained_tokens(self) -> int | None:
        """Tokens with a loss so far, where that is known; every rank must ask."""
        for feature in self.features.first_to_last(Feature.trained_tokens):
            count = feature.trained_tokens(self)
            if count is not None:
                return count
        return None

    def before_saving(self) -> None:
        """Training is over: measure what is saved with the model."""
        for feature in self.features.first_to_last(Feature.before_result):
            feature.before_result(self)

    def figures(self) -> dict[str, Any]:
        """What features add to the manifest."""
        found: dict[str, Any] = {}
        for feature in self.features.first_to_last(Feature.figures):
            found |= feature.figures(self)
        return found

    # Training. Each method says which upstream method it overrides by its name; what it adds are the hooks it calls.

    def create_accelerator_and_postprocess(self) -> None:
        """Overrides the Trainer's: loaders and gathering may be others."""
        super().create_accelerator_and_postprocess()
        for feature in self.features.first_to_last(Feature.on_accelerator):
            feature.on_accelerator(self)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Overrides `Trainer.train`: features read a checkpoint before, and stand around all of training."""
        if resume_from_checkpoint is True:  # features want its name, too
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        checkpoint = resume_from_checkpoint if isinstance(resume_from_checkpoint, str) else None
        for feature in self.features.first_to_last(Feature.before_train):
            feature.before_train(self, checkpoint)
        with self.features.around(Feature.training, self):
            result = super().train(
                resume_from_checkpoint=resume_from_checkpoint, trial=trial, ignore_keys_for_eval=ignore_keys_for_eval
            )
        for feature in self.features.last_to_first(Feature.after_train):
            feature.after_train(self)
        return result

    def set_initial_training_values(self, args: StageArguments, dataloader: DataLoader) -> Any:
        """Overrides the Trainer's: a loader may be refused."""
        for feature in self.features.first_to_last(Feature.on_steps):
            feature.on_steps(self, dataloader)
        return super().set_initial_training_values(args, dataloader)

    def _run_epoch(self, *, train_dataloader: DataLoader, epoch: int, **kwargs: Any) -> Any:
        """Overrides the Trainer's: features are told where in its epoch the run is.

        And train nothing where a checkpoint within an epoch has all steps: transformers 5.23 looks after the next one.
        """
        resumes = kwargs["resume_from_checkpoint"] is not None and epoch == kwargs["epochs_trained"]
        begun = Epoch(train_dataloader, epoch, kwargs["steps_trained_in_current_epoch"] if resumes else 0)
        for feature in self.features.first_to_last(Feature.before_epoch):
            feature.before_epoch(self, begun)
        if self.state.global_step >= self.state.max_steps > 0:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Overrides the Trainer's: batches pass through features, which also stand around the waiting for them."""
        with self.features.around(Feature.fetching, self):
            for feature in self.features.first_to_last(Feature.batches):
                epoch_iterator = feature.batches(self, epoch_iterator)
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Overrides the Trainer's: an evaluation may not want labels to be counted."""
        if not all(feature.counts_labels(self) for feature in self.features.first_to_last(Feature.counts_labels)):
            return None
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, model: Any, inputs: Inputs, num_items_in_batch: Any = None) -> torch.Tensor:
        """Overrides `Trainer.training_step`: forward and backward pass of a micro batch, between features."""
        for feature in self.features.first_to_last(Feature.before_step):
            feature.before_step(self, model, inputs)
        with self.features.around(Feature.stepping, self):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        for feature in self.features.last_to_first(Feature.after_step):
            feature.after_step(self, inputs, loss.detach())
        return loss

    def compute_loss(
        self, model: Any, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Overrides `Trainer.compute_loss`: the stage's loss, and what features add to it."""
        with self.features.around(Feature.forward, self):
            result = self.stage_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = result[0] if isinstance(result, tuple) else result
        for feature in self.features.last_to_first(Feature.after_loss):
            loss = feature.after_loss(self, loss, num_items_in_batch)
        return (loss, *result[1:]) if isinstance(result, tuple) else loss

    def _track_num_input_tokens(self, inputs: Inputs) -> None:
        """Overrides the Trainer's: it adds up all processes, and some see the same rows."""
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        counted = self.state.num_input_tokens_seen - before
        for feature in self.features.first_to_last(Feature.tokens_seen):
            counted = feature.tokens_seen(self, counted)
        self.state.num_input_tokens_seen = before + counted

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Overrides the Trainer's: it would log and save a broken step, and has no way out of an evaluation."""
        with self.features.around(Feature.ending_step, self):
            for feature in self.features.first_to_last(Feature.on_step_end):
                feature.on_step_end(self, grad_norm)
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Overrides `Trainer.log`: features add figures."""
        for feature in self.features.first_to_last(Feature.before_log):
            feature.before_log(self, logs)
        super().log(logs, start_time)
        for feature in self.features.last_to_first(Feature.after_log):
            feature.after_log(self, logs)

    def get_total_train_batch_size(self, args: StageArguments) -> int:
        """Overrides the Trainer's: rows of a step, where processes share rows."""
        rows: int = super().get_total_train_batch_size(args)
        for feature in self.features.first_to_last(Feature.rows_per_step):
            rows = feature.rows_per_step(self, rows)
        return rows

    # Data.

    def _set_signature_columns_if_needed(self) -> None:
        """Overrides the Trainer's: it drops what the model does not take, and samplers and collators read more.

        They read the length of a record, and the lengths of the documents in a packed row.
        """
        super()._set_signature_columns_if_needed()
        for name in (self.args.length_column_name, "seq_lengths", *self.extra_columns):
            if name not in self._signature_columns:
                self._signature_columns.append(name)

    def get_train_dataloader(self) -> DataLoader:
        """Overrides the Trainer's: data of one's own, collators that say more, workers that live longer."""
        for feature in self.features.first_to_last(Feature.make_train_loader):
            own = feature.make_train_loader(self)
            if own is not None:
                return own
        with self.features.around(Feature.making_train_loader, self):
            loader: DataLoader = super().get_train_dataloader()
        for feature in self.features.last_to_first(Feature.on_train_loader):
            feature.on_train_loader(self, loader)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """Overrides the Trainer's: sources are mixed, blocks have an order of their own."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        for feature in self.features.first_to_last(Feature.train_sampler):
            sampler = feature.train_sampler(self, dataset)
            if sampler is not None:
                return sampler
        return self.upstream_sampler(train_dataset)

    def upstream_sampler(self, dataset: Any) -> Any:
        """What the upstream trainer draws the records of a data set with."""
        return super()._get_train_sampler(dataset)

    def num_examples(self, dataloader: DataLoader) -> int:
        """Overrides `Trainer.num_examples`: a mixture's epoch is a virtual one."""
        for feature in self.features.first_to_last(Feature.count_examples):
            count = feature.count_examples(self, dataloader)
            if count is not None:
                return count
        return int(super().num_examples(dataloader))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Overrides the Trainer's: records are filled up, so that each rank has whole batches and none counts twice."""
        preparing = self.features.first_to_last(Feature.evaluation_data)
        if not preparing:
            return super().get_eval_dataloader(eval_dataset)
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]  # one of several, by its name
        for feature in preparing:
            dataset = feature.evaluation_data(self, dataset)
        return super().get_eval_dataloader(dataset)

    # Evaluation.

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overrides `Trainer.evaluate`: features complete what it returns."""
        if eval_dataset is None and metric_key_prefix == "eval":
            for feature in self.features.first_to_last(Feature.known_evaluation):
                known = feature.known_evaluation(self)
                if known is not None:
                    return known
        for feature in self.features.first_to_last(Feature.before_evaluate):
            feature.before_evaluate(self)
        metrics: dict[str, float] = super().evaluate(
            eval_dataset=eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        for feature in self.features.last_to_first(Feature.after_evaluate):
            feature.after_evaluate(self, metrics, metric_key_prefix)
        return metrics

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Overrides the Trainer's: a mean of batches' means is not the mean over tokens or pairs."""
        for feature in self.features.first_to_last(Feature.before_evaluation_loop):
            feature.before_evaluation_loop(self, metric_key_prefix)
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix=metric_key_prefix
        )
        for feature in self.features.last_to_first(Feature.after_evaluation_loop):
            feature.after_evaluation_loop(self, output.metrics, metric_key_prefix)
        return output

    def prediction_step(
        self, model: Any, inputs: Inputs, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, ...]:
        """Overrides the Trainer's: one batch of an evaluation, between features."""
        for feature in self.features.first_to_last(Feature.before_prediction):
            inputs = feature.before_prediction(self, model, inputs)
        result = self.stage_prediction(model, inputs, prediction_loss_only, ignore_keys)
        for feature in self.features.last_to_first(Feature.after_prediction):
            result = feature.after_prediction(self, inputs, result)
        return result

    # Optimizer and schedule.

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Overrides the Trainer's: experts leave this process before their parameters are grouped."""
        for feature in self.features.first_to_last(Feature.before_optimizer):
            feature.before_optimizer(self)
        return super().create_optimizer(*args, **kwargs)

    def get_optimizer_cls_and_kwargs(self, args: StageArguments, model: Any = None) -> Any:
        """Overrides the Trainer's: optimizers and parameter groups of hftune's."""
        upstream = super().get_optimizer_cls_and_kwargs
        for feature in self.features.first_to_last(Feature.choose_optimizer):
            return feature.choose_optimizer(self, model, lambda: upstream(args, model))
        return upstream(args, model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Overrides the Trainer's: schedules of hftune's."""
        for feature in self.features.first_to_last(Feature.make_scheduler):
            return feature.make_scheduler(self, num_training_steps, optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    # Saving and loading.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Overrides `Trainer.save_model`: weights are saved as they are evaluated."""
        for feature in self.features.first_to_last(Feature.before_save):
            feature.before_save(self)
        super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Overrides the Trainer's: a checkpoint is written under another name first, and renamed when it is whole."""
        for feature in self.features.first_to_last(Feature.before_save):
            feature.before_save(self)
        if trial is not None:  # a search has folders of its own
            super()._save_checkpoint(model, trial)
            return
        with self.features.around(Feature.checkpointing, self):
            super()._save_checkpoint(model, trial)

    def _get_output_dir(self, trial: Any) -> str:
        """Overrides the Trainer's: where `checkpoint-...` is made."""
        for feature in self.features.first_to_last(Feature.checkpoint_parent):
            folder = feature.checkpoint_parent(self)
            if folder is not None:
                return str(folder)
        return str(super()._get_output_dir(trial))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Overrides the Trainer's: what is written besides or within the weights."""
        folder = Path(output_dir or str(self.args.output_dir))
        if state_dict:
            for feature in self.features.first_to_last(Feature.weights_to_save):
                state_dict = feature.weights_to_save(self, state_dict)
        with self.features.around(Feature.saving_weights, self, folder):
            super()._save(output_dir, state_dict)
        if self.args.should_save:
            for feature in self.features.last_to_first(Feature.after_weights):
                feature.after_weights(self, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Overrides the Trainer's: the inverse of `_save`, for runs without DeepSpeed."""
        with self.features.around(Feature.loading_weights, self, resume_from_checkpoint):
            for feature in self.features.first_to_last(Feature.load_weights):
                if feature.load_weights(self, resume_from_checkpoint):
                    return
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Overrides the Trainer's: it would load DeepSpeed's own state into the live engine."""
        with self.features.around(Feature.loading_weights, self, None):
            for feature in self.features.first_to_last(Feature.load_best):
                if feature.load_best(self):
                    return
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Overrides the Trainer's: states may come from another world."""
        if checkpoint is not None:
            for feature in self.features.first_to_last(Feature.load_optimizer):
                if feature.load_optimizer(self, checkpoint):
                    return
        super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Overrides the Trainer's: processes that a checkpoint does not know are named."""
        super()._load_rng_state(checkpoint)
        if checkpoint:
            for feature in self.features.first_to_last(Feature.after_random_states):
                feature.after_random_states(self, checkpoint)

    # The Hub.

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Overrides `Trainer.create_model_card`: nothing. The manifest is the record; a card is written from it."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Overrides the Trainer's: what the Hub says against the repository is one message, before training."""
        with hub_errors(str(self.args.hub_model_id or self.args.output_dir), "--hub_model_id"):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> str | None:
        """Overrides `Trainer.push_to_hub`: upload, from the output folder, what belongs there (`publishing.uploads`).

        Raises:
            ArgumentError: The Hub does not take it.
        """
        return push_result(
            self, self.hub_model_id, message=commit_message, token=token, revision=revision, private=private
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Overrides the Trainer's: nothing. Preflight refuses every --hub_strategy but `end`."""


def causal_collator(args: StageArguments, tokenizer: PreTrainedTokenizerBase) -> CausalCollator | FlatCollator:
    """The collator of PT and SFT: documents side by side in one row, or padded."""
    return FlatCollator() if args.flat_batches else CausalCollator(tokenizer.pad_token_id)
