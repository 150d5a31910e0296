"""Resuming from a checkpoint that other processes, or another ZeRO stage, have written.

DeepSpeed loads a checkpoint in the world that wrote it. For another one it has universal checkpoints, made by a command
of their own: it wants a mark that the Trainer's checkpoints under ZeRO-1 and 2 lack, and knows no states but Adam's;
loading fails from ZeRO-1 or 2 into 3, and gives all groups the decay of the first under ZeRO-3 (0.19.8). So state is
resharded here, by the names of parameters, exactly: every number that an optimizer holds is one that the checkpoint
holds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hftune.checkpoints.engine_files import MODEL_FILE, UNIVERSAL, load, open_engine
from hftune.checkpoints.integrity import engine_folder, read_record
from hftune.checkpoints.sharded_state import MUON_MOMENTUM, ROW, WEIGHTS, ShardedState, exported_name, from_optimizer
from hftune.compat.patches import Loader, checkpoint_loader
from hftune.distributed import ranks, zero_state
from hftune.distributed.zero import optimizer_members
from hftune.distributed.zero_state import Groups, Slot
from hftune.errors import ManifestError
from hftune.logging import notice
from hftune.opening.safetensors_file import load_tensor
from hftune.opening.torch_file import checked_loading, load_torch
from hftune.trainers.features.run import Run
from hftune.weight_files import stored_tensors

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"


def any_world(run: Run) -> AbstractContextManager[None]:
    """In the block the Trainer's one call of DeepSpeed's loader takes those of other processes and ZeRO stages."""

    def load_anywhere(load: Loader, engine: Any, checkpoint: str, options: dict[str, Any]) -> None:
        if is_of_this_world(engine, checkpoint):
            with checked_loading(checkpoint):  # DeepSpeed would run whatever a file's pickle says
                load(engine, checkpoint, **options)
        else:
            reshard(run, checkpoint)

    return checkpoint_loader(load_anywhere)


def load_optimizer(run: Run, checkpoint: str) -> bool:
    """Reshard what DeepSpeed wrote for a run without DeepSpeed; whether that is done."""
    if run.is_deepspeed_enabled or engine_folder(checkpoint) is None:
        return False
    reshard(run, checkpoint)
    run.lr_scheduler.load_state_dict(scheduler_state(checkpoint))
    return True


def say_random_states(checkpoint: str) -> None:
    """Say that processes which the checkpoint does not know keep the state of the seed."""
    known = written_by(checkpoint)
    if known != ranks.world_size():
        notice(
            f"{checkpoint} has random states of {known} process(es): dropout and other noise are drawn anew; the "
            "order of the data does not depend on them"
        )


def reshard(run: Run, checkpoint: str) -> None:
    """Fill this rank's share of weights and optimizer state from a checkpoint of another world."""
    engine = run.model_wrapped if run.is_deepspeed_enabled else None
    optimizer = engine.optimizer if engine is not None else run.optimizer.optimizer
    check_layout(engine, optimizer, checkpoint)
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    pieces = open_pieces(run, checkpoint, optimizer, names)
    # Before anything is written into the live model.
    check_pieces(pieces, optimizer, names, checkpoint)
    now = f"ZeRO-{run.args.zero_stage}" if run.is_deepspeed_enabled else "no DeepSpeed"
    notice(
        f"{checkpoint} was written by {describe(pieces)}; its weights and optimizer state are resharded "
        f"over {ranks.world_size()} process(es) with {now}"
    )
    fill_optimizer(pieces, optimizer, names, rates=list(scheduler_state(checkpoint)["_last_lr"]))
    # Buffers are the same on all ranks, and in no shard.
    for name, value in pieces.buffers.items():
        run.model.get_buffer(name).copy_(value)
    if engine is not None:
        for counter, value in pieces.counters.items():
            setattr(engine, counter, value)


