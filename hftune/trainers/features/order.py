"""All features of a trainer in the order of their effects: why each stands where it does, and when a run has it."""

from __future__ import annotations

from typing import Any

from hftune.arguments.training import StageArguments
from hftune.distributed import ranks
from hftune.models.experts import is_mixture
from hftune.on_demand import on_demand
from hftune.trainers.features.batch_digests import BatchDigests
from hftune.trainers.features.checkpoints import Checkpoints
from hftune.trainers.features.evaluation_figures import EvaluationFigures
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.nan_guard import NanGuard
from hftune.trainers.features.optimizers import Optimizers
from hftune.trainers.features.phases import Phases
from hftune.trainers.features.pickled_arguments import NoPickledArguments
from hftune.trainers.features.portable_weights import PortableWeights
from hftune.trainers.features.record_order import RecordOrder
from hftune.trainers.features.repeated_rows import RepeatedRows
from hftune.trainers.features.run import plain_model
from hftune.trainers.features.speed import Speed
from hftune.trainers.features.stopping import Stopping
from hftune.trainers.features.totals import Totals


def common_features(args: StageArguments, model: Any) -> list[Feature]:
    """What every stage has; stages put theirs before or behind.

    A feature stands around all that follow it: it sees a step before they do, and what comes of it after them. Those
    that few runs ask for are imported by the runs that do.

    Args:
        model: As the trainer is given it, with an adapter around it or not.
    """
    plain = plain_model(model)
    profiled = args.profile and (ranks.is_main() or not args.profiler_rank0_only)
    quantised = any(getattr(plain, f"is_loaded_in_{bits}bit", False) for bits in (4, 8))
    routed = is_mixture(plain.config) or args.router_aux_loss_coef is not None or args.moe_z_loss_coef
    return [
        # Sees the metrics of an evaluation last, when they are complete.
        EvaluationFigures(),
        # Before anything counts or times a batch: the proof is no step.
        *_where(args.flat_batches, "hftune.trainers.features.isolation_proof:IsolationProof"),
        RecordOrder(),
        # Before rows are laid out anew or shared by processes: a batch as the loader gives it.
        BatchDigests(),
        # What is added to a log: the whole run's loss first, then speed and routers, all from the same logs.
        Totals(),
        # Around the NaN guard and the Trainer's own saving: what an evaluation leaves undone is saved here.
        Stopping(),
        # Around phases: what a worker says is said after its phase has ended.
        *_where(args.dataloader_num_workers, "hftune.trainers.features.loader_workers:LoaderWorkers"),
        # Before phases, so that it counts a batch whose forward pass is not yet timed.
        Speed(),
        # Around all that may hang: guards, collectives, the engine's step.
        Phases(),
        # Inside phases, so that a batch is looked at before the optimizer's phase is entered.
        NanGuard(),
        # Before PortableWeights: the best checkpoint must be published before it is read.
        Checkpoints(),
        PortableWeights(),
        # Before Optimizers: groups are made of the experts that this process keeps.
        *_where(args.expert_parallel_size > 1, "hftune.trainers.features.expert_parallel:ExpertParallel"),
        # Before SequenceParallel: rows lose their labels while they are whole.
        RepeatedRows(),
        Optimizers(),
        # Behind ExpertParallel, whose layers have routers of their own. Around GradientNorms: what it adds makes a
        # new tensor anyway.
        *_where(routed, "hftune.trainers.features.router_loss:RouterLoss"),
        *_where(args.asks_for_dropout, "hftune.trainers.features.dropout:DropoutSettings"),
        *_where(quantised, "hftune.trainers.features.adapter_precision:AdapterPrecision"),
        # Right around the loss: DeepSpeed compares the tensor with the model's output.
        *_where(
            args.ds_resolved is not None and args.zero_stage == 0,
            "hftune.trainers.features.gradient_norms:GradientNorms",
        ),
        # Behind all that reads whole rows.
        *_where(args.mesh.sequence > 1, "hftune.trainers.features.sequence_parallel:SequenceParallel"),
        *_where(args.tiled_mlp, "hftune.trainers.features.tiling:Tiling"),
        # A callback of the Trainer: where it stands among these makes no difference.
        *_where(profiled, "hftune.trainers.features.profiling:Profiling"),
        # Last, so that no other feature meets the arguments that stand in for the true ones.
        NoPickledArguments(),
    ]


def resuming_features() -> list[Feature]:
    """What a run has in addition when it resumes, behind all others: no other feature has hooks of the same name."""
    return [on_demand("hftune.trainers.features.resume:Resume")()]


def _where(asked: object, place: str) -> list[Feature]:
    """The feature at a place, where a run asks for it."""
    return [on_demand(place)()] if asked else []
