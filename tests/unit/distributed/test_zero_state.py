"""Optimizers are filled from elsewhere, slot by slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hftune.distributed.zero_state import Fragment, Groups, Slot, filled, filled_whole, layout_of, load_state, slots


def test_slots() -> None:
    """`a` is 0..5, `b` is 10..13. A share that begins in the middle of `b` after the end of `a`, and two of padding."""
    values = {"a": torch.arange(6.0), "b": torch.arange(10.0, 14.0)}

    def read(name: str, begin: int, numel: int) -> torch.Tensor:
        return values[name][begin : begin + numel]

    slot = Slot(0, torch.empty(6), [Fragment("b", 1, 2, 2), Fragment("a", 4, 0, 2)], ["a", "b"])
    assert filled(slot, read, torch.float32).tolist() == [4, 5, 11, 12, 0, 0]
    assert filled_whole(slot, read, {"a": 6, "b": 4}).tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13]


def test_layouts_are_known_by_class() -> None:
    assert layout_of(torch.optim.SGD([nn.Parameter(torch.zeros(1))])) == 0
    for name, layout in (("DeepSpeedZeroOptimizer", 2), ("DeepSpeedZeroOptimizer_Stage3", 3), ("Unknown", None)):
        assert layout_of(type(name, (), {})()) == layout


def test_an_optimizer_of_torch_resumes() -> None:
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 2))]
    groups: list[dict[str, Any]] = [{"params": weights[:1], "momentum": 0.5, "foreach": False}, {"params": weights[1:]}]
    optimizer = torch.optim.SGD(groups, lr=0.3, momentum=0.9)
    found = slots(optimizer, {weights[0]: "a", weights[1]: "b"})
    assert [(slot.number, slot.members, slot.parts) for slot in found] == [
        (0, ["a"], [Fragment("a", 0, 0, 2)]),
        (1, ["b"], [Fragment("b", 0, 0, 2)]),
    ]
    values = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0]])]
    states = {1: {"momentum_buffer": torch.ones(1, 2)}}
    kept = [{"momentum": 0.7, "foreach": True, "lr": 9.0}, {"momentum": 0.8}]
    load_state(optimizer, values, states, Groups(kept, [0.1, 0.2]))
    assert [weight.tolist() for weight in weights] == [[1.0, 2.0], [[3.0, 4.0]]]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.7, 0.8]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2], "rates are the schedule's"
    assert optimizer.param_groups[0]["foreach"] is False, "how a step is computed is this run's"
    assert optimizer.state[weights[1]]["momentum_buffer"].tolist() == [[1.0, 1.0]]


def test_slots_of_stages_1_and_2() -> None:
    """A rank has the last two of `a`'s elements and none of `b`'s."""
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4))
    here = SimpleNamespace(
        lp_fragment_address=SimpleNamespace(start=1),
        get_hp_fragment_address=lambda: SimpleNamespace(start=0, numel=2),
    )
    vars(first)["_hp_mapping"], vars(second)["_hp_mapping"] = here, None
    flat = torch.zeros(2)
    optimizer = type("DeepSpeedZeroOptimizer", (), {})()
    optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups = [(first, second)], [flat]
    (slot,) = slots(optimizer, {first: "a", second: "b"})
    assert slot.parts == [Fragment("a", 1, 0, 2)] and slot.members == ["a", "b"] and slot.weights is flat
