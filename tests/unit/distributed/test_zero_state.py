"""Optimizers are filled from elsewhere, slot by slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hftune.distributed import zero_state
from hftune.distributed.zero_state import Fragment, Groups, Slot, filled, filled_whole, layout_of, load_state, slots


def test_slots() -> None:
    """`a` is 0..5, `b` is 10..13. A share that begins in the middle of `b` after the end of `a`, and two of padding."""
    values = {"a": torch.arange(6.0), "b": torch.arange(10.0, 14.0)}

    def read(name: str, begin: int, numel: int) -> torch.Tensor:
        return values[name][begin : begin + numel]

    slot = Slot(0, torch.empty(6), [Fragment("b", 1, 2, 2), Fragment("a", 4, 0, 2)], ["a", "b"])
    assert filled(slot, read, torch.float32).tolist() == [4, 5, 11, 12, 0, 0]
    assert filled_whole(slot, read, {"a": 6, "b": 4}).tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13]
    elsewhere = Slot(0, torch.empty(2), [Fragment("b", 2, 0, 0)], ["b"])
    assert (
        filled(elsewhere, read, torch.float32).tolist() == [0, 0] and filled_whole(elsewhere, read, {}).tolist() == []
    )


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
        lp_fragment_address=SimpleNamespace(start=1), get_hp_fragment_address=lambda: SimpleNamespace(start=0, numel=2)
    )
    vars(first)["_hp_mapping"], vars(second)["_hp_mapping"] = here, None
    flat = torch.zeros(2)
    optimizer = type("DeepSpeedZeroOptimizer", (), {})()
    optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups = [(first, second)], [flat]
    (slot,) = slots(optimizer, {first: "a", second: "b"})
    assert slot.parts == [Fragment("a", 1, 0, 2)] and slot.members == ["a", "b"] and slot.weights is flat
    # DeepSpeed's optimizer for bf16 has other names.
    bf16 = type("BF16_Optimizer", (), {"bit16_groups": None})()
    bf16.bf16_groups, bf16.fp32_groups_flat_partition = [(first, second)], [flat]
    assert slots(bf16, {first: "a", second: "b"}) == [slot]


def shard(size: int, numel: int) -> Any:
    """A parameter of ZeRO-3 of `numel` elements, of which each rank has room for `size`."""
    parameter = nn.Parameter(torch.zeros(0))
    vars(parameter).update(ds_numel=numel, partition_numel=lambda: size)
    return parameter


def test_slots_of_stage_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two ranks: the last 2 of `a`'s 5 elements and 1 of padding, 1 of `b`'s 2, none of `c`'s 1.

    Sub-group 1 belongs to group 0 and comes first, as the optimizer's state dict counts.
    """
    monkeypatch.setattr(zero_state.dist, "get_rank", lambda group: {"group": 1}[group])
    a, b, c = shard(3, 5), shard(1, 2), shard(1, 1)
    optimizer = type("DeepSpeedZeroOptimizer_Stage3", (), {"dp_process_group": "group"})()
    optimizer.fp16_groups, optimizer.sub_group_to_group_id = [[c], [a, b]], {0: 1, 1: 0}
    optimizer.fp32_partitioned_groups_flat = [torch.zeros(1), torch.zeros(4)]
    first, second = slots(optimizer, {a: "a", b: "b", c: "c"})
    assert first.parts == [Fragment("a", 3, 0, 2), Fragment("b", 1, 3, 1)] and second.parts == [Fragment("c", 1, 0, 0)]
    assert (first.number, second.number) == (0, 1) and (first.members, second.members) == (["a", "b"], ["c"])
    assert (len(first.weights), len(second.weights)) == (4, 1)
    # Nothing is read of what lies on other ranks.
    assert filled(second, lambda *_: torch.full((0,), 7.0), torch.float32).tolist() == [0.0]


class Taking:
    """ZeRO's optimizer, as far as it is asked here."""

    def __init__(self, **own: Any) -> None:
        self.own, self.calls, self.dp_process_group = own, [], "group"
        self.sub_group_to_group_id = {0: 1, 1: 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.own)

    def load_state_dict(self, states: Any, **how: Any) -> None:
        self.calls.append((states, how))

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_gets_what_it_would_have_written_on_this_rank(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_state.dist, "get_rank", lambda group: {"group": 3}[group])
    groups = {"state": "old", "param_groups": [{"lr": 1.0, "betas": 0.9}, {"lr": 2.0, "betas": 0.9}]}
    key = {2: "base_optimizer_state", 3: "optimizer_state_dict"}[stage]
    name = {2: "DeepSpeedZeroOptimizer", 3: "DeepSpeedZeroOptimizer_Stage3"}[stage]
    optimizer = type(name, (Taking,), {})(**{key: groups, "loss_scale": 8})
    first, second = torch.zeros(1), torch.ones(2)
    load_state(optimizer, [first, second], {0: {"step": 4}}, Groups([{"betas": 0.5}, {"betas": 0.6}], [0.1, 0.2]))
    before, ((states, how), *after) = optimizer.calls[: stage - 2], optimizer.calls[stage - 2 :]
    assert list(states) == [3] and states[3]["loss_scale"] == 8, "what else the optimizer has stays its own"
    assert states[3][key] == {
        "state": {0: {"step": 4}},
        "param_groups": [{"lr": 0.1, "betas": 0.5}, {"lr": 0.2, "betas": 0.6}],
    }
    if stage == 2:
        assert states[3]["single_partition_of_fp32_groups"] == [first, second]
        assert how == {"load_optimizer_states": True, "load_from_fp32_weights": True} and after == ["update_lp_params"]
    else:
        # By sub-group again: the first weights are of group 0, which is sub-group 1.
        assert [len(each) for each in states[3]["fp32_flat_groups"]] == [2, 1]
        assert how == {"load_optimizer_states": True}
        assert (before, after) == (["checkpoint_event_prologue"], ["checkpoint_event_epilogue"])


def test_settings_of_another_number_of_groups_are_this_runs() -> None:
    weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD([{"params": [each]} for each in weights], lr=0.3, momentum=0.9)
    values = [torch.ones(1), torch.ones(1)]
    load_state(optimizer, values, {}, Groups([{"momentum": 0.5}], [0.1, 0.2]))
    assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    with pytest.raises(AssertionError, match="2 groups, 1 rates"):
        load_state(optimizer, values, {}, Groups([], [0.1]))
