"""Each kind of update by hand, and what counts as the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hftune.merging.changes import LowRank, Replace, Update
from hftune.merging.skeleton import StoredSlice
from tests.unit.merging.models import store

WHOLE = StoredSlice("w")
W, A, B = torch.randn(6, 4), torch.randn(2, 4), torch.randn(6, 2)


def applied(updates: list[Update], weight: Tensor, *, where: StoredSlice = WHOLE) -> Tensor:
    """What the updates make of a weight."""
    found = weight.clone()
    for update in updates:
        found = update.apply(found, where)
    return found


def test_lora(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    update = LowRank(stored["a"], stored["b"], 1.5)
    assert torch.equal(applied([update], W), W + 1.5 * (B @ A))


def test_a_weight_stored_the_other_way_round(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    found = applied([LowRank(stored["a"], stored["b"], 0.5, transposed=True)], W.T.contiguous())
    torch.testing.assert_close(found, (W + 0.5 * (B @ A)).T)


def test_dora(tmp_path: Path) -> None:
    m = torch.rand(6)
    stored = store(tmp_path, {"a": A, "b": B, "m": m})
    v = W + 0.5 * (B @ A)
    found = applied([LowRank(stored["a"], stored["b"], 0.5, magnitude=stored["m"])], W)
    torch.testing.assert_close(found, m[:, None] * v / v.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("count", [2, 3])
def test_experts(count: int, tmp_path: Path) -> None:
    """E experts of (4, 2), r = 2: A is (E r, in), B is (out, r E) with the expert last."""
    w, a, b = torch.randn(count, 4, 2), torch.randn(2 * count, 2), torch.randn(4, 2 * count)
    stored = store(tmp_path, {"a": a, "b": b})
    wanted = torch.stack([w[e] + b[:, [e, count + e]] @ a[2 * e : 2 * e + 2] for e in range(count)])
    update = LowRank(stored["a"], stored["b"], 1.0, experts=count)
    torch.testing.assert_close(applied([update], w), wanted)
    # Halves of the rows of an expert, as a checkpoint stores its gate and up projections.
    for expert, part in ((0, 0), (1, 1)):
        rows = slice(2 * part, 2 * part + 2)
        half = StoredSlice("w", expert=expert, part=part, parts=2)
        torch.testing.assert_close(applied([update], w[expert, rows], where=half), wanted[expert, rows])


def test_replaced_whole(tmp_path: Path) -> None:
    """Whatever its shape, and before it or none; what comes after does not change what is read."""
    tensors = {"vector": torch.randn(6), "experts": torch.randn(3, 4, 2)}
    for name, tensor in store(tmp_path, tensors).items():
        new = Replace(tensor)
        assert torch.equal(new.apply(None, WHOLE).mul_(2), 2 * tensors[name])
        assert torch.equal(applied([new], tensors[name] * 0), tensors[name])


def test_an_expert_that_was_trained_whole(tmp_path: Path) -> None:
    values = torch.randn(3, 4, 2)
    stored = store(tmp_path, {"new": values})
    half = StoredSlice("w", expert=2, part=0, parts=2)
    assert torch.equal(applied([Replace(stored["new"])], torch.zeros(2, 2), where=half), values[2, :2])


def test_one_adapter_after_another(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B, "m": torch.rand(6)})
    lora = LowRank(stored["a"], stored["b"], 1.0)
    dora = LowRank(stored["a"], stored["b"], 1.0, magnitude=stored["m"])
    torch.testing.assert_close(applied([lora, dora], W), applied([dora], applied([lora], W)))


def test_a_magnitude_is_one_a_row(tmp_path: Path) -> None:
    """(3, 4) and (0, 2), to which nothing is added, at a length of 10 each."""
    weight = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    stored = store(tmp_path, {"a": torch.zeros(1, 2), "b": torch.zeros(2, 1), "m": torch.full((2, 1), 10.0)})
    found = applied([LowRank(stored["a"], stored["b"], 1.0, magnitude=stored["m"])], weight)
    assert found.tolist() == [[6.0, 8.0], [0.0, 10.0]]