def open_pieces(run: Run, checkpoint: str, optimizer: Any, names: dict[Tensor, str]) -> ShardedState:
    """ShardedState of ZeRO's, or of a torch optimizer, whose numbers mean the groups that this run has as well."""
    folder = engine_folder(checkpoint)
    if folder is not None and ((folder / UNIVERSAL).is_dir() or any(folder.glob("*_optim_states.pt"))):
        return open_engine(folder)
    grouped = [[names[parameter] for parameter in group] for group in optimizer_members(optimizer)]
    if folder is not None:
        about = load(folder / MODEL_FILE)
        pieces = from_optimizer(about["optimizer"], grouped, _from_module(about["module"]))
        # DeepSpeed counts steps of its own, by which it reports and saves.
        pieces.counters = {key: about[key] for key in ("global_steps", "global_samples", "skipped_steps")}
        return pieces
    state = load_torch(Path(checkpoint) / OPTIMIZER, mmap=True)
    return from_optimizer(state, grouped, _exported(checkpoint, run.model, grouped))


def is_of_this_world(engine: Any, checkpoint: str | Path) -> bool:
    """Whether DeepSpeed itself can load a checkpoint: as many processes, and the same stage."""
    folder = engine_folder(checkpoint)
    if folder is None:
        return False
    files = sorted(folder.glob("*_optim_states.pt"))
    if not files:
        # Without ZeRO nothing is sharded, and any number of processes loads it.
        return (folder / MODEL_FILE).is_file() and not engine.zero_optimization()
    stage = int(load(files[0])["optimizer_state_dict"].get("zero_stage", 1))
    # Machines that share no files have the pieces of their own processes only.
    # Tensor-parallel ranks write files of their own; preflight has compared how many there are.
    wanted = engine.seq_dp_world_size * engine.mp_world_size
    elsewhere = len(files) < wanted and written_by(checkpoint) == ranks.world_size()
    return engine.zero_optimization_stage() == stage and (len(files) == wanted or elsewhere)


def written_by(checkpoint: str | Path) -> int:
    """Processes that wrote a checkpoint: by its record; of another tool's, by the random states."""
    recorded = (read_record(Path(checkpoint)) or {}).get("world_size")
    return int(recorded or len(list(Path(checkpoint).glob("rng_state*.pth"))))


def check_layout(engine: Any, optimizer: Any, checkpoint: str) -> None:
    """State can be resharded for this run's optimizer.

    Raises:
        ManifestError: It lies where it cannot be reached, or in a way that is not known here.
    """
    reason = None
    if zero_state.layout_of(optimizer) is None:
        reason = f"of {type(optimizer).__name__}, whose layout is not known"
    elif engine is not None and engine.zero_nvme_offload_optimizer():
        reason = "with the optimizer on NVMe"
    elif engine is not None and engine.mp_world_size > 1:
        reason = "with tensor parallel processes"
    if reason:
        raise ManifestError(
            f"{checkpoint}, written in another world or ZeRO stage, cannot be resharded for a run {reason}",
            place="--resume_from_checkpoint",
            fix="resume with the number of processes and the --deepspeed config that wrote it, or with ZeRO 1 to 3",
        )


def check_pieces(pieces: ShardedState, optimizer: Any, names: dict[Tensor, str], checkpoint: str) -> None:
    """A checkpoint has all that this run trains, and in a form that can be cut.

    Raises:
        ManifestError: It has not.
    """
    odd = pieces.unsplittable_states()
    trained = {names[member]: member for group in optimizer_members(optimizer) for member in group}
    # ZeRO-3 leaves parameters empty, and keeps their shape aside.
    shapes = {name: tuple(getattr(member, "ds_shape", member.shape)) for name, member in trained.items()}
    wrong = sorted(name for name, shape in shapes.items() if pieces.shapes.get(name) != shape)
    if odd:
        cause = f"the optimizer's state in {checkpoint} cannot be cut: {odd[0]} belongs to blocks of weights"
        fix = "resume with the number of processes and the ZeRO stage that wrote it, or start anew from its weights: "
        fix += f"--warm_start {checkpoint}"
    elif wrong:
        cause = f"{checkpoint} has no state for {len(wrong)} of {len(shapes)} trained parameters ({wrong[0]}, ...)"
        fix = "resume with the adapter, the frozen parameters and the base of the run that wrote it"
    else:
        return
    raise ManifestError(cause, place="--resume_from_checkpoint", fix=fix)


