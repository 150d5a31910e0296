"""State resharded for a live optimizer, of another world or another ZeRO stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hftune import logging
from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import engine_folder
from hftune.distributed import ranks
from hftune.errors import ManifestError
from hftune.trainers import resharding
from hftune.trainers.resharding import (
    OPTIMIZER,
    SCHEDULER,
    _states,
    _with_rows,
    check_layout,
    check_pieces,
    describe,
    fill_optimizer,
    is_of_this_world,
    open_pieces,
    reshard,
    scheduler_state,
    written_by,
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
    optimizer.param_groups[1]["counted"] = 9  # as schedule-free optimizers count
    folder = checkpoint_of(tmp_path, model, optimizer, [0.5, 0.25])
    other, fresh, _ = model_and_optimizer(2)
    fresh.param_groups[1]["counted"] = 0
    reshard(run_of(other, fresh), folder)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert [group["lr"] for group in fresh.param_groups] == [0.5, 0.25]
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.1, 0.0]
    assert fresh.param_groups[1]["counted"] == 9
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


def engine(*, stage: int = 2, world: int = 2, tensor: int = 1, nvme: bool = False) -> Any:
    return SimpleNamespace(
        zero_optimization_stage=lambda: stage,
        zero_optimization=lambda: stage > 0,
        zero_nvme_offload_optimizer=lambda: nvme,
        seq_dp_world_size=world,
        mp_world_size=tensor,
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Written by two processes under ZeRO-2."""
    folder = tmp_path / "checkpoint-4"
    (folder / "global_step4").mkdir(parents=True)
    (folder / "latest").write_text("global_step4")
    for rank in range(2):
        state = {"optimizer_state_dict": {"zero_stage": 2}}
        torch.save(state, folder / "global_step4" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def record(checkpoint: Path, **about: Any) -> None:
    (checkpoint / "hftune_checkpoint.json").write_text(json.dumps({"step": 4, "files": {}} | about))


@pytest.mark.parametrize(
    ("now", "same"),
    [
        ({}, True),
        ({"stage": 3}, False),
        ({"world": 4}, False),
        ({"world": 1}, False),
        ({"world": 1, "tensor": 2}, True),
    ],
)
def test_as_many_processes_and_the_same_stage(checkpoint: Path, now: dict[str, int], same: bool) -> None:
    assert is_of_this_world(engine(**now), checkpoint) is same


def test_a_machine_may_have_the_shards_of_its_own_processes_only(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    assert not is_of_this_world(engine(world=4), checkpoint)
    record(checkpoint, world_size=4)
    assert is_of_this_world(engine(world=4), checkpoint)
    assert not is_of_this_world(engine(world=1), checkpoint), "more shards than processes"
    monkeypatch.setattr(ranks, "world_size", lambda: 8)
    assert not is_of_this_world(engine(world=8), checkpoint)


def test_an_old_release_of_deepspeed_wrote_stage_1_without_saying_so(checkpoint: Path) -> None:
    for file in checkpoint.glob("global_step4/*"):
        torch.save({"optimizer_state_dict": {}}, file)
    assert is_of_this_world(engine(stage=1), checkpoint) and not is_of_this_world(engine(stage=2), checkpoint)


def test_without_zero_any_number_of_processes_loads_it(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.glob("global_step4/*"):
        file.unlink()
    assert not is_of_this_world(engine(stage=0), checkpoint)
    (checkpoint / "global_step4" / "mp_rank_00_model_states.pt").touch()
    assert is_of_this_world(engine(stage=0, world=7), checkpoint) and not is_of_this_world(engine(stage=1), checkpoint)
    (tmp_path / "none").mkdir()
    assert not is_of_this_world(engine(), tmp_path / "none"), "without DeepSpeed"


def test_who_wrote_it(checkpoint: Path) -> None:
    assert written_by(checkpoint) == 0
    for rank in range(3):
        (checkpoint / f"rng_state_{rank}.pth").touch()
    assert written_by(checkpoint) == 3
    record(checkpoint, world_size=5)
    assert written_by(checkpoint) == 5
    assert describe(SimpleNamespace(stage=None)) == "processes that held all of it"  # type: ignore[arg-type]
    assert describe(SimpleNamespace(stage=0, world_size=2)) == "2 process(es) under ZeRO-0"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "now", "words"),
    [
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), None, None),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), engine(), None),
        (object(), None, "of object, whose layout is not known"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), engine(nvme=True), "with the optimizer on NVMe"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), engine(tensor=2), "with tensor parallel processes"),
    ],
)
def test_layouts_that_can_be_filled(optimizer: Any, now: Any, words: str | None) -> None:
    if words is None:
        check_layout(now, optimizer, "there")
        return
    with pytest.raises(ManifestError, match=f"there, written in another world .* for a run {words}"):
        check_layout(now, optimizer, "there")


