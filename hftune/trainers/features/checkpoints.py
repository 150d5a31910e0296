"""Checkpoints that are whole or not there: written aside, checked, then published by a rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.checkpoints.consolidate import exported_name
from hftune.checkpoints.everywhere import send_common_files
from hftune.checkpoints.integrity import TRAINER_STATE, added_files, what_is_wrong, write_record
from hftune.checkpoints.manifest import Manifest, write_manifest
from hftune.checkpoints.resume import PARTIAL, remove_leftovers, remove_old
from hftune.distributed import nodes, ranks, zero
from hftune.distributed.tensor_parallel import own_part
from hftune.logging import get_logger, notice
from hftune.models.initialisation import started_from, trained_factors
from hftune.opening.safetensors_file import load_tensors
from hftune.publishing.disk import flush, free_name, is_there
from hftune.publishing.folder import make_work
from hftune.trainers.publisher import Publisher
from hftune.weight_files import weight_files


class CheckpointMixin:
    """Put before a `Trainer` subclass.

    Attributes:
        checkpoint_manifest: Goes into every checkpoint: one that is merged or continued must know its base as well.
    """

    checkpoint_manifest: Manifest | None = None
    _publisher: Publisher | None = None
    _aside: Path | None = None
    _apart: bool | None = None

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        """As the Trainer's, but nothing is called a checkpoint before all ranks have written all of it.

        `save_total_limit` counts whole checkpoints only, and never takes the newest of them or the best. With
        `--async_save` training goes on while what was written is read again, flushed and published.
        """
        if trial is not None:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            return
        self._wait_for_publisher()
        if self.args.async_save:
            ranks.barrier()  # on each machine a process clears up what it takes for leftovers
        output = Path(self.args.output_dir)
        if self._apart is None:
            self._apart = self._settle_places(output)
        name = f"checkpoint-{self.state.global_step}"
        with self._writing_aside(output / PARTIAL):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self._finish_writing()
        self._save_beside(output / PARTIAL / name)
        self._remember_best(output, name)
        ranks.barrier()
        if self._apart:
            send_common_files(output / PARTIAL / name, exports=self.args.load_best_model_at_end)
        if ranks.is_main() or (self._apart and ranks.local_rank() == 0):
            self._publish(output, name)
        if not self.args.async_save:
            ranks.barrier()

    def _publish(self: Any, output: Path, name: str) -> None:
        """Check, rename and tidy: once on a file system that machines share, on each where they do not."""
        about = {
            "step": self.state.global_step,
            "world_size": ranks.world_size(),
            "zero_stage": self.args.zero_stage,
            "tensor_parallel_size": self.args.tensor_parallel_size,
            "expert_parallel_size": self.args.expert_parallel_size,
            "global_batch": self.get_total_train_batch_size(self.args),
        }
        limit, best = self.args.save_total_limit, self.state.best_model_checkpoint

        def job() -> None:
            _publish(output / PARTIAL / name, output / name, about)
            remove_leftovers(output)
            remove_old(output, limit, best)

        if not self.args.async_save:
            job()
            return
        self._publisher = self._publisher or Publisher()
        self._publisher.submit(job)

    def _wait_for_publisher(self: Any) -> None:
        """Until the last checkpoint is published; only the rank that publishes waits."""
        if self._publisher is not None:
            self._publisher.wait()

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; when it returns, the last checkpoint is published."""
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._wait_for_publisher()

    def _settle_places(self: Any, output: Path) -> bool:
        """Whether machines write into folders of their own that have the same name; said once."""
        if not nodes.several() or nodes.is_shared(output):
            return False
        notice(
            f"{output} is not shared between the machines: each keeps its processes' part of every checkpoint and "
            f"what all need; exported weights and the result are on {nodes.hosts()[0]}"
        )
        return True

    def _finish_writing(self: Any) -> None:
        """Nothing may be in flight when a checkpoint is checked; called on all ranks, for mixins to extend.

        DeepSpeed's decoupled writers would go on until a later step, in a folder that has another name by then.
        """
        engine = self.model_wrapped if self.is_deepspeed_enabled else None
        writer = getattr(engine, "checkpoint_engine", None)
        if engine is not None and writer is not None and writer.is_decoupled():
            engine._commit_decoupled_checkpoint()

    def _save_beside(self: Any, folder: Path) -> None:
        """What else belongs into a checkpoint; called on all ranks before it is published, for mixins to extend."""
        if self.checkpoint_manifest is not None and ranks.is_main():
            write_manifest(folder, self.checkpoint_manifest)

    def _get_output_dir(self: Any, trial: Any) -> str:
        return str(self._aside) if self._aside is not None else super()._get_output_dir(trial)  # type: ignore[misc]

    @contextmanager
    def _writing_aside(self: Any, folder: Path) -> Iterator[None]:
        if ranks.local_rank() == 0:
            remove_leftovers(folder.parent)
            if not is_there(folder):
                make_work(folder)
        ranks.barrier()
        self._aside = folder
        try:
            yield
        finally:
            self._aside = None

    def _remember_best(self: Any, output: Path, name: str) -> None:
        """The Trainer looked for the best checkpoint where this one was written; it is where it will be published."""
        if not self.state.best_global_step:
            return
        best = output / f"checkpoint-{self.state.best_global_step}"
        if best.is_dir() or best.name == name:
            self.state.best_model_checkpoint = str(best)
            if self.args.should_save:
                self.state.save_to_json(str(output / PARTIAL / name / TRAINER_STATE))

    def _load_best_model(self: Any) -> None:
        """As the Trainer's; under DeepSpeed from the weights that were exported with the best checkpoint.

        The Trainer would load the engine's own state into the live engine, which needs the optimizer's memory again and
        fails with the checkpoints of adapters.
        """
        self._wait_for_publisher()
        ranks.barrier()
        best = Path(self.state.best_model_checkpoint)
        if not self.is_deepspeed_enabled:
            super()._load_best_model()  # type: ignore[misc]
            return
        get_logger().info("going back to the best weights, %s", best)
        tensors = {name: tensor for file in weight_files(best) for name, tensor in load_tensors(file).items()}
        if started_from(self.model):  # saved as an adapter of the whole base
            tensors, _ = trained_factors(tensors)
        missing = load_exported(self.model, tensors)
        if missing:
            notice(f"{best} lacks {len(missing)} trained tensors ({missing[0]}, ...): those stay as they are")


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
            parameter.data.copy_(own_part(parameter, stored).to(parameter.dtype))
    return missing


def _publish(aside: Path, final: Path, about: dict[str, Any]) -> None:
    write_record(aside, about)
    fault = what_is_wrong(aside)
    assert fault is None, f"the checkpoint just written is not whole: {fault}"
    if is_there(final):  # the same step again after resuming, or another tool's checkpoint
        foreign = added_files(final)
        if foreign:
            kept = free_name(final.with_name(f"{final.name}.replaced"))
            final.rename(kept)
            notice(f"{kept} is what was {final.name}: hftune did not write {', '.join(foreign[:3])}")
        else:
            old = final.with_name(f".{final.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
            os.replace(aside, final)
            flush(final.parent)
            shutil.rmtree(old, ignore_errors=True)
            return
    os.replace(aside, final)
    flush(final.parent)
