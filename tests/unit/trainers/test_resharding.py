"""State resharded for a live optimizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import engine_folder
from hftune.checkpoints.sharded_state import exported_name, from_optimizer
from hftune.errors import ManifestError
from hftune.models.adapters.initialisation import as_plain_lora
from hftune.trainers import resharding
from hftune.trainers.resharding import (
    OPTIMIZER,
    SCHEDULER,
    check_pieces,
    fill_optimizer,
    open_pieces,
    reshard,
)
from tests.unit.checkpoints.zero_files import PARAMETERS, write
from tests.unit.trainers.features import made_up


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


def checkpoint_of(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rates: list[float]) -> str:
    """As a run without DeepSpeed writes it."""
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / OPTIMIZER)
    torch.save({"_last_lr": rates}, folder / SCHEDULER)
    return str(folder)


def run_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return made_up.run(model=model, model_wrapped=model, optimizer=SimpleNamespace(optimizer=optimizer))


def test_weights_states_and_rates_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(resharding, "notice", said.append)
    model, optimizer, _ = model_and_optimizer(1)
    step(model, optimizer)
    folder = checkpoint_of(tmp_path, model, optimizer, [0.5, 0.25])
    other, fresh, _ = model_and_optimizer(2)
    reshard(run_of(other, fresh), folder)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert [group["lr"] for group in fresh.param_groups] == [0.5, 0.25]
    found, wanted = fresh.state_dict()["state"], optimizer.state_dict()["state"]
    for number, states in wanted.items():
        assert all(torch.equal(found[number][key], value) for key, value in states.items()), number
    assert len(said) == 1 and f"{folder} was written by" in said[0] and "with no DeepSpeed" in said[0]


def test_a_checkpoint_that_lacks_a_trained_weight_is_refused(tmp_path: Path) -> None:
    model, optimizer, names = model_and_optimizer(1)
    step(model, optimizer)
    folder = checkpoint_of(tmp_path, model, optimizer, [0.5, 0.25])
    save_file(
        {name: value for name, value in model.state_dict().items() if name != "1.bias"}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ManifestError, match=r"no weights for 1 of 4 trained parameters \(1.bias"):
        open_pieces(run_of(model, optimizer), folder, optimizer, names)


def test_an_adapter_that_began_elsewhere_is_read_as_it_was_trained(tmp_path: Path) -> None:
    """Saved as [A; A0] and [B, -B0], an adapter of the unchanged base: A and B are what was trained."""
    model: Any = nn.Module()
    model.q = nn.Module()
    for part, shape in (("A", (2, 3)), ("B", (4, 2))):
        layer = nn.Module()
        layer.default = nn.Linear(shape[1], shape[0], bias=False)
        setattr(model.q, f"lora_{part}", layer)
    trained = {f"q.lora_{part}.weight": torch.randn(shape) for part, shape in (("A", (2, 3)), ("B", (4, 2)))}
    start = {name: torch.randn_like(tensor) for name, tensor in trained.items()}
    model.hftune_initial_factors = start
    save_file(as_plain_lora(trained, start), tmp_path / "adapter_model.safetensors")
    names = [name for name, _ in model.named_parameters()]
    readers = resharding._exported(str(tmp_path), model, [names])
    assert {exported_name(name): read().tolist() for name, read in readers.items()} == {
        name: tensor.tolist() for name, tensor in trained.items()
    }


def test_deepspeeds_file_without_zero_has_weights_buffers_aside_and_counts(tmp_path: Path) -> None:
    model, optimizer, names = model_and_optimizer(1)
    step(model, optimizer)
    folder = tmp_path / "global_step1"
    folder.mkdir()
    (tmp_path / "latest").write_text("global_step1")
    about = {"optimizer": optimizer.state_dict(), "module": model.state_dict(), "global_steps": 1, "global_samples": 4}
    torch.save(about | {"skipped_steps": 0, "more": 1}, folder / "mp_rank_00_model_states.pt")
    pieces = open_pieces(run_of(model, optimizer), str(tmp_path), optimizer, names)
    assert pieces.counters == {"global_steps": 1, "global_samples": 4, "skipped_steps": 0}
    for name, value in model.named_parameters():
        assert torch.equal(pieces.read(name, "fp32", 0, value.numel()), value.detach().flatten()), name
