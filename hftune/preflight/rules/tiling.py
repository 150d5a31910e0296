"""Rules of tiled MLPs (`--tiled_mlp`), which are computed in pieces so that long rows fit."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.recomputation import MLP
from hftune.arguments.stage_table import base_stage
from hftune.errors import ArgumentError, UserError
from hftune.models.kernels.tiling import tileable
from hftune.models.loading.config import row_length
from hftune.preflight.facts import Facts


def check_tiling(facts: Facts) -> Iterator[UserError]:
    """Problems of `--tiled_mlp`: rows of unknown length, MLPs that are recomputed already, or none to tile."""
    training_args = facts.training_args
    if not training_args.tiled_mlp:
        return
    place = "--tiled_mlp"
    if base_stage(facts.stage) not in ("pt", "sft"):
        yield ArgumentError("MLPs are tiled in pre-training and fine-tuning only", place=place, fix="leave it out")
        return
    # How many tiles a row is cut into is decided once, by the longest.
    if row_length(training_args) is None:
        yield ArgumentError("tiles are cut from rows of a known length", place=place, fix="give --max_length")
    if training_args.recomputation is not None and MLP in training_args.recomputation.parts:
        yield ArgumentError(
            "--tiled_mlp recomputes the MLPs already", place="--activation_checkpointing mlp", fix="leave one out"
        )
    bare = facts.skeleton
    if bare is not None and not tileable(bare):
        yield ArgumentError(
            f"{type(bare).__name__} has no MLPs whose input could be cut: experts see a part of the tokens anyway",
            place=place,
            fix="leave it out; --activation_checkpointing full saves memory",
        )
