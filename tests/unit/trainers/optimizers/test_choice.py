"""The optimizer that a trainer really makes: its groups, Muon's step by hand, and what bitsandbytes keeps in 32 bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.trainers.optimizers import choice
from hftune.trainers.optimizers.choice import (
    SMALLEST_8BIT,
    bits_by_group,
    choose_optimizer,
    is_8bit,
    kept_in_32bit,
    lost_groups,
    make_scheduler,
    muon_class,
    optimizer_members,
    renew_members,
)
from hftune.trainers.optimizers.parameter_groups import Group
from hftune.trainers.pt import PTTrainer
from tests.unit.trainers.features import made_up


@pytest.fixture
def trainer(tiny_model: Path, tmp_path: Path) -> Any:
    """A trainer of the tiny model with the flags that a test gives."""

    def make(*flags: str) -> PTTrainer:
        argv = ["--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path), "--report_to", "none"]
        shape = ["--per_device_train_batch_size", "2", "--logging_steps", "1", "--gradient_checkpointing", "False"]
        args = parse_arguments("pt", [*argv, *shape, "--save_strategy", "no", "--weight_decay", "0.1", *flags])[3]
        rows = [[(row * 7 + place) % 250 for place in range(16)] for row in range(12)]
        data = Dataset.from_dict({"input_ids": rows, "labels": rows, "seq_lengths": [[16]] * 12}).with_format("torch")
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        return PTTrainer(model, args, AutoTokenizer.from_pretrained(tiny_model), Splits(data, None, {}))

    return make


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "adamw_8bit", "muon"])
def test_the_groups_reach_the_optimizer(trainer: Any, optim: str) -> None:
    made = trainer("--optim", optim, "--layerwise_lr_decay_bound", "0.5", "--learning_rate", "1e-3")
    optimizer = made.create_optimizer()
    assert lost_groups(made.groups, optimizer) is None
    trained = [name for name, parameter in made.model.named_parameters() if parameter.requires_grad]
    assert sorted(name for group in made.groups for name, _ in group.members) == sorted(trained)
    assert {group["lr"] for group in optimizer.param_groups} > {1e-3}


def test_lost_groups_are_noticed(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer()
    optimizer = made.create_optimizer()
    first, *others = optimizer.param_groups
    changed = copy.copy(optimizer)
    for value in ({"lr": 1.0}, {"weight_decay": 0.5}, {"params": []}):
        changed.param_groups = [first | value, *others]
        assert "parameter group 0 was given" in str(lost_groups(made.groups, changed))
    changed.param_groups = optimizer.param_groups[:1]
    assert "was given 2 parameter groups and uses 1" in str(lost_groups(made.groups, changed))
    monkeypatch.setattr(choice, "optimizer_members", lambda optimizer: optimizer_members(optimizer)[:1])
    assert "was given 2 parameter groups" in str(lost_groups(made.groups, optimizer)), "fewer members than settings"
    monkeypatch.undo()
    made.optimizer.param_groups[0]["lr"] = 7.0
    with pytest.raises(AssertionError, match=r"uses .*7\.0"):
        made.create_scheduler(10)


def test_the_logged_rates_are_those_of_the_schedule(trainer: Any) -> None:
    flags = ["--max_steps", "5", "--lr_scheduler_type", "cosine", "--min_lr", "1e-4", "--learning_rate", "1e-3"]
    made = trainer(*flags, "--warmup_steps", "1")
    made.train()
    logged = [entry["learning_rate"] for entry in made.state.log_history if "learning_rate" in entry]
    # 0, then 0.1 + 0.9 * (1 + cos(pi p)) / 2 for p = 0, 1/4, 1/2, 3/4.
    shares = [0, 1, 0.1 + 0.9 * (1 + 0.5**0.5) / 2, 0.55, 0.1 + 0.9 * (1 - 0.5**0.5) / 2]
    assert logged == pytest.approx([1e-3 * share for share in shares], rel=1e-6)


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """Keller Jordan's five quintic steps, in float64."""
    wide = matrix.double() if matrix.shape[0] <= matrix.shape[1] else matrix.double().T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


