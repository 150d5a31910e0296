"""What hftune changes in transformers' Trainer: every method that it overrides, once, from making to saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers.trainer_utils import get_last_checkpoint

from hftune.arguments.training import StageArguments
from hftune.constants import FILLER, LABEL_COUNT
from hftune.data.mixture import Mixture
from hftune.distributed import phases, ranks, zero
from hftune.models.structure import is_mixture, without_tied
from hftune.on_demand import on_demand
from hftune.publishing.disk import disk_errors
from hftune.trainers.features import engine, order, saving
from hftune.trainers.features.batch_digests import BatchDigests
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.feature import Feature, Features
from hftune.trainers.features.nan_guard import NanGuard
from hftune.trainers.features.repeated_rows import RepeatedRows
from hftune.trainers.features.run import Inputs, complete_metrics, plain_model, refuse_untrained
from hftune.trainers.features.speed import Speed
from hftune.trainers.features.totals import Totals
from hftune.trainers.optimizers.choice import choose_optimizer, make_scheduler
from hftune.trainers.optimizers.parameter_groups import Group
from hftune.trainers.preemption import EvaluationStopped

if TYPE_CHECKING:
    from transformers import Trainer as Base

    from hftune.trainers.features.router_loss import RouterLoss
    from hftune.trainers.features.sequence_parallel import SequenceParallel
else:
    Base = object


class StageTrainer(Base):
    """Put before one upstream trainer: `class SFTTrainer(StageTrainer, trl.SFTTrainer)`.

    Every method of the upstream trainer that hftune changes is overridden here. The private methods among these are
    listed in `hftune/compat/symbols.csv`. What reaches into several of them is a `Feature`, in the order of
    `make_features`; what a stage does in its own way is under "What a stage may have of its own".

    Attributes:
        mixture: How records of several sources are drawn; None: all records once an epoch.
        checkpoints: Writes them; a script gives it the manifest.
        groups: Parameter groups; None where an optimizer was handed to the trainer.
        routers: Adds the losses of a mixture of experts; None without experts.
        sequence: Shares rows between processes; None without sequence parallelism.
        sequence_group: The processes that share rows with this one, a `SequenceGroup`, or None.
        current_evaluation: Metrics of the last evaluation, as long as the weights are those that it measured.
    """

    reports_perplexity = False
    """Whether the stage's loss is a mean over tokens."""

    extra_columns: tuple[str, ...] = ()
    """Columns of records, in addition to those of the model, that the stage's collator reads."""

    eval_dataset: Any
    mixture: Mixture | None = None
    groups: list[Group] | None = None
    sequence_group: Any = None
    routers: RouterLoss | None = None
    sequence: SequenceParallel | None = None
    current_evaluation: dict[str, float] | None = None
    _proven = False  # documents in a row do not see each other

    def __init__(self, *, model: Any, args: StageArguments, **kwargs: Any) -> None:
        # Joins the process group where `start_run` has not: transformers asks who this is before it would join it.
        _ = args.device
        self.checkpoints, self.nan_guard, self.repeated_rows = Checkpoints(), NanGuard(), RepeatedRows()
        self.digests, self.totals, self.speed = BatchDigests(), Totals(), Speed()
        self.features = Features(self.make_features(model, args))
        # The Trainer makes the output folder in its constructor.
        with disk_errors(str(args.output_dir)), engine.quantisation_hidden(model):
            self.build_upstream(model=model, args=args, **kwargs)
        if args.asks_for_dropout or args.tiled_mlp or args.profile:
            on_demand("hftune.trainers.features.asked:set_up")(self)
        # From the last to the first: what stands nearest to the model changes it first, and the others see it changed.
        self.features.call(Feature.on_built, self)

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """All features in their order; stages put theirs before, to see a batch as the loader gives it, or behind.

        A feature stands around all that follow it. Those that few runs ask for are imported by the runs that do.
        """
        routed = args.router_aux_loss_coef is not None or args.moe_z_loss_coef
        if routed or (model is not None and is_mixture(plain_model(model).config)):
            self.routers = on_demand("hftune.trainers.features.router_loss:RouterLoss")(model, args)
        if args.mesh.sequence > 1:
            self.sequence = on_demand("hftune.trainers.features.sequence_parallel:SequenceParallel")()
        return [
            self.digests,
            # What is added to a log: the whole run's loss first, then speed and routers, all from the same logs.
            self.totals,
            self.speed,
            self.nan_guard,
            *([self.routers] if self.routers else []),
            # Rows lose their labels while they are whole, and are then shared by processes.
            self.repeated_rows,
            *([self.sequence] if self.sequence else []),
        ]

    # What a stage may have of its own.

    def build_upstream(self, **kwargs: Any) -> None:
        """Run the constructor of the upstream trainer."""
        super().__init__(**kwargs)

    def draw_order(self, dataset: Any) -> Sampler[Any] | None:
        """The order of the training records, in the place of the Trainer's: sources are drawn by their weights."""
        return None if self.mixture is None else order.mixture_sampler(self.mixture, self.args)

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """The stage's loss, without what routers add: a scalar, or with `return_outputs` (scalar, outputs)."""
        for name in (FILLER, LABEL_COUNT):  # no inputs of the model
            inputs.pop(name, None)
        return super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    def count_items(self, batches: list[Inputs], device: torch.device) -> Any:
        """What the losses of a step's micro batches are divided by: `num_items_in_batch` of `stage_loss`."""
        return super()._get_num_items_in_batch(batches, device)

    def stage_prediction(self, model: Any, inputs: Inputs, loss_only: bool, ignore_keys: Any) -> tuple[Any, ...]:
        """Loss, predictions and labels of a batch that is evaluated."""
        result: tuple[Any, ...] = super().prediction_step(model, inputs, loss_only, ignore_keys)
        return result

    def held_out(self, dataset: Any) -> Any:
        """Records that are about to be evaluated."""
        return dataset

    def end_training(self) -> None:
        """Training has ended without an error."""

    def own_weights(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of the gathered weights those that are saved as the model's."""
        return weights

    def saving_weights(self, folder: Path) -> AbstractContextManager[None]:
        """Around the writing of weights into a folder."""
        return nullcontext()

    def loading_weights(self, checkpoint: str | None) -> AbstractContextManager[None]:
        """Around the loading of weights from a checkpoint without DeepSpeed, or (None) of the best ones."""
        return nullcontext()

    def prove_isolation(self, model: Any) -> None:
        """Show that documents in a row do not see each other.

        Raises:
            ArgumentError: They do.
        """
        # Only runs whose documents share rows come here, and the proof brings modules of its own.
        on_demand("hftune.trainers.isolation:prove_rows_isolated")(self, model)

    # What a script asks a trainer.

    def count_trained_tokens(self) -> int | None:
        """Tokens with a loss so far, over all ranks and interruptions, where that is known; every rank must ask."""
        return None

    def before_saving(self) -> None:
        """Training is over: look at what is saved with the model."""
        # After the last step no loss would tell.
        self.nan_guard.look_at_weights(self)

    def figures(self) -> dict[str, Any]:
        """What is added to the manifest."""
        return {}

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the step just made."""
        self._save_checkpoint(self.model, None)

    # Training.

    def create_accelerator_and_postprocess(self) -> None:
        """Overrides `Trainer.create_accelerator_and_postprocess`: processes that share rows load and gather others."""
        super().create_accelerator_and_postprocess()
        if self.sequence:
            self.sequence.join(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Overrides `Trainer.train`: features read a checkpoint before, which may come from another world."""
        if resume_from_checkpoint is True:  # the Trainer would look it up after the features, which want its name
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        checkpoint = resume_from_checkpoint if isinstance(resume_from_checkpoint, str) else None
        self.features.call(Feature.before_train, self, checkpoint)
        loading = on_demand("hftune.trainers.resharding:any_world")(self) if checkpoint else nullcontext()
        with phases.timed("starting"), self.checkpoints.published_in_the_end(), loading:
            result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self.end_training()
        return result

    def set_initial_training_values(self, args: StageArguments, dataloader: DataLoader[Any]) -> Any:
        """Overrides `Trainer.set_initial_training_values`: an empty loader is refused, which would train nothing."""
        order.refuse_empty(self, dataloader)
        return super().set_initial_training_values(args, dataloader)

    def _run_epoch(self, *, train_dataloader: DataLoader[Any], epoch: int, **kwargs: Any) -> Any:
        """Overrides `Trainer._run_epoch`: the order depends on seed and epoch, whatever was resumed before.

        And train nothing where a checkpoint within an epoch has all steps: transformers 5.23 looks after the next one.
        """
        resumes = kwargs["resume_from_checkpoint"] is not None and epoch == kwargs["epochs_trained"]
        order.set_epoch(self, train_dataloader, epoch)
        self.repeated_rows.begin(self, train_dataloader, kwargs["steps_trained_in_current_epoch"] if resumes else 0)
        if self.state.global_step >= self.state.max_steps > 0:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Overrides `Trainer.get_batch_samples`: features see each batch; errors of workers read like our own."""
        with order.worker_errors():
            phases.enter(phases.DATA, self.state.global_step)
            for feature in self.features.having(Feature.batches):
                epoch_iterator = feature.batches(self, epoch_iterator)
            samples = super().get_batch_samples(epoch_iterator, num_batches, device)
            phases.enter(phases.FORWARD)
        return samples

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Overrides `Trainer._get_num_items_in_batch`: not all losses are means over labels."""
        return self.count_items(batch_samples, device) if batch_samples else None

    def training_step(self, model: Any, inputs: Inputs, num_items_in_batch: Any = None) -> torch.Tensor:
        """Overrides `Trainer.training_step`: forward and backward pass of a micro batch, counted and looked at."""
        self._prove_once(model)  # before anything counts or times a batch: the proof is no step
        self.current_evaluation = None
        self.features.call(Feature.before_step, self, model, inputs)
        if self.is_deepspeed_enabled:
            engine.prepare_engine(self.model_wrapped, self.args)
        phases.enter(phases.FORWARD, self.state.global_step)
        with self.sequence.own_random_numbers(self) if self.sequence else nullcontext():
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.nan_guard.after_step(self, loss.detach())
        phases.enter(phases.OPTIMIZER)
        return loss

    def _prove_once(self, model: Any) -> None:
        """Prove that documents in a row are kept apart, once a run; all ranks come here at the same batch."""
        if self.args.flat_batches and not self._proven:
            # Before the proof, whose forward passes may come here again.
            self._proven = True
            self.prove_isolation(model)

    def _prepare_input(self, data: Any) -> Any:
        """Overrides `Trainer._prepare_input`: numbers of a batch keep their precision, under DeepSpeed in bf16, too.

        A reference's log-probability of -300 would be off by up to 1 (transformers 5.23), as would margins and weights.
        """
        return data.to(self.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)

    def compute_loss(
        self, model: Any, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Overrides `Trainer.compute_loss`: the stage's loss, and what routers add to it."""
        if torch.is_grad_enabled():
            phases.enter(phases.FORWARD)  # TRL draws and scores answers within a training step
        with self.routers.listening(self) if self.routers else nullcontext():
            result = self.stage_loss(model, inputs, return_outputs, num_items_in_batch)
        # Some stages and evaluations return outputs with the loss.
        loss = result[0] if isinstance(result, tuple) else result
        if self.routers:
            loss = self.routers.added(self, loss, num_items_in_batch)
        if self.model.training and engine.unpartitioned(self.args):
            loss = loss.clone()  # DeepSpeed would take it for an output of the model: `prepare_engine`
        refuse_untrained(model, loss)
        if torch.is_grad_enabled():  # else an evaluation, which no backward pass follows
            phases.enter(phases.BACKWARD)
        return (loss, *result[1:]) if isinstance(result, tuple) else loss

    def _track_num_input_tokens(self, inputs: Inputs) -> None:
        """Overrides `Trainer._track_num_input_tokens`: tensor-parallel processes have one batch, and count once."""
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        counted = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + counted // self.args.tensor_parallel_size

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Overrides `Trainer._maybe_log_save_evaluate`: a broken step is neither logged nor saved.

        And an evaluation that is left when the run is told to stop, on all ranks at the same batch, ends in a
        checkpoint: the Trainer saves after an evaluation only.
        """
        self.nan_guard.on_step_end(self, grad_norm)
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationStopped:
            self.save_checkpoint()
            self.control.should_training_stop = True
            self.control.should_evaluate = self.control.should_save = False  # else at the end of the epoch

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Overrides `Trainer.log`: features add figures."""
        self.features.call(Feature.before_log, self, logs)
        super().log(logs, start_time)

    def get_total_train_batch_size(self, args: StageArguments) -> int:
        """Overrides `Trainer.get_total_train_batch_size`: processes that share rows count once."""
        rows: int = super().get_total_train_batch_size(args)
        return rows // args.mesh.sequence

    # Data.

    def _set_signature_columns_if_needed(self) -> None:
        """Overrides `Trainer._set_signature_columns_if_needed`: samplers and collators read more than the model."""
        super()._set_signature_columns_if_needed()
        # `seq_lengths` are the documents of a packed row: without them they would see each other.
        for name in (self.args.length_column_name, "seq_lengths", *self.extra_columns):
            if name not in self._signature_columns:
                self._signature_columns.append(name)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Overrides `Trainer.get_train_dataloader`: collators that say more, workers that signals do not end."""
        with self.repeated_rows.said_by_collator(self):
            loader: DataLoader[Any] = super().get_train_dataloader()
        order.prepare_workers(loader)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """Overrides `Trainer._get_train_sampler`: sources are mixed, blocks have an order of their own."""
        sampler = self.draw_order(self.train_dataset if train_dataset is None else train_dataset)
        return self.upstream_sampler(train_dataset) if sampler is None else sampler

    def upstream_sampler(self, dataset: Any) -> Any:
        """What the upstream trainer draws the records of a data set with."""
        return super()._get_train_sampler(dataset)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Overrides `Trainer.num_examples`: a mixture's epoch is a virtual one."""
        if self.mixture is not None and dataloader is not None:
            return len(order.innermost_sampler(dataloader))
        return int(super().num_examples(dataloader))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Overrides `Trainer.get_eval_dataloader`: each rank has whole batches, no record counts twice."""
        given = self.eval_dataset
        name = eval_dataset if isinstance(eval_dataset, str) else None
        dataset = self.held_out(given if eval_dataset is None else given[name] if name else eval_dataset)
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
        """Overrides `Trainer.evaluate`: what upstream only logs is returned as well, and perplexity."""
        phases.enter(phases.EVALUATION, self.state.global_step)
        self.features.call(Feature.before_evaluate, self)
        metrics: dict[str, float] = super().evaluate(
            eval_dataset=eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        self.features.call(Feature.after_evaluate, self, metrics, metric_key_prefix)
        zero.release_fetched(self.model_wrapped)  # a checkpoint may follow
        complete_metrics(self, metrics, metric_key_prefix)
        self.current_evaluation = dict(metrics)
        return metrics

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Overrides `Trainer.evaluation_loop`: a mean of batches' means is not the mean over tokens or pairs."""
        self.features.call(Feature.begin_loop, self)
        if self.sequence:
            self.sequence.compare_again()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        self.features.call(Feature.end_loop, self, output.metrics, metric_key_prefix)
        return output

    def prediction_step(
        self, model: Any, inputs: Inputs, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, ...]:
        """Overrides `Trainer.prediction_step`: evaluation may begin before training does; processes may share rows."""
        phases.enter(phases.EVALUATION)  # each batch is a sign that the process moves
        self._prove_once(model)
        if self.sequence:
            inputs = self.sequence.slice(self, inputs)
        return self.stage_prediction(model, inputs, prediction_loss_only, ignore_keys)

    # Optimizer and schedule.

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Overrides `Trainer.create_optimizer`: experts leave this process before their parameters are grouped."""
        if self.args.expert_parallel_size > 1:
            on_demand("hftune.trainers.features.asked:shard_experts_once")(self)
            if self.routers:
                self.routers.listen_to_sharded(self)
        return super().create_optimizer(*args, **kwargs)

    def get_optimizer_cls_and_kwargs(self, args: StageArguments, model: Any = None) -> Any:
        """Overrides `Trainer.get_optimizer_cls_and_kwargs`: optimizers and parameter groups of hftune's."""
        upstream = super().get_optimizer_cls_and_kwargs
        return choose_optimizer(self, model, lambda: upstream(args, model))

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Overrides `Trainer.create_scheduler`: schedules of hftune's."""
        return make_scheduler(self, num_training_steps, optimizer)

    # Saving and loading.

    def _before_save(self) -> None:
        """Weights are about to be saved, with a checkpoint or by themselves: not those of a broken step."""
        phases.enter(phases.SAVE, self.state.global_step)
        self.nan_guard.before_save(self)
        # Schedule-free optimizers (arXiv:2405.15682) train at one point and mean another, to which they switch here.
        # The Trainer does so for an evaluation, but not to save; each training step switches back.
        if str(self.args.optim_name).startswith("schedule_free") and self.optimizer is not None:
            self.optimizer.eval()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Overrides `Trainer.save_model`: weights are saved as they are evaluated."""
        self._before_save()
        super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Overrides `Trainer._save_checkpoint`: written under another name, renamed when whole."""
        self._before_save()
        # A search has folders of its own.
        with self.checkpoints.checkpointing(self) if trial is None else nullcontext():
            super()._save_checkpoint(model, trial)

    def _get_output_dir(self, trial: Any) -> str:
        """Overrides `Trainer._get_output_dir`: where `checkpoint-...` is made."""
        return str(self.checkpoints.work or super()._get_output_dir(trial))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Overrides `Trainer._save`: weights as any other tool reads them, and no pickle of the arguments."""
        folder = Path(output_dir or str(self.args.output_dir))
        # Empty on ranks that do not save under ZeRO-3.
        if state_dict:
            # A tied matrix once: safetensors refuses two names for one memory.
            state_dict = without_tied(self.model, self.own_weights(state_dict))
        with self.saving_weights(folder), saving.no_pickled_arguments(self, folder):
            super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Overrides `Trainer._load_from_checkpoint`: the inverse of `_save`, for runs without DeepSpeed."""
        with self.loading_weights(resume_from_checkpoint):
            if not saving.load_weights(self, resume_from_checkpoint):
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Overrides `Trainer._load_best_model`: it would load DeepSpeed's own state into the live engine."""
        self.checkpoints.wait_together()  # the best checkpoint must be published before it is read
        if self.state.best_global_step != self.state.global_step:
            self.current_evaluation = None
        with self.loading_weights(None):
            if not saving.load_best(self):
                super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Overrides `Trainer._load_optimizer_and_scheduler`: states may come from another world."""
        # None: transformers asks for the states of a run that does not resume as well.
        if not checkpoint or not on_demand("hftune.trainers.resharding:load_optimizer")(self, checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Overrides `Trainer._load_rng_state`: processes that a checkpoint does not know are named."""
        super()._load_rng_state(checkpoint)
        if checkpoint and ranks.is_main():
            on_demand("hftune.trainers.resharding:say_random_states")(checkpoint)

    # The Hub.

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Overrides `Trainer.create_model_card`: nothing. The manifest is the record; a card is written from it."""

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Overrides `Trainer.init_hf_repo`: what the Hub has against it is one message; other hubs have their own."""
        on_demand("hftune.trainers.hub:make_repository")(
            self, lambda: super(StageTrainer, self).init_hf_repo(*args, **kwargs)
        )

    def push_to_hub(self, commit_message: str = "End of training", **given: Any) -> str | None:
        """Overrides `Trainer.push_to_hub`: what belongs there is uploaded from the output folder, and no more."""
        options = {name: given.get(name) for name in ("token", "revision", "private")}
        pushed: str | None = on_demand("hftune.trainers.hub:push_result")(self, message=commit_message, **options)
        return pushed

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Overrides `Trainer._push_from_checkpoint`: nothing. There is no --hub_strategy but `end`."""
