"""What hftune changes in transformers' Trainer: every method that it overrides, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_utils import get_last_checkpoint

from hftune.arguments.training import StageArguments
from hftune.constants import FILLER, LABEL_COUNT
from hftune.errors import ArgumentError
from hftune.on_demand import on_demand
from hftune.publishing.disk import disk_errors
from hftune.trainers.feature_host import FeatureHost
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.feature import Epoch, Feature, Features
from hftune.trainers.features.order import resuming_features
from hftune.trainers.features.record_order import RecordOrder
from hftune.trainers.features.run import Inputs


class StageTrainer(FeatureHost):
    """Put before one upstream trainer: `class SFTTrainer(StageTrainer, trl.SFTTrainer)`.

    Every method of the upstream trainer that hftune changes is overridden here, and calls the hooks of `Feature`. A
    stage adds features to `make_features`, and has a loss or an evaluation of its own by `stage_loss` and
    `stage_prediction`. The private methods among these are listed in `hftune/compat/symbols.csv`.
    """

    eval_dataset: Any

    def __init__(self, *, model: Any, args: StageArguments, **kwargs: Any) -> None:
        # Joins the process group where `start_run` has not: transformers asks who this is before it would join it.
        _ = args.device
        self.features = Features(self.make_features(model, args))
        self.record_order, self.checkpoints = self.features.one(RecordOrder), self.features.one(Checkpoints)
        # The Trainer makes the output folder in its constructor.
        with disk_errors(str(args.output_dir)), self.features.around(Feature.building, model, args):
            self.build_upstream(model=model, args=args, **kwargs)
        # From the last to the first: what stands nearest to the model changes it first, and the others see it changed.
        self.features.call_reversed(Feature.on_built, self)

    # What a stage may have of its own.

    def build_upstream(self, **kwargs: Any) -> None:
        """Run the constructor of the upstream trainer."""
        super().__init__(**kwargs)

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The stage's loss, without what features add: a scalar, or with `return_outputs` (scalar, outputs)."""
        made = self.features.first_answer(Feature.make_loss, self, model, inputs, num_items_in_batch)
        if made is not None:
            return made if return_outputs else made[0]
        for name in (FILLER, LABEL_COUNT):  # no inputs of the model
            inputs.pop(name, None)
        return super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    def stage_prediction(self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any) -> tuple[Any, ...]:
        """Loss, predictions and labels of a batch that is evaluated."""
        made = self.features.first_answer(Feature.make_prediction, self, model, inputs, loss_only)
        if made is not None:
            return made
        result: tuple[Any, ...] = super().prediction_step(model, inputs, loss_only, ignore_keys)
        return result

    def count_items(self, batches: list[Inputs], device: torch.device) -> Any:
        """What the losses of a step's micro batches are divided by: `num_items_in_batch` of `stage_loss`."""
        return super()._get_num_items_in_batch(batches, device)

    # Training. What each override adds are the hooks it calls.

    def create_accelerator_and_postprocess(self) -> None:
        """Overrides `Trainer.create_accelerator_and_postprocess`: loaders and gathering may be others."""
        super().create_accelerator_and_postprocess()
        self.features.call(Feature.on_accelerator, self)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Overrides `Trainer.train`: features read a checkpoint before, and stand around all of training."""
        # A folder that is not named is looked up here once: the Trainer would do so after the features.
        if resume_from_checkpoint is True:  # features want its name, too
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        checkpoint = resume_from_checkpoint if isinstance(resume_from_checkpoint, str) else None
        self.features.call(Feature.before_train, self, checkpoint)
        if checkpoint is not None:
            self.features.add(resuming_features())
        with self.features.around(Feature.training, self):
            result = super().train(
                resume_from_checkpoint=resume_from_checkpoint, trial=trial, ignore_keys_for_eval=ignore_keys_for_eval
            )
        self.features.call_reversed(Feature.after_train, self)
        return result

    def set_initial_training_values(self, args: StageArguments, dataloader: DataLoader[Any]) -> Any:
        """Overrides `Trainer.set_initial_training_values`: a loader may be refused."""
        self.features.call(Feature.on_steps, self, dataloader)
        return super().set_initial_training_values(args, dataloader)

    def _run_epoch(self, *, train_dataloader: DataLoader[Any], epoch: int, **kwargs: Any) -> Any:
        """Overrides `Trainer._run_epoch`: features learn where in its epoch the run is.

        And train nothing where a checkpoint within an epoch has all steps: transformers 5.23 looks after the next one.
        """
        resumes = kwargs["resume_from_checkpoint"] is not None and epoch == kwargs["epochs_trained"]
        begun = Epoch(train_dataloader, epoch, kwargs["steps_trained_in_current_epoch"] if resumes else 0)
        self.features.call(Feature.before_epoch, self, begun)
        if self.state.global_step >= self.state.max_steps > 0:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Overrides `Trainer.get_batch_samples`: features see each batch, and the waiting for it."""
        with self.features.around(Feature.fetching, self):
            for feature in self.features.having(Feature.batches):
                epoch_iterator = feature.batches(self, epoch_iterator)
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Overrides `Trainer._get_num_items_in_batch`: not all losses are means over labels.

        And an evaluation may not want labels to be counted.
        """
        if not batch_samples or not all(self.features.answers(Feature.counts_labels, self)):
            return None
        return self.count_items(batch_samples, device)

    def training_step(self, model: Any, inputs: Inputs, num_items_in_batch: Any = None) -> torch.Tensor:
        """Overrides `Trainer.training_step`: forward and backward pass of a micro batch, between features."""
        self.features.call(Feature.before_step, self, model, inputs)
        with self.features.around(Feature.stepping, self):
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.features.call_reversed(Feature.after_step, self, inputs, loss.detach())
        return loss

    def _prepare_input(self, data: Any) -> Any:
        """Overrides `Trainer._prepare_input`: numbers of a batch keep their precision.

        Under DeepSpeed in bf16 the Trainer (transformers 5.23) rounds all of them for models that take numbers: a
        reference's log-probability of -300 would be off by up to 1, as would margins, weights and targets.
        """
        return data.to(self.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)

    def compute_loss(
        self, model: Any, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Overrides `Trainer.compute_loss`: the stage's loss, and what features add to it."""
        with self.features.around(Feature.forward, self):
            result = self.stage_loss(model, inputs, return_outputs, num_items_in_batch)
        # Features see the loss without the outputs, which some stages and evaluations return with it.
        loss = result[0] if isinstance(result, tuple) else result
        for feature in reversed(self.features.having(Feature.after_loss)):
            loss = feature.after_loss(self, loss, num_items_in_batch)
        _refuse_untrained(model, loss)
        return (loss, *result[1:]) if isinstance(result, tuple) else loss

    def _track_num_input_tokens(self, inputs: Inputs) -> None:
        """Overrides `Trainer._track_num_input_tokens`: tensor-parallel processes have the same batch.

        The Trainer adds up all processes (transformers 5.23).
        """
        # What one batch adds is a difference: the Trainer keeps only the sum.
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        counted = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + counted // self.args.tensor_parallel_size

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Overrides `Trainer._maybe_log_save_evaluate`: a broken step is neither logged nor saved.

        And an evaluation that is left has a way out, which the Trainer has not.
        """
        with self.features.around(Feature.ending_step, self):
            self.features.call(Feature.on_step_end, self, grad_norm)
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Overrides `Trainer.log`: features add figures."""
        self.features.call(Feature.before_log, self, logs)
        super().log(logs, start_time)
        self.features.call_reversed(Feature.after_log, self, logs)

    def get_total_train_batch_size(self, args: StageArguments) -> int:
        """Overrides `Trainer.get_total_train_batch_size`: rows of a step, where processes share rows."""
        rows: int = super().get_total_train_batch_size(args)
        for feature in self.features.having(Feature.rows_per_step):
            rows = feature.rows_per_step(self, rows)
        return rows

    # Data.

    def _set_signature_columns_if_needed(self) -> None:
        """Overrides `Trainer._set_signature_columns_if_needed`: samplers and collators read more than the model.

        They read the length of a record, and the lengths of the documents in a packed row.
        """
        super()._set_signature_columns_if_needed()
        # `seq_lengths` are the documents of a packed row: without them they would see each other.
        for name in (self.args.length_column_name, "seq_lengths", *self.extra_columns):
            if name not in self._signature_columns:
                self._signature_columns.append(name)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Overrides `Trainer.get_train_dataloader`: data of its own kind, collators that say more."""
        own = self.features.first_answer(Feature.make_train_loader, self)
        if own is not None:
            return own
        with self.features.around(Feature.making_train_loader, self):
            loader: DataLoader[Any] = super().get_train_dataloader()
        self.features.call_reversed(Feature.on_train_loader, self, loader)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """Overrides `Trainer._get_train_sampler`: sources are mixed, blocks have an order of their own."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        sampler = self.features.first_answer(Feature.train_sampler, self, dataset)
        return self.upstream_sampler(train_dataset) if sampler is None else sampler

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the step just made."""
        self._save_checkpoint(self.model, None)

    def upstream_sampler(self, dataset: Any) -> Any:
        """What the upstream trainer draws the records of a data set with."""
        return super()._get_train_sampler(dataset)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Overrides `Trainer.num_examples`: a mixture's epoch is a virtual one."""
        count = self.features.first_answer(Feature.count_examples, self, dataloader)
        return int(super().num_examples(dataloader)) if count is None else count

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Overrides `Trainer.get_eval_dataloader`: each rank has whole batches, no record counts twice."""
        preparing = self.features.having(Feature.evaluation_data)
        if not preparing:
            return super().get_eval_dataloader(eval_dataset)
        given = self.eval_dataset
        name = eval_dataset if isinstance(eval_dataset, str) else None
        dataset = given if eval_dataset is None else given[name] if name else eval_dataset
        for feature in preparing:
            dataset = feature.evaluation_data(self, dataset)
        if name is None:
            return super().get_eval_dataloader(dataset)
        # By its name: with workers that stay, the Trainer keeps a loader of each of several, and one of all others.
        self.eval_dataset = {**given, name: dataset}
        try:
            return super().get_eval_dataloader(name)
        finally:
            self.eval_dataset = given

    # Evaluation.

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Overrides `Trainer.evaluate`: features complete what it returns."""
        # Other records, or another prefix, are another evaluation than the one whose figures are known.
        if eval_dataset is None and metric_key_prefix == "eval":
            known = self.features.first_answer(Feature.known_evaluation, self)
            if known is not None:
                return known
        self.features.call(Feature.before_evaluate, self)
        metrics: dict[str, float] = super().evaluate(
            eval_dataset=eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        self.features.call_reversed(Feature.after_evaluate, self, metrics, metric_key_prefix)
        return metrics

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Overrides `Trainer.evaluation_loop`: a mean of batches' means is not the mean over tokens or pairs."""
        self.features.call(Feature.before_evaluation_loop, self, metric_key_prefix)
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix=metric_key_prefix
        )
        self.features.call_reversed(Feature.after_evaluation_loop, self, output.metrics, metric_key_prefix)
        return output

    def prediction_step(
        self, model: Any, inputs: Inputs, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, ...]:
        """Overrides `Trainer.prediction_step`: one batch of an evaluation, between features."""
        for feature in self.features.having(Feature.before_prediction):
            inputs = feature.before_prediction(self, model, inputs)
        result = self.stage_prediction(model, inputs, prediction_loss_only, ignore_keys)
        for feature in reversed(self.features.having(Feature.after_prediction)):
            result = feature.after_prediction(self, inputs, result)
        return result

    # Optimizer and schedule.

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Overrides `Trainer.create_optimizer`: experts leave this process before their parameters are grouped."""
        self.features.call(Feature.before_optimizer, self)
        return super().create_optimizer(*args, **kwargs)

    def get_optimizer_cls_and_kwargs(self, args: StageArguments, model: Any = None) -> Any:
        """Overrides `Trainer.get_optimizer_cls_and_kwargs`: optimizers and parameter groups of hftune's."""
        upstream = super().get_optimizer_cls_and_kwargs
        return self.features.first_answer(Feature.choose_optimizer, self, model, lambda: upstream(args, model))

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Overrides `Trainer.create_scheduler`: schedules of hftune's."""
        return self.features.first_answer(Feature.make_scheduler, self, num_training_steps, optimizer)

    # Saving and loading.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Overrides `Trainer.save_model`: weights are saved as they are evaluated."""
        self.features.call(Feature.before_save, self)
        super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Overrides `Trainer._save_checkpoint`: written under another name, renamed when whole."""
        self.features.call(Feature.before_save, self)
        if trial is not None:  # a search has folders of its own
            super()._save_checkpoint(model, trial)
            return
        with self.features.around(Feature.checkpointing, self):
            super()._save_checkpoint(model, trial)

    def _get_output_dir(self, trial: Any) -> str:
        """Overrides `Trainer._get_output_dir`: where `checkpoint-...` is made."""
        folder = self.features.first_answer(Feature.checkpoint_parent, self)
        return str(super()._get_output_dir(trial) if folder is None else folder)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Overrides `Trainer._save`: what is written with or within the weights."""
        folder = Path(output_dir or str(self.args.output_dir))
        # Empty on ranks that do not save under ZeRO-3: there is nothing that features could change.
        if state_dict:
            for feature in self.features.having(Feature.weights_to_save):
                state_dict = feature.weights_to_save(self, state_dict)
        with self.features.around(Feature.saving_weights, self, folder):
            super()._save(output_dir, state_dict)
        if self.args.should_save:
            self.features.call_reversed(Feature.after_weights, self, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Overrides `Trainer._load_from_checkpoint`: the inverse of `_save`, for runs without DeepSpeed."""
        with self.features.around(Feature.loading_weights, self, resume_from_checkpoint):
            if not any(self.features.answers(Feature.load_weights, self, resume_from_checkpoint)):
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Overrides `Trainer._load_best_model`: it would load DeepSpeed's own state into the live engine."""
        with self.features.around(Feature.loading_weights, self, None):
            if not any(self.features.answers(Feature.load_best, self)):
                super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Overrides `Trainer._load_optimizer_and_scheduler`: states may come from another world."""
        # None: transformers asks for the states of a run that does not resume as well.
        if checkpoint is None or not any(self.features.answers(Feature.load_optimizer, self, checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Overrides `Trainer._load_rng_state`: processes that a checkpoint does not know are named."""
        super()._load_rng_state(checkpoint)
        if checkpoint:
            self.features.call(Feature.after_random_states, self, checkpoint)

    # The Hub.

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Overrides `Trainer.create_model_card`: nothing. The manifest is the record; a card is written from it."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Overrides `Trainer.init_hf_repo`: what the Hub has against it is one message; other hubs have their own."""
        if on_demand("hftune.trainers.hub:make_repository")(self):
            return
        hub_errors = on_demand("hftune.publishing.uploads:hub_errors")
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
        pushed: str | None = on_demand("hftune.trainers.hub:push_result")(
            self, self.hub_model_id, message=commit_message, token=token, revision=revision, private=private
        )
        return pushed

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Overrides `Trainer._push_from_checkpoint`: nothing. Preflight refuses every --hub_strategy but `end`."""


def _refuse_untrained(model: Any, loss: torch.Tensor) -> None:
    # As where the layers with an adapter are reached only with a picture, or a layer of its own make drops gradients.
    if model.training and torch.is_grad_enabled() and not loss.requires_grad:
        raise ArgumentError(
            "the loss has no gradient: nothing that is trained has a part in it, or the model's own code drops it",
            place="--use_peft / --lora_target_modules / --freeze_parameters",
            fix="train other parameters, or the model in full",
        )
