"""Where DeepSpeed keeps parameters, on stand-ins with the attributes that it sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hftune.distributed import zero


def partitioned(values: list[float], whole: int, rank: int = 0) -> nn.Parameter:
    """A parameter as ZeRO-3 leaves it: empty, with its share alongside."""
    found: Any = nn.Parameter(torch.empty(0))
    found.ds_zero_partition_rank = rank
    found.ds_id, found.ds_tensor, found.ds_numel = 1, torch.tensor(values, requires_grad=True), whole
    return found  # type: ignore[no-any-return]  # made up


def test_values_and_sizes_of_parameters() -> None:
    plain, cut = nn.Parameter(torch.ones(2, 3)), partitioned([1.0, 2.0], 5)
    assert not zero.is_partitioned(plain) and zero.is_partitioned(cut)
    assert zero.local_values(plain).shape == (2, 3) and zero.local_values(cut).tolist() == [1.0, 2.0]
    assert not zero.local_values(plain).requires_grad and not zero.local_values(cut).requires_grad
    assert (zero.full_numel(plain), zero.full_numel(cut)) == (6, 5)
    # What stands behind the end of a parameter is no value of it.
    assert zero.local_values(partitioned([1.0, torch.nan], 3, rank=1)).tolist() == [1.0]
    assert zero.local_values(partitioned([torch.nan], 1, rank=1)).numel() == 0
    packed: Any = nn.Parameter(torch.zeros(4, 1))
    packed.quant_state = SimpleNamespace(shape=(2, 4))  # two weights a byte
    assert zero.full_numel(packed) == 8
    assert zero.is_any_partitioned(nn.ParameterList([plain, cut]))
    assert not zero.is_any_partitioned(nn.ParameterList([plain]))


def test_a_split_weight_is_cut_as_autotp_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = pytest.importorskip("deepspeed.utils.groups")
    monkeypatch.setattr(groups, "get_tensor_model_parallel_rank", lambda: 1)
    parameter: Any = nn.Parameter(torch.zeros(2, 3))
    whole = torch.arange(6.0).reshape(2, 3)
    assert zero.local_shard(parameter, whole) is whole, "nobody has split it"
    parameter.ds_autotp_universal_checkpoint_meta = {"partition_sizes": None}
    assert zero.local_shard(parameter, whole) is whole
    parameter.ds_autotp_universal_checkpoint_meta = {"partition_sizes": (1, 2), "partition_dim": 1}
    assert zero.local_shard(parameter, whole).tolist() == [[1.0, 2.0], [4.0, 5.0]]


def test_members_of_groups() -> None:
    first, second, third = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    plain = torch.optim.SGD([{"params": [first]}, {"params": [second, third]}], lr=0.1)
    assert [len(group) for group in zero.optimizer_members(plain)] == [1, 2]
    stage_2 = SimpleNamespace(bit16_groups=[(first, second), (third,)])
    wrapped = SimpleNamespace(optimizer=stage_2, param_groups=[])
    assert zero.optimizer_members(wrapped) == [[first, second], [third]]
    stage_3 = SimpleNamespace(
        sub_group_to_group_id={0: 1, 1: 0, 2: 1}, param_groups=[{}, {}], fp16_groups=[[first], [second], [third]]
    )
    found = zero.optimizer_members(stage_3)
    assert [[id(one) for one in group] for group in found] == [[id(second)], [id(first), id(third)]]


def test_prefetching_is_reset_and_ended() -> None:
    called: list[str] = []
    coordinator = SimpleNamespace(
        is_invalid_trace=lambda: bool(called),
        _invalidate_trace=lambda: called.append("trace"),
        _clean_inflight_param_registry=lambda: called.append("fetches"),
    )
    offload = SimpleNamespace(get_param_coordinator=lambda: coordinator)
    engine = SimpleNamespace(optimizer=SimpleNamespace(parameter_offload=offload))
    zero.reset_fetch_order(engine)
    zero.reset_fetch_order(engine)  # a trace that is being recorded is left alone
    zero.release_fetched(engine)
    assert called == ["trace", "fetches"]
    for other in (SimpleNamespace(), SimpleNamespace(optimizer=SimpleNamespace())):  # without ZeRO-3
        zero.reset_fetch_order(other)
        zero.release_fetched(other)


@pytest.mark.parametrize("write", [True, False])
def test_deepspeed_gathers_what_it_has_partitioned(write: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is taken from rank 0; what is whole is left as it is."""
    import deepspeed

    asked: list[Any] = []

    @contextmanager
    def gather(parameters: list[torch.Tensor], modifier_rank: int | None) -> Iterator[None]:
        asked.append(([*map(id, parameters)], modifier_rank))
        yield

    monkeypatch.setattr(deepspeed.zero, "GatheredParameters", gather)
    whole, part = torch.zeros(1), partitioned([1.0], 1)
    with zero.gathered([whole, part], write=write):
        assert asked == [([id(part)], 0 if write else None)]
    with zero.gathered([whole], write=write):
        assert len(asked) == 1
    with zero.gathered([part]):
        assert asked[1] == ([id(part)], None), "to read, unless asked otherwise"


def test_a_parameter_of_another_module_is_made_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed

    known: list[object] = []
    monkeypatch.setattr(deepspeed.zero, "register_external_parameter", lambda *given: known.append(given))
    layer = torch.nn.Linear(1, 1)
    zero.register_external_parameter(layer, layer.weight)
    assert known == [(layer, layer.weight)]
