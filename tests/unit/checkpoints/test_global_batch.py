"""The global batch of a run that goes on elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hftune.checkpoints.global_batch import _what_fits, keep_global_batch, matching_accumulation
from hftune.checkpoints.integrity import TRAINER_STATE, write_record
from hftune.checkpoints.resume import newest_whole, requested_checkpoint
from hftune.distributed.ranks import Mesh
from hftune.errors import ArgumentError
from hftune.preflight.rules.resume import check_resume

COUNTED: Any = SimpleNamespace(tokenized=False, streaming=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / TRAINER_STATE).write_text(json.dumps({"global_step": 2}))
    torch.save({}, folder / "optimizer.pt")
    write_record(folder, {"step": 2, "world_size": 4, "zero_stage": 2, "global_batch": 16})
    return folder


def arguments(checkpoint: Path | str, micro: int, steps: int, processes: int, **more: Any) -> Any:
    given = {
        "resume_from_checkpoint": str(checkpoint),
        "output_dir": str(Path(checkpoint).parent),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "data_parallel_size": processes,
        "mesh": Mesh(processes),
        "ignore_data_skip": False,
        "auto_find_batch_size": False,
        "parallelism_config": None,
    }
    return SimpleNamespace(**(given | more))


def resuming(args: Any) -> Any:
    """The facts of a run with these arguments, as far as rules about resuming look."""
    return SimpleNamespace(checkpoint=requested_checkpoint(args), training_args=args)


@pytest.mark.parametrize(
    "micro, steps, processes, fits",
    [(4, 1, 4, 1), (4, 1, 2, 2), (4, 1, 1, 4), (1, 1, 4, 4), (8, 2, 1, 2), (2, 9, 8, 1)],
)
def test_the_accumulation_follows(checkpoint: Path, micro: int, steps: int, processes: int, fits: int) -> None:
    args = arguments(checkpoint, micro, steps, processes)
    args.hf_deepspeed_config = SimpleNamespace(config={"gradient_accumulation_steps": steps, "train_batch_size": 1})
    keep_global_batch(args, COUNTED)
    assert args.gradient_accumulation_steps == fits
    if fits != steps:
        assert args.hf_deepspeed_config.config == {"gradient_accumulation_steps": fits, "train_batch_size": 16}


@pytest.mark.parametrize(
    "micro, processes, words",
    [
        (
            3,
            2,
            "use --per_device_train_batch_size 8 --gradient_accumulation_steps 1, or --per_device_train_batch_size 4 ",
        ),
        (4, 3, "use a number of processes that 16 can be divided by: 1, 2, 4, 8, 16"),
        (32, 1, "use --per_device_train_batch_size 16 --gradient_accumulation_steps 1"),
    ],
)
def test_what_cannot_fit_names_what_does(checkpoint: Path, micro: int, processes: int, words: str) -> None:
    args = arguments(checkpoint, micro, 1, processes)
    with pytest.raises(ArgumentError) as problem:
        matching_accumulation(args, COUNTED)
    assert "was made with 16 records a step" in str(problem.value) and words in str(problem.value)


def test_a_dozen_numbers_are_enough() -> None:
    assert _what_fits(120, 7).endswith(" 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24")
    assert _what_fits(8, 1).count(", or ") == 3 and _what_fits(16, 1).count(", or ") == 3
    assert _what_fits(12, 2) == "use " + ", or ".join(
        f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {6 // micro}" for micro in (6, 3, 2, 1)
    )


def test_generations_are_not_split_otherwise(checkpoint: Path) -> None:
    with pytest.raises(ArgumentError, match="16 records a step"):
        matching_accumulation(arguments(checkpoint, 4, 1, 2, steps_per_generation=1), COUNTED)


@pytest.mark.parametrize("how", ["ignore_data_skip", "auto_find_batch_size"])
def test_who_does_not_count_may_change_it(checkpoint: Path, how: str) -> None:
    assert matching_accumulation(arguments(checkpoint, 3, 1, 2, **{how: True}), COUNTED) == 1


def test_data_that_know_where_they_stand_may_change_it(checkpoint: Path) -> None:
    for data in ({"tokenized": True, "streaming": False}, {"tokenized": False, "streaming": True}):
        data_args: Any = SimpleNamespace(**data)
        assert matching_accumulation(arguments(checkpoint, 3, 1, 2), data_args) == 1


def test_auto_finds_the_same_batch(checkpoint: Path) -> None:
    args = arguments(checkpoint, 4, 1, 2, resume_from_checkpoint="auto")
    assert matching_accumulation(args, COUNTED) == 2
    assert matching_accumulation(arguments(checkpoint, 4, 1, 2, resume_from_checkpoint=None), COUNTED) == 1


@pytest.mark.parametrize("named", [True, False])
def test_weights_alone_cannot_be_gone_on_from(checkpoint: Path, named: bool) -> None:
    (checkpoint / "optimizer.pt").unlink()
    write_record(checkpoint, {"step": 2, "global_batch": 16})
    args = arguments(checkpoint, 4, 1, 4, **({} if named else {"resume_from_checkpoint": "auto"}))
    (problem,) = check_resume(resuming(args))
    assert "--save_only_model" in str(problem) and f"--warm_start {checkpoint}" in str(problem)


def test_a_checkpoint_that_is_not_whole_is_refused_early(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (problem,) = check_resume(resuming(arguments(checkpoint, 4, 1, 4)))
    assert "model.safetensors is missing" in str(problem)
    assert not newest_whole(checkpoint.parent).problems
