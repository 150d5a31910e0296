"""Weights on disk are those that any other tool reads, and nothing else is written with them; and back from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.checkpoints.sharded_state import exported_name
from hftune.distributed import zero
from hftune.logging import get_logger, notice
from hftune.models.loading.stored_weights import stored_otherwise, tensors_by_parameter
from hftune.trainers.features.run import Run


@contextmanager
def no_pickled_arguments(run: Run, folder: Path) -> Iterator[None]:
    """Keep training_args.bin from being written: a pickle of the arguments, with the keys of the Hub and of trackers.

    Nothing reads it again: `hftune.json` has the arguments, and resuming takes them from the command line. A run killed
    between writing and removing leaves no secret either: what is written is one sentence.
    """
    args = run.args
    # The Trainer pickles whatever `args` is (5.23): no flag keeps it from that.
    run.args = UnpicklableArguments(args)
    try:
        yield
    finally:
        run.args = args
    if args.should_save:
        # The sentence is a file that nobody wants either.
        (folder / "training_args.bin").unlink(missing_ok=True)


class UnpicklableArguments:
    """Arguments that can be used and not be pickled: what is pickled is a sentence that says where they are."""

    def __init__(self, args: Any) -> None:
        self._args = args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("the arguments are in hftune.json",)


def load_weights(run: Run, checkpoint: str) -> bool:
    """Load saved weights without DeepSpeed, where the Trainer would not find them all; whether that is done."""
    if stored_otherwise(run.model, checkpoint):
        # The Trainer would leave such parameters as they are, without a word.
        run.model.load_state_dict(tensors_by_parameter(run.model, checkpoint))
        return True
    return False


def load_best(run: Run) -> bool:
    """Go back to the best weights; whether that is done. Under DeepSpeed they are those exported with the checkpoint.

    The Trainer would load the engine's own state into the live engine, which needs the optimizer's memory again and
    fails with the checkpoints of adapters.
    """
    best = Path(str(run.state.best_model_checkpoint))
    if not run.is_deepspeed_enabled:
        return load_weights(run, str(best))
    get_logger().info("going back to the best weights, %s", best)
    tensors = tensors_by_parameter(run.model, best)
    missing = load_exported(run.model, tensors)
    if missing:
        notice(f"{best} lacks {len(missing)} trained tensors ({missing[0]}, ...): those stay as they are")
    return True


def load_exported(model: Any, tensors: dict[str, Any]) -> list[str]:
    """Copy exported weights into a live model, partitioned or not.

    Args:
        model: A PreTrainedModel, or a PeftModel whose adapter was exported.
        tensors: Names as in the exported safetensors; an adapter's lack the adapter's name.

    Returns:
        Names of trained parameters that the export does not have.
    """
    missing = []
    for name, parameter in model.named_parameters():
        stored = tensors.get(exported_name(name))
        if stored is None:
            missing += [name] if parameter.requires_grad else []
            continue
        with zero.gathered([parameter], write=True):
            parameter.data.copy_(zero.local_shard(parameter, stored).to(parameter.dtype))
    return missing
