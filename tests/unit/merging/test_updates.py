"""Each kind of update by hand, whole and in blocks, and what counts as the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hftune.merging.changes import Fold, Update, is_same, load_all, low_rank, replace
from hftune.merging.skeleton import StoredSlice
from tests.unit.merging.models import store

WHOLE = StoredSlice("w")
W, A, B = torch.randn(6, 4), torch.randn(2, 4), torch.randn(6, 2)


def applied(updates: list[Update], weight: Tensor, *, where: StoredSlice = WHOLE, step: int = 0) -> Tensor:
    """What the updates make of a weight, in blocks of `step` rows."""
    load = load_all(updates, where, tuple(weight.shape))
    rows = weight.reshape(-1, weight.shape[-1])
    step = step or len(rows)
    return torch.cat([load(rows[i : i + step].clone(), i, len(rows[i : i + step])) for i in range(0, len(rows), step)])


@pytest.mark.parametrize("step", [0, 1, 4])
def test_lora(step: int, tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    update = low_rank(stored["a"], stored["b"], 1.5)
    assert torch.equal(applied([update], W, step=step), W + 1.5 * (B @ A))


def test_a_weight_stored_the_other_way_round(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    found = applied([low_rank(stored["a"], stored["b"], 0.5, transposed=True)], W.T.contiguous())
    torch.testing.assert_close(found, (W + 0.5 * (B @ A)).T)


def test_dora(tmp_path: Path) -> None:
    m = torch.rand(6)
    stored = store(tmp_path, {"a": A, "b": B, "m": m})
    v = W + 0.5 * (B @ A)
    found = applied([low_rank(stored["a"], stored["b"], 0.5, magnitude=stored["m"])], W, step=2)
    torch.testing.assert_close(found, m[:, None] * v / v.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("count", [2, 3])
def test_experts(count: int, tmp_path: Path) -> None:
    """E experts of (4, 2), r = 2: A is (E r, in), B is (out, r E) with the expert last."""
    w, a, b = torch.randn(count, 4, 2), torch.randn(2 * count, 2), torch.randn(4, 2 * count)
    stored = store(tmp_path, {"a": a, "b": b})
    wanted = torch.stack([w[e] + b[:, [e, count + e]] @ a[2 * e : 2 * e + 2] for e in range(count)])
    update = low_rank(stored["a"], stored["b"], 1.0, experts=count)
    torch.testing.assert_close(applied([update], w).reshape(count, 4, 2), wanted)
    torch.testing.assert_close(applied([update], w, step=3).reshape(count, 4, 2), wanted)
    # Halves of the rows of an expert, as a checkpoint stores its gate and up projections.
    for expert, part in ((0, 0), (1, 1)):
        rows = slice(2 * part, 2 * part + 2)
        half = StoredSlice("w", expert=expert, part=part, parts=2)
        torch.testing.assert_close(applied([update], w[expert, rows], where=half), wanted[expert, rows])


def test_replaced_whole(tmp_path: Path) -> None:
    new = replace(store(tmp_path, {"new": torch.randn(6, 4)})["new"])
    assert torch.equal(applied([new], W, step=4), applied([new], W * 0))


def test_replaced_whatever_its_shape(tmp_path: Path) -> None:
    """A vector is one column, experts lie one below the other; and what comes after does not change what is read."""
    tensors = {"vector": torch.randn(6), "experts": torch.randn(3, 4, 2)}
    for name, tensor in store(tmp_path, tensors).items():
        load = load_all([replace(tensor)], WHOLE, tensor.shape)
        wanted = tensors[name].reshape(-1, 2 if name == "experts" else 1)
        rows = len(wanted)
        assert torch.equal(load(None, 0, rows).mul_(2), 2 * wanted) and torch.equal(load(None, 0, rows), wanted)


def test_an_expert_that_was_trained_whole(tmp_path: Path) -> None:
    values = torch.randn(3, 4, 2)
    stored = store(tmp_path, {"new": values})
    half = StoredSlice("w", expert=2, part=0, parts=2)
    assert torch.equal(applied([replace(stored["new"])], torch.zeros(2, 2), where=half), values[2, :2])


def test_one_adapter_after_another(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B, "m": torch.rand(6)})
    lora = low_rank(stored["a"], stored["b"], 1.0)
    dora = low_rank(stored["a"], stored["b"], 1.0, magnitude=stored["m"])
    torch.testing.assert_close(applied([lora, dora], W), applied([dora], applied([lora], W)))


def test_the_same(tmp_path: Path) -> None:
    more = {"other": A + 1, "half": A.half(), "m": torch.ones(6)}
    stored = store(tmp_path, {"a": A.half().float(), "b": B, "copy of a": A.half().float()} | more)
    a, b, copy, m = (stored[name] for name in ("a", "b", "copy of a", "m"))
    other, half = stored["other"], stored["half"]
    assert is_same([low_rank(a, b, 1.0)], [low_rank(copy, b, 1.0)]) and is_same(None, None)
    assert is_same(a, copy) and not is_same(a, other) and not is_same(a, half) and not is_same(a, b)
    for another in (
        low_rank(a, b, 2.0),
        low_rank(a, b, 1.0, magnitude=m),
        low_rank(b, b, 1.0),
        replace(a),
    ):
        assert not is_same(low_rank(a, b, 1.0), another)
    assert not is_same([replace(a)], []) and not is_same([replace(a)], None)
    assert not is_same([replace(a)], replace(a)) and not is_same(replace(a), [replace(a)])


def test_a_magnitude_is_one_a_row() -> None:
    """(3, 4) and (0, 2), to which nothing is added, at a length of 10 each."""
    block, nothing = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.zeros(2, 1)
    by_row = Fold(nothing, nothing.T, 1.0, magnitude=torch.full((2,), 10.0))(block.clone(), 0, 2)
    assert by_row.tolist() == [[6.0, 8.0], [0.0, 10.0]]
