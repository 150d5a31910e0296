"""Checkpoints that are whole or not there: written aside, checked, then published by a rename."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hftune.checkpoints.integrity import TRAINER_STATE, added_files, checkpoint_fault, record_contents, write_record
from hftune.checkpoints.manifest import Manifest, write_manifest
from hftune.checkpoints.resume import PARTIAL, delete_discarded, discard, remove_leftovers, remove_old
from hftune.distributed import nodes, ranks
from hftune.distributed.nodes import wait_for_all
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.publishing.disk import flush, free_name, lexists
from hftune.publishing.folder import make_work
from hftune.trainers.features.feature import Feature, write_state
from hftune.trainers.features.run import Run


class Checkpoints:
    """Nothing is called a checkpoint before all ranks have written all of it.

    `save_total_limit` counts whole checkpoints only, and never takes the newest of them or the best. With
    `--async_save` training continues while what was written is flushed and published. It always does while a published
    checkpoint is read again, for the digests of its files.

    Attributes:
        manifest: Goes into every checkpoint: one that is merged or resumed must know its base as well.
        work: Where the Trainer writes while a checkpoint is made; None at other times.
    """

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        # One thread, which reads and renames files that nothing writes any more and never talks to other processes.
        self._publisher = ThreadPoolExecutor(1, thread_name_prefix="hftune-publisher")
        self._published: Future[None] | None = None
        self._moves = 0  # counts what that thread does: who waits for it knows that it is at work
        self.work: Path | None = None
        self._several_places: bool | None = None  # machines write into folders of their own; None: not asked yet

    @contextmanager
    def checkpointing(self, run: Run) -> Iterator[None]:
        """Have the Trainer write into a folder of its own, check that and rename it."""
        self.wait_together()  # on each machine a process clears up what it takes for leftovers
        output = Path(str(run.args.output_dir))
        # Asked once: the answer takes a file written by one machine and looked for by the others.
        if self._several_places is None:
            self._several_places = writes_in_several_places(output)
        name = f"checkpoint-{run.state.global_step}"
        with self._writing_into(output / PARTIAL):
            yield
        write_state(run, output / PARTIAL / name)
        run.features.call(Feature.save_files, run, output / PARTIAL / name)
        if self.manifest is not None and ranks.is_main():
            write_manifest(output / PARTIAL / name, self.manifest)
        # After all files of features: the state that names the best checkpoint is written last.
        remember_best(run, output, name)
        ranks.barrier()
        if self._several_places:
            send_common_files = on_demand("hftune.checkpoints.unshared_storage:send_common_files")
            send_common_files(output / PARTIAL / name, exports=run.args.load_best_model_at_end)
        recorded = self.publish(run, output, name) if self._is_first_here else None
        if not run.args.async_save:
            self.wait_together()
        self._published = recorded

    @contextmanager
    def published_in_the_end(self) -> Iterator[None]:
        """When training ends, however that is, the last checkpoint is published."""
        try:
            yield
        finally:
            self.wait()

    def wait(self) -> None:
        """Until the last checkpoint is published; only the rank that publishes waits.

        Raises:
            Whatever went wrong there, once.
        """
        published, self._published = self._published, None
        if published is not None:
            published.result()

    def wait_together(self) -> None:
        """As `wait`, for all ranks, which must call it: none hangs as long as the one that publishes is at work."""
        wait_for_all(self._published, lambda: self._moves)
        self.wait()
        ranks.barrier()  # an error of the one is not overtaken by the others' next step

    def publish(self, run: Run, output: Path, name: str) -> Future[None]:
        """Check, rename and tidy: once on a file system that machines share, on each where they do not.

        Returns:
            Done when the digests of the files are recorded, too.
        """
        # What a resumed run must know of the world that wrote it, before it opens a file of DeepSpeed's.
        about = {
            "step": run.state.global_step,
            "world_size": ranks.world_size(),
            "zero_stage": run.args.zero_stage,
            "tensor_parallel_size": run.args.tensor_parallel_size,
            "expert_parallel_size": run.args.expert_parallel_size,
            "global_batch": run.get_total_train_batch_size(run.args),
        }
        # Read now: the job may run in another thread while the Trainer changes its state.
        limit, best = run.args.save_total_limit, run.state.best_model_checkpoint

        def job() -> None:
            publish_checkpoint(output / PARTIAL / name, output / name, about, self._move)
            remove_leftovers(output)
            remove_old(output, limit, best)

        # The next checkpoint waits for this one before it begins, so that there is one job at a time.
        published = self._published = self._publisher.submit(job)

        def record() -> None:
            published.result()
            with suppress(FileNotFoundError):  # of a checkpoint that somebody has removed since
                record_contents(output / name, self._move)

        return self._publisher.submit(record)

    def _move(self) -> None:
        self._moves += 1

    @property
    def _is_first_here(self) -> bool:
        """Whether this process is the first of those that write into its folder."""
        return ranks.is_main() or (bool(self._several_places) and ranks.local_rank() == 0)

    @contextmanager
    def _writing_into(self, folder: Path) -> Iterator[None]:
        # In a folder that machines share, two that clear up would remove what the other has just made.
        if self._is_first_here:
            remove_leftovers(folder.parent)
            if not lexists(folder):
                make_work(folder)
        ranks.barrier()
        self.work = folder
        try:
            yield
        finally:
            self.work = None


def writes_in_several_places(output: Path) -> bool:
    """Whether machines write into folders of their own that have the same name; said once."""
    if not nodes.spans_machines() or nodes.is_shared(output):
        return False
    notice(
        f"{output} is not shared between the machines: each keeps its processes' part of every checkpoint and "
        f"what all need; exported weights and the result are on {ranks.gathered_objects(nodes.host())[0]}"
    )
    return True


def remember_best(run: Run, output: Path, name: str) -> None:
    """The Trainer looked for the best checkpoint where this one was written; it is where it will be published."""
    if not run.state.best_global_step:
        return
    best = output / f"checkpoint-{run.state.best_global_step}"
    if best.is_dir() or best.name == name:
        run.state.best_model_checkpoint = str(best)
        if run.args.should_save:
            run.state.save_to_json(str(output / PARTIAL / name / TRAINER_STATE))


def publish_checkpoint(
    aside: Path, final: Path, about: dict[str, Any], moved: Callable[[], None] = lambda: None
) -> None:
    """Give a checkpoint its name once it is whole; what had that name before is replaced, or kept if it is not ours."""
    write_record(aside, about, moved)
    fault = checkpoint_fault(aside)
    # Not an error for the user: what is checked was written a moment ago, by this run.
    assert fault is None, f"the checkpoint just written is not whole: {fault}"
    if lexists(final):  # the same step again after resuming, or another tool's checkpoint
        # Another tool, or the user, may have put files there: those are kept under another name.
        foreign = added_files(final)
        if foreign:
            kept = free_name(final.with_name(f"{final.name}.replaced"))
            final.rename(kept)
            notice(f"{kept} is what was {final.name}: hftune did not write {', '.join(foreign[:3])}")
        else:
            # Two renames: at no time is there half a checkpoint under its name, and a kill between them leaves both.
            old = discard(final)
            os.replace(aside, final)
            flush(final.parent)
            delete_discarded(old)
            return
    os.replace(aside, final)
    flush(final.parent)
