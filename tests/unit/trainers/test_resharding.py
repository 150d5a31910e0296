"""State resharded for a live optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers.trainer
from torch import nn

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.engine_folder import engine_folder
from hftune.checkpoints.sharded_state import from_optimizer
from hftune.errors import ManifestError
from hftune.trainers.resharding import check_pieces, fill_optimizer
from tests.unit.checkpoints.zero_files import PARAMETERS, write


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, dict[torch.Tensor, str]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01), {value: name for name, value in model.named_parameters()}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_run_goes_on_to_the_last_bit() -> None:
    """Steps are counted for each parameter: one count for all would make the second step another."""
    model, optimizer, names = model_and_optimizer(1)
    for _ in range(2):
        step(model, optimizer)
    grouped = [[names[member] for member in group["params"]] for group in optimizer.param_groups]
    now = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer.param_groups[1]["counted"] = 9  # as schedule-free optimizers count
    pieces = from_optimizer(optimizer.state_dict(), grouped, {n: (lambda v=v: v) for n, v in now.items()})
    other, fresh, other_names = model_and_optimizer(2)
    fresh.param_groups[1]["counted"] = 0
    check_pieces(pieces, fresh, other_names, "there")
    fill_optimizer(pieces, fresh, other_names, rates=[0.01, 0.01])
    for _ in range(3):
        step(model, optimizer)
        step(other, fresh)
    for before, after in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(before, after)
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.1, 0.0]
    assert fresh.param_groups[1]["counted"] == 9


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_to_torch(tmp_path: Path, stage: int) -> None:
    folder = engine_folder(write(tmp_path, stage, 3))
    assert folder is not None
    parameters = {name: nn.Parameter(torch.zeros_like(value)) for group in PARAMETERS for name, value in group.items()}
    optimizer = torch.optim.AdamW([{"params": [parameters[n] for n in group]} for group in PARAMETERS], lr=1.0)
    names = {value: name for name, value in parameters.items()}
    fill_optimizer(open_engine(folder), optimizer, names, rates=[0.5, 0.25])
    for name, parameter in parameters.items():
        wanted = next(group[name] for group in PARAMETERS if name in group)
        assert torch.equal(parameter.detach(), wanted)
        assert torch.equal(optimizer.state[parameter]["exp_avg_sq"], wanted + 200)
        assert optimizer.state[parameter]["step"] == 7
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]


def test_what_is_trained_must_be_there(tmp_path: Path) -> None:
    folder = engine_folder(write(tmp_path, 2, 2))
    assert folder is not None
    pieces = open_engine(folder)
    for name, shape in (("d", (1,)), ("a", (2, 3))):
        parameter = nn.Parameter(torch.zeros(shape))
        with pytest.raises(ManifestError, match=rf"no state for 1 of 1 trained parameters \({name}"):
            check_pieces(pieces, torch.optim.SGD([parameter]), {parameter: name}, "there")


def test_the_trainer_loads_through_one_function() -> None:
    """`ResumeMixin` stands in for it; a release that renames it must be seen here."""
    assert callable(transformers.trainer.deepspeed_load_checkpoint)