def pieces(odd: list[str] | None = None, **shapes: tuple[int, ...]) -> Any:
    return SimpleNamespace(unsplittable_states=lambda: odd or [], shapes=shapes)


def test_what_is_trained_must_be_there_in_its_shape() -> None:
    whole, empty = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(0))
    vars(empty)["ds_shape"] = (4, 5)  # ZeRO-3 leaves it empty
    optimizer, names = torch.optim.SGD([whole, empty]), {whole: "a", empty: "b"}
    check_pieces(pieces(a=(2, 3), b=(4, 5), more=(1,)), optimizer, names, "there")
    for wrong in ({"a": (2, 3)}, {"a": (2, 3), "b": (5, 4)}, {"a": (2, 3), "b": (0,)}):
        with pytest.raises(ManifestError, match=r"there has no state for 1 of 2 trained parameters \(b, "):
            check_pieces(pieces(**wrong), optimizer, names, "there")
    with pytest.raises(ManifestError, match="cannot be cut: absmax belongs to blocks of weights"):
        check_pieces(pieces(["absmax"], a=(2, 3), b=(4, 5)), optimizer, names, "there")


def test_rates_stand_in_the_scheduler(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"has no scheduler\.pt"):
        scheduler_state(str(tmp_path))
    torch.save({"_last_lr": [0.5]}, tmp_path / "scheduler.pt")
    assert scheduler_state(str(tmp_path)) == {"_last_lr": [0.5]}


def test_rows_of_a_state_are_put_together_again() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    found = _with_rows({f"m{resharding.ROW}0": one, "step": 3, f"m{resharding.ROW}1": two})
    assert sorted(found) == ["m", "step"] and found["m"].tolist() == [[1, 1], [0, 0]] and found["step"] == 3


class Pieces:
    """States `m` of `a` and `b`, none of `c`, and a count."""

    def __init__(self) -> None:
        self.values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
        self.shapes = {"a": (2,), "b": (1,), "c": (1,)}

    def states(self, name: str) -> list[str]:
        return [resharding.WEIGHTS, "m"] if name in self.values else [resharding.WEIGHTS]

    def scalars(self, name: str) -> dict[str, Any]:
        return {"step": torch.tensor(7.0)} if name in self.values else {}

    def read(self, name: str, key: str, begin: int, numel: int) -> torch.Tensor:
        return self.values[name][begin : begin + numel].to(torch.float16)


def slot(*parts: tuple[str, int, int, int], numel: int = 5) -> Any:
    made = [resharding.zero_state.Fragment(*part) for part in parts]
    return resharding.Slot(0, torch.zeros(numel), made, [part[0] for part in parts])


def test_states_of_a_slot() -> None:
    mixed = slot(("c", 0, 0, 1), ("a", 0, 1, 2), ("b", 0, 3, 1))
    found = _states(Pieces(), mixed, flat_whole=False)  # type: ignore[arg-type]
    assert sorted(found) == ["m", "step"] and found["m"].tolist() == [0, 1, 2, 3, 0], "zeros where nothing was trained"
    assert found["m"].dtype == torch.float16 and found["step"] == 7
    found["step"] += 1
    assert _states(Pieces(), mixed, flat_whole=False)["step"] == 8 - 1  # type: ignore[arg-type]
    assert _states(Pieces(), slot(("c", 0, 0, 1)), flat_whole=False) == {}  # type: ignore[arg-type]