@pytest.mark.parametrize("shape", [(8, 8), (12, 4), (4, 12)])
def test_muon_steps_by_hand(shape: tuple[int, int]) -> None:
    """Momentum m = (1 - b) g, Nesterov g + b (m - g), orthogonal, times sqrt(max(1, out/in)); decay by lr * decay."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape))
    start, gradient, rate, beta = weight.detach().clone(), torch.randn(shape), 0.02, 0.95
    group = {"params": [weight], "lr": rate, "weight_decay": 0.5, "use_muon": True, "momentum": beta}
    optimizer = muon_class(on_cpu=True)([group])
    weight.grad = gradient.clone()
    optimizer.step()
    update = newton_schulz((1 - beta) * gradient + beta * (1 - beta) * gradient)
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    expected = start * (1 - rate * 0.5) - rate * scale * update.float()
    # The iterations run in half precision where the processor has it.
    torch.testing.assert_close(weight.detach(), expected, atol=rate * 0.02, rtol=0)


def test_muon_runs_without_a_compiler() -> None:
    compiled: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append("a graph")
        return graph.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    try:
        muon_class(on_cpu=True)
        assert function(torch.ones(2)).tolist() == [2.0, 2.0] and compiled == []
        torch.compiler.set_stance("default")
        muon_class(on_cpu=True, compiled=True)
        assert function(torch.ones(2)).tolist() == [2.0, 2.0] and compiled == ["a graph"]
    finally:
        torch.compiler.set_stance("default")


def test_small_tensors_and_embeddings_keep_32_bits(trainer: Any) -> None:
    made = trainer("--optim", "adamw_8bit", "--max_steps", "1")
    made.train()
    states = {id(parameter): state for parameter, state in innermost(made.optimizer).state.items()}
    for group in made.groups:
        for name, parameter in group.members:
            whole = "embed" in name or parameter.numel() < SMALLEST_8BIT
            assert states[id(parameter)]["state1"].dtype == (torch.float32 if whole else torch.uint8), name
            assert ("optim_bits" in group.options) == whole
    model = nn.Linear(4, 4)
    model.weight.ds_shape = torch.Size((64, 64))  # ZeRO-3's: what lies here is a part
    assert [*kept_in_32bit(model).values()] == [{"optim_bits": 32}], "the bias alone"


def test_which_are_8bit() -> None:
    for optim in ("adamw_8bit", "paged_lion_8bit", "adamw_bnb_8bit", "rmsprop_bnb_8bit"):
        assert is_8bit(optim)
    for optim in ("galore_adamw_8bit", "adamw_torch_8bit", "adamw_torch", "muon"):
        assert not is_8bit(optim)


def test_schedule_free_weights_are_saved_as_they_are_evaluated(trainer: Any, tmp_path: Path) -> None:
    class ScheduleFree(torch.optim.SGD):
        """The weights it means are all 7; training happens elsewhere."""

        def eval(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(7.0)

    made = trainer()
    made.args.optim = "schedule_free_sgd"
    made.optimizer = ScheduleFree(made.model.parameters(), lr=0.1)
    made.save_model(str(tmp_path / "saved"))
    made.args.optim = "adamw_torch"
    made.optimizer.eval = lambda: pytest.fail("others have one mode")
    made.save_model(str(tmp_path / "other"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all((parameter == 7.0).all() for parameter in saved.parameters())


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    return innermost(optimizer.optimizer) if hasattr(optimizer, "optimizer") else optimizer


def test_options_of_upstreams_groups_and_of_experts_go_to_their_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """GaLore's groups come with a rank; experts with a factor of their own, which does not lose the rank."""
    model = torch.nn.Linear(2, 2)
    weight, bias = model.weight, model.bias
    seen: list[Any] = []
    asked = {"hftune.distributed.expert_parallel:expert_options": lambda model: {id(weight): {"share": 2.0}}}
    monkeypatch.setattr(choice, "on_demand", asked.__getitem__)
    monkeypatch.setattr(choice, "parameter_groups", lambda model, args, decayed, options: seen.append(options) or [])
    args = {"optim": "galore_adamw", "expert_parallel_size": 2}
    run = made_up.run(args=args, get_decay_parameter_names=lambda model: ["weight"])
    groups = [{"params": [weight], "rank": 4}, {"params": [bias], "rank": 8, "scale": 1.0}]
    chosen, kwargs = choose_optimizer(run, model, lambda: ("class", {"eps": 1.0, "params": groups}))
    assert (chosen, kwargs) == ("class", {"eps": 1.0, "params": []})
    assert seen == [{id(weight): {"rank": 4, "share": 2.0}, id(bias): {"rank": 8, "scale": 1.0}}]
    args["expert_parallel_size"] = 1
    choose_optimizer(made_up.run(args=args, get_decay_parameter_names=lambda model: []), model, lambda: ("class", {}))
    assert seen[1] == {}


def test_groups_find_the_parameters_that_came_in_the_place_of_theirs() -> None:
    """As under tensor parallelism, which shards them after groups were made."""
    model = torch.nn.Linear(2, 2)
    group = Group(0.1, 0.0, "", {"rank": 4}, [("bias", torch.nn.Parameter(torch.zeros(1)))])
    renew_members([group], model)
    assert group.as_dict() == {"params": [model.bias], "lr": 0.1, "weight_decay": 0.0, "rank": 4}


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize("given", [None, "an optimizer"])
def test_the_schedule_is_made_of_the_optimizer_that_is_used(
    tensor_parallel: int, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; under tensor parallelism of the parameters that came in the place of others."""
    called: list[Any] = []
    monkeypatch.setattr(choice, "renew_members", lambda groups, model: called.append((groups, model)))
    monkeypatch.setattr(choice, "lost_groups", lambda groups, used: called.append(used))
    monkeypatch.setattr(choice, "make_schedule", lambda args, used, steps: (used, steps))
    args = {"tensor_parallel_size": tensor_parallel}
    run = made_up.run(args=args, model="model", optimizer="the run's", lr_scheduler=None, groups=["a group"])
    used = given or "the run's"
    assert make_scheduler(run, 7, given) == (used, 7) == run.lr_scheduler
    assert run._created_lr_scheduler is True
    assert called == [*([(["a group"], "model")] if tensor_parallel == 2 else []), used]
    run.lr_scheduler = "the user's"
    assert make_scheduler(run, 7, given) == "the user's"


class Made:
    """Stands for one of bitsandbytes' optimizers."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        return {"optim_bits": 8, "place": (gindex, pindex)}


def test_groups_say_the_bits_and_the_class_keeps_its_name() -> None:
    made: Any = bits_by_group(Made)
    assert made.__name__ == "Made" and issubclass(made, Made)
    assert made().get_config(1, 2, {"optim_bits": 32}) == {"optim_bits": 32, "place": (1, 2)}
    assert made().get_config(1, 2, {}) == {"optim_bits": 8, "place": (1, 2)}
