"""Weights and state by parameter, whoever cut them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import engine_folder
from hftune.checkpoints.sharded_state import WEIGHTS, exported_name, from_optimizer
from hftune.errors import ManifestError
from tests.unit.checkpoints.zero_files import PARAMETERS, write

ALL = {name: value for group in PARAMETERS for name, value in group.items()}


def opened(checkpoint: Path):
    folder = engine_folder(checkpoint)
    assert folder is not None
    return open_engine(folder)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_cut_gives_the_same(tmp_path: Path, stage: int, world: int) -> None:
    pieces = opened(write(tmp_path, stage, world))
    assert (pieces.stage, pieces.world_size) == (stage, world)
    assert pieces.groups == [["a", "b"], ["c"]] and pieces.unsplittable_states() == []
    for name, value in ALL.items():
        assert pieces.shapes[name] == tuple(value.shape)
        assert pieces.states(name) == [WEIGHTS, "exp_avg", "exp_avg_sq"]
        assert pieces.scalars(name)["step"] == 7
        for key, shift in ((WEIGHTS, 0), ("exp_avg", 100), ("exp_avg_sq", 200)):
            assert torch.equal(pieces.read(name, key), value.flatten() + shift), (name, key)
            for begin in range(value.numel()):
                for end in range(begin, value.numel() + 1):
                    assert torch.equal(pieces.read(name, key, begin, end - begin), value.flatten()[begin:end] + shift)


def test_a_missing_rank_is_seen(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, 2, 3)
    (checkpoint / "global_step1" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(ManifestError, match="some of its files are missing"):
        opened(checkpoint)


def test_states_of_other_optimizers(tmp_path: Path) -> None:
    """Muon's momentum lies whole on each rank that has a part; bitsandbytes wraps its states up; blocks are odd."""
    checkpoint = write(tmp_path, 2, 2)  # rank 0: a[0:5]; rank 1: a[5], b
    for rank, whole in ((0, torch.arange(6.0)), (1, torch.arange(10.0))):
        file = checkpoint / "global_step1" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        state = torch.load(file, weights_only=False)
        base = state["optimizer_state_dict"]["base_optimizer_state"]
        base["param_groups"][0]["use_muon"], held = True, base["state"]
        held[0] = {"momentum_buffer": whole + 300, "wrapped": {"state1": held[0]["exp_avg"], "step": 3}}
        held[0]["two"] = torch.stack([held[0]["wrapped"]["state1"], held[0]["wrapped"]["state1"] + 100])
        held[1] = {"state1": torch.zeros(1, dtype=torch.uint8), "absmax1": torch.zeros(2)}
        torch.save(state, file)
    pieces = opened(checkpoint)
    assert torch.equal(pieces.read("a", "momentum_buffer"), torch.arange(6.0) + 300)
    assert torch.equal(pieces.read("b", "momentum_buffer", 1, 2), torch.tensor([307.0, 308.0]))
    assert torch.equal(pieces.read("a", "state1"), torch.arange(6.0) + 100)
    assert torch.equal(pieces.read("b", "two/1"), torch.arange(210.0, 214.0))
    assert pieces.scalars("b")["step"] == 3
    assert pieces.unsplittable_states() == ["absmax1", "state1"]


@pytest.mark.parametrize("muon", [True, False])
def test_momentum_that_is_as_long_either_way(tmp_path: Path, muon: bool) -> None:
    """Rank 2 has the last element of `b` and one of padding: two, and `b` as a whole has two as well."""
    groups = [{"a": torch.arange(3.0), "b": torch.arange(10.0, 12.0)}]
    checkpoint = write(tmp_path, 2, 3, groups)
    for rank, whole in enumerate(([0, 1, 2], [0, 1, 2, 10, 11], [10, 11])):
        file = checkpoint / "global_step1" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        state = torch.load(file, weights_only=False)
        base = state["optimizer_state_dict"]["base_optimizer_state"]
        base["param_groups"][0]["use_muon"] = muon
        held = base["state"][0]
        base["state"][0] = {"momentum_buffer": torch.tensor(whole) + 100.0 if muon else held["exp_avg"]}
        torch.save(state, file)
    pieces = opened(checkpoint)
    for name, value in groups[0].items():
        assert torch.equal(pieces.read(name, "momentum_buffer"), value + 100)


def test_a_universal_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "zero" / "a").mkdir(parents=True)
    with pytest.raises(ManifestError, match="the checkpoint that it was made from"):
        open_engine(tmp_path)


def test_a_torch_optimizer_is_told_the_names() -> None:
    weights = {name: (lambda value=value: value) for name, value in ALL.items()}
    states = {number: {"step": torch.tensor(2.0), "exp_avg": value + 1} for number, value in enumerate(ALL.values())}
    state = {"state": states, "param_groups": [{"params": [0, 1]}, {"params": [2]}]}
    pieces = from_optimizer(state, [["a", "b"], ["c"]], weights)
    assert torch.equal(pieces.read("a", "exp_avg", 2, 3), torch.arange(3.0, 6.0))
    with pytest.raises(ManifestError, match=r"groups of \[2, 1\] parameters, this run's has \[3\]"):
        from_optimizer(state, [["a", "b", "c"]], weights)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_parameters_that_were_not_trained(tmp_path: Path, world: int) -> None:
    """ZeRO-3 keeps a part of each on every rank, the last of which is padded."""
    checkpoint, whole = write(tmp_path, 3, world), torch.arange(5.0)
    size = -(-len(whole) // world)
    padded = torch.nn.functional.pad(whole, (0, size * world - len(whole)))
    for rank in range(world):
        file = checkpoint / "global_step1" / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        about = torch.load(file, weights_only=False)
        about |= {"frozen_param_shapes": {"f": whole.shape}}
        about |= {"frozen_param_fragments": {"f": padded[rank * size : (rank + 1) * size]}}
        torch.save(about, file)
    frozen = opened(checkpoint).frozen
    assert list(frozen) == ["f"] and torch.equal(frozen["f"](), whole)


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("base_model.model.q_proj.lora_A.default.weight", "base_model.model.q_proj.lora_A.weight"),
        ("base_model.model.lora_embedding_A.default", "base_model.model.lora_embedding_A"),
        ("base_model.model.score.modules_to_save.default.weight", "base_model.model.score.weight"),
        ("model.default_head.weight", "model.default_head.weight"),
    ],
)
def test_parts_that_peft_leaves_out(live: str, saved: str) -> None:
    assert exported_name(live) == saved
