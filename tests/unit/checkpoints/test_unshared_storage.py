"""What belongs to all, what to one process, and what is missing where machines share no files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.checkpoints import unshared_storage
from hftune.checkpoints.unshared_storage import common_files, missing_shards, newest_common_step
from hftune.distributed import ranks

FILES = [
    *("trainer_state.json", "scheduler.pt", "latest", "rng_state_0.pth", "model.safetensors", "hftune.json"),
    *("global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step4/mp_rank_00_model_states.pt"),
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-4"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "latest").write_text("global_step4")
    (folder / "hftune_checkpoint.json").write_text(json.dumps({"world_size": 2, "files": {}}))
    return folder


def test_what_belongs_to_all(checkpoint: Path) -> None:
    (checkpoint / "hftune_checkpoint.json").unlink()
    common = {"trainer_state.json", "scheduler.pt", "latest", "hftune.json", "global_step4/mp_rank_00_model_states.pt"}
    assert set(common_files(checkpoint, exports=False)) == common
    assert set(common_files(checkpoint, exports=True)) == common | {"model.safetensors"}, "for the best model"
    (checkpoint / "adapter_config.json").write_text("{}")
    assert "model.safetensors" in common_files(checkpoint, exports=False), "adapters are small"


def test_without_deepspeed_the_weights_are_the_state(tmp_path: Path) -> None:
    for name in ("model.safetensors", "optimizer.pt", "rng_state_1.pth"):
        (tmp_path / name).write_bytes(b"xy")
    assert common_files(tmp_path, exports=False) == {"model.safetensors": 2, "optimizer.pt": 2}


@pytest.mark.parametrize(
    "world, rank, fault",
    [(2, 0, None), (2, 1, "needs that of rank 1"), (1, 0, "needs all of them"), (4, 3, "needs all of them")],
)
def test_pieces_on_another_machine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, world: int, rank: int, fault: str | None
) -> None:
    monkeypatch.setattr(ranks, "world_size", lambda: world)
    monkeypatch.setattr(ranks, "rank", lambda: rank)
    found = [problem.cause for problem in missing_shards(checkpoint)]
    assert len(found) == (fault is not None) and all(str(fault) in cause for cause in found)
    (checkpoint / "global_step4" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b"x")
    assert not list(missing_shards(checkpoint)), "all are here"


@pytest.mark.parametrize("rank", range(4))
def test_pieces_of_processes_that_share_matrices(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Ranks 2 and 3 are the second pair; this machine has the piece of rank 3."""
    (checkpoint / "global_step4" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").rename(
        checkpoint / "global_step4" / "zero_pp_rank_1_mp_rank_01_optim_states.pt"
    )
    record = {"world_size": 4, "tensor_parallel_size": 2, "files": {}}
    (checkpoint / "hftune_checkpoint.json").write_text(json.dumps(record))
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    monkeypatch.setattr(ranks, "rank", lambda: rank)
    (problem,) = missing_shards(checkpoint)
    assert "the files of all 2 that share matrices" in problem.cause, "DeepSpeed counts those of the weights"
    (checkpoint / "global_step4" / "mp_rank_01_model_states.pt").write_bytes(b"x")
    assert bool(list(missing_shards(checkpoint))) == (rank != 3)


@pytest.mark.parametrize(
    "machines, step, told",
    [
        ([(20, [10, 20]), (20, [10, 20])], 20, []),
        ([(20, [10, 20]), (10, [10])], 10, ["h0: checkpoint-20", "h1: checkpoint-10"]),  # killed while publishing
        ([(20, [20]), (10, [10])], None, ["h0: checkpoint-20", "h1: checkpoint-10"]),
        ([(20, [20]), (None, [])], None, ["h0: checkpoint-20", "h1: none"]),
        ([(None, []), (None, [])], None, []),
    ],
)
def test_the_newest_on_all(
    monkeypatch: pytest.MonkeyPatch, machines: list[tuple[int | None, list[int]]], step: int | None, told: list[str]
) -> None:
    everyone = [(f"h{number}", newest, steps, True) for number, (newest, steps) in enumerate(machines)]
    everyone.insert(1, ("h0", None, [], False))  # a second process of the first machine does not look
    monkeypatch.setattr(unshared_storage.ranks, "gathered_objects", lambda value: everyone)
    assert newest_common_step(None, []) == (step, told)