def test_muon_keeps_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "MUON_MOMENTUM", "m")
    part = slot(("a", 1, 0, 1), ("b", 0, 1, 1))
    assert _states(Pieces(), part, flat_whole=True)["m"].tolist() == [1, 2, 3]  # type: ignore[arg-type]
    assert _states(Pieces(), part, flat_whole=False)["m"].tolist() == [2, 3, 0, 0, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize("deepspeed", [True, False])
def test_all_that_a_checkpoint_holds_is_put_into_the_run(deepspeed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found: Any = SimpleNamespace(
        stage=2, world_size=4, buffers={"running_mean": torch.tensor([5.0, 6.0])}, counters={"global_steps": 9}
    )
    calls: list[Any] = []
    monkeypatch.setattr(resharding, "open_pieces", lambda *given: found)
    monkeypatch.setattr(resharding, "check_pieces", lambda *given: calls.append("checked"))
    monkeypatch.setattr(resharding, "scheduler_state", lambda checkpoint: {"_last_lr": (0.5, 0.25)})
    monkeypatch.setattr(resharding, "fill_optimizer", lambda *given, rates: calls.append((given[1], given[2], rates)))
    live = engine()
    live.optimizer = optimizer
    run: Any = SimpleNamespace(
        model=model, model_wrapped=live, is_deepspeed_enabled=deepspeed, optimizer=SimpleNamespace(optimizer=optimizer),
        args=SimpleNamespace(zero_stage=3),
    )  # fmt: skip
    reshard(run, "there")
    names = {model.weight: "weight", model.bias: "bias"}
    assert calls == ["checked", (optimizer, names, [0.5, 0.25])]
    assert model.running_mean.tolist() == [5.0, 6.0]
    assert getattr(live, "global_steps", None) == (9 if deepspeed else None)
    said = "\n".join(map(str, logging._notices))
    assert "there was written by 4 process(es) under ZeRO-2" in said
    assert ("over 1 process(es) with ZeRO-3" if deepspeed else "with no DeepSpeed") in said


@pytest.mark.parametrize("same_world", [True, False])
def test_deepspeed_loads_its_own_and_others_are_resharded(monkeypatch: pytest.MonkeyPatch, same_world: bool) -> None:
    done: list[Any] = []

    @contextmanager
    def loader(replacement: Any) -> Iterator[None]:
        replacement(lambda *given, **options: done.append(("DeepSpeed", *given, options)), "engine", "folder", {"a": 1})
        yield

    @contextmanager
    def checked(folder: str) -> Iterator[None]:
        done.append(("checked", folder))
        yield

    monkeypatch.setattr(resharding, "checkpoint_loader", loader)
    monkeypatch.setattr(resharding, "checked_loading", checked)
    monkeypatch.setattr(resharding, "is_of_this_world", lambda engine, folder: same_world)
    monkeypatch.setattr(resharding, "reshard", lambda run, folder: done.append(("resharded", folder)))
    with resharding.any_world(made_up.run()):
        pass
    own = [("checked", "folder"), ("DeepSpeed", "engine", "folder", {"a": 1})]
    assert done == (own if same_world else [("resharded", "folder")])


def test_a_run_without_deepspeed_reads_what_deepspeed_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(resharding, "engine_folder", lambda folder: folder if folder == "DeepSpeed's" else None)
    monkeypatch.setattr(resharding, "reshard", lambda run, folder: done.append(folder))
    monkeypatch.setattr(resharding, "scheduler_state", lambda folder: {"of": folder})
    run = made_up.run(lr_scheduler=SimpleNamespace(load_state_dict=done.append))
    assert not resharding.load_optimizer(run, "the Trainer's")
    assert resharding.load_optimizer(run, "DeepSpeed's") and done == ["DeepSpeed's", {"of": "DeepSpeed's"}]
    run.is_deepspeed_enabled = True
    assert not resharding.load_optimizer(run, "DeepSpeed's")


@pytest.mark.parametrize(("known", "said"), [(1, 0), (2, 1)])
def test_random_states_of_another_world_are_said(monkeypatch: pytest.MonkeyPatch, known: int, said: int) -> None:
    notices: list[str] = []
    monkeypatch.setattr(resharding, "written_by", lambda folder: known)
    monkeypatch.setattr(resharding, "notice", notices.append)
    resharding.say_random_states("folder")
    assert len(notices) == said and all("random states of 2 process(es)" in one for one in notices)