def fill_optimizer(pieces: ShardedState, optimizer: Any, names: dict[Tensor, str], rates: list[float]) -> None:
    """Fill an optimizer's weights and states from the pieces of a checkpoint; under ZeRO every rank must.

    Args:
        pieces: Weights and states by parameter.
        optimizer: ZeRO's or torch's, which has not made a step.
        names: Of the model's parameters.
        rates: Learning rate of each group.
    """
    weights, states = [], {}
    for slot in zero_state.slots(optimizer, names):
        # Under stage 1 and 2 a slot is a group.
        flat_whole = zero_state.layout_of(optimizer) == 2 and optimizer.param_groups[slot.number].get("use_muon", False)
        # Masters are float32, whatever the model computes in.
        weights.append(zero_state.filled(slot, _reader(pieces, WEIGHTS), torch.float32))
        states[slot.number] = _states(pieces, slot, flat_whole=flat_whole)
    zero_state.load_state(optimizer, weights, states, Groups(pieces.settings, rates))


def _states(pieces: ShardedState, slot: Slot, *, flat_whole: bool) -> dict[str, Any]:
    """The optimizer's states of a slot, as its state dict has them."""
    # A member that no step has touched has no state; the first that has one shows which states there are.
    kept = [name for name in slot.members if len(pieces.states(name)) > 1 or pieces.scalars(name)]
    if not kept:  # no step has touched these
        return {}
    # Copied, since torch counts the steps of each parameter in place.
    states: dict[str, Any] = copy.deepcopy(pieces.scalars(kept[0]))
    for key in pieces.states(kept[0]):
        read = _reader(pieces, key)
        if key == WEIGHTS:
            continue
        if key == MUON_MOMENTUM and flat_whole:
            sizes = {name: torch.Size(pieces.shapes[name]).numel() for name in slot.members}
            states[key] = zero_state.filled_whole(slot, read, sizes)
        else:
            states[key] = zero_state.filled(slot, read, pieces.read(kept[0], key, 0, 0).dtype)
    return _with_rows(states)


def _with_rows(states: dict[str, Any]) -> dict[str, Any]:
    """States with the rows of one that has several put together again."""
    rows = [key for key in states if ROW in key]
    for key in rows:
        name = key.split(ROW)[0]
        states.setdefault(name, []).append(states.pop(key))
    return {key: torch.stack(value) if isinstance(value, list) else value for key, value in states.items()}


def _reader(pieces: ShardedState, key: str) -> Callable[[str, int, int], Tensor]:
    def read(name: str, begin: int, numel: int) -> Tensor:
        if key not in pieces.states(name):
            # As the optimizer begins: a parameter that was not trained before.
            return torch.zeros(numel)
        return pieces.read(name, key, begin, numel)

    return read


def describe(pieces: ShardedState) -> str:
    """Who wrote a checkpoint, in words."""
    if pieces.stage is None:
        return "processes that held all of it"
    return f"{pieces.world_size} process(es) under ZeRO-{pieces.stage}"


def scheduler_state(checkpoint: str) -> dict[str, Any]:
    """Where the learning rate stood.

    Raises:
        ManifestError: The checkpoint does not say.
    """
    file = Path(checkpoint) / SCHEDULER
    if not file.is_file():
        raise ManifestError(
            f"{checkpoint} has no {SCHEDULER}, so it is not known where the learning rate stands",
            place="--resume_from_checkpoint",
            fix="resume with the number of processes and the ZeRO stage that wrote it",
        )
    state: dict[str, Any] = load_torch(file)
    return state


def _same(value: Tensor) -> Tensor:
    return value


def _from_module(module: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    return {name: partial(_same, value) for name, value in module.items()}


def _exported(checkpoint: str, model: Any, grouped: list[list[str]]) -> dict[str, Callable[[], Tensor]]:
    """Readers of the weights that were exported with a checkpoint, by the names of the live model."""
    stored = stored_tensors(checkpoint)
    readers: dict[str, Callable[[], Tensor]] = {
        name: partial(load_tensor, one.file, name) for name, one in stored.items()
    }
    wanted = [name for group in grouped for name in group]
    lost = [name for name in wanted if exported_name(name) not in readers]
    if lost:
        raise ManifestError(
            f"{checkpoint} has no weights for {len(lost)} of {len(wanted)} trained parameters ({lost[0]}, ...)",
            place="--resume_from_checkpoint",
            fix="resume with the adapter and the frozen parameters of the run that wrote it",
        )
    return {name: readers[exported_name(name)] for name in wanted}
