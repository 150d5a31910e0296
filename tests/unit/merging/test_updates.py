"""Each kind of update by hand, whole and in blocks, and what counts as the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hftune.merging.skeleton import StoredSlice
from hftune.merging.updates import Change, Fold, Update, add_bias, grow_rows, is_same, low_rank, replace, replace_rows
from hftune.models.vocabulary.growth import Growth
from tests.unit.merging.models import store

WHOLE = StoredSlice("w")
W, A, B = torch.randn(6, 4), torch.randn(2, 4), torch.randn(6, 2)


def applied(updates: list[Update], weight: Tensor, *, where: StoredSlice = WHOLE, step: int = 0) -> Tensor:
    """What the updates make of a weight, in blocks of `step` rows."""
    load = Change([[(1.0, updates)]], where, tuple(weight.shape)).load()
    rows = weight.reshape(-1, weight.shape[-1])
    step = step or len(rows)
    return torch.cat([load(rows[i : i + step].clone(), i, len(rows[i : i + step])) for i in range(0, len(rows), step)])


@pytest.mark.parametrize("step", [0, 1, 4])
def test_lora(step: int, tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    update = low_rank(stored["a"], stored["b"], 1.5)
    assert torch.equal(applied([update], W, step=step), W + 1.5 * (B @ A))
    assert update.additive and not update.whole and update.shape is None


def test_a_weight_stored_the_other_way_round(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": A, "b": B})
    found = applied([low_rank(stored["a"], stored["b"], 0.5, transposed=True)], W.T.contiguous())
    torch.testing.assert_close(found, (W + 0.5 * (B @ A)).T)


@pytest.mark.parametrize("transposed", [False, True])
def test_dora(transposed: bool, tmp_path: Path) -> None:
    m = torch.rand(6)
    stored = store(tmp_path, {"a": A, "b": B, "m": m})
    update = low_rank(stored["a"], stored["b"], 0.5, transposed=transposed, magnitude=stored["m"])
    v = W + 0.5 * (B @ A)
    wanted = m[:, None] * v / v.norm(dim=1, keepdim=True)
    found = applied([update], W.T.contiguous() if transposed else W, step=0 if transposed else 2)
    torch.testing.assert_close(found, wanted.T if transposed else wanted)
    assert not update.additive and update.whole == transposed


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


def test_a_bias_is_added(tmp_path: Path) -> None:
    stored = store(tmp_path, {"b": torch.tensor([1.0, 2.0, 3.0])})
    found = applied([add_bias(stored["b"], 2.0)], torch.tensor([[10.0], [20.0], [30.0]]), step=2)
    assert found.flatten().tolist() == [12.0, 24.0, 36.0]


def test_replaced_whole_and_by_rows(tmp_path: Path) -> None:
    stored = store(tmp_path, {"new": torch.randn(6, 4), "rows": torch.tensor([[1.0] * 4, [2.0] * 4, [3.0] * 4])})
    new = replace(stored["new"])
    assert new.shape == (6, 4) and not new.additive
    assert torch.equal(applied([new], W, step=4), applied([new], W * 0))
    wanted = W.clone()
    wanted[5], wanted[2], wanted[4] = 1.0, 2.0, 3.0  # 4 is the first row of the second block
    assert torch.equal(applied([replace_rows([5, 2, 4], stored["rows"])], W, step=4), wanted)


def test_replaced_whatever_its_shape(tmp_path: Path) -> None:
    """A vector is one column, experts lie one below the other; and what comes after does not change what is read."""
    tensors = {"vector": torch.randn(6), "experts": torch.randn(3, 4, 2)}
    for name, tensor in store(tmp_path, tensors).items():
        load = Change([[(1.0, [replace(tensor)])]], WHOLE, tensor.shape).load()
        wanted = tensors[name].reshape(-1, 2 if name == "experts" else 1)
        rows = len(wanted)
        assert torch.equal(load(None, 0, rows).mul_(2), 2 * wanted) and torch.equal(load(None, 0, rows), wanted)


def test_an_expert_that_was_trained_whole(tmp_path: Path) -> None:
    values = torch.randn(3, 4, 2)
    stored = store(tmp_path, {"new": values})
    half = StoredSlice("w", expert=2, part=0, parts=2)
    assert torch.equal(applied([replace(stored["new"])], torch.zeros(2, 2), where=half), values[2, :2])


def test_growth() -> None:
    growth = Growth(base_rows=6, base_tokens=6, rows=8, ids=[6, 7], init="mean")
    update = grow_rows(growth, (6, 4))
    assert update.shape == (8, 4) and update.whole
    found = applied([update], W)
    assert torch.equal(found[:6], W)
    torch.testing.assert_close(found[6], W.mean(0))


def test_levels_and_weights(tmp_path: Path) -> None:
    """Below one adapter, two side by side upon it: W1 = W + B A; W1 + 0.5 (B A) - 2 (replaced - W1)."""
    stored = store(tmp_path, {"a": A, "b": B, "new": torch.randn(6, 4)})
    lora, whole = low_rank(stored["a"], stored["b"], 1.0), replace(stored["new"])
    levels = [[(1.0, [lora])], [(0.5, [lora]), (-2.0, [whole])]]
    found = Change(levels, WHOLE, (6, 4)).load()(W.clone(), 0, 6)
    first = W + B @ A
    torch.testing.assert_close(found, first + 0.5 * (B @ A) - 2 * (applied([whole], W) - first))


def test_a_small_difference_is_not_lost_in_a_large_weight(tmp_path: Path) -> None:
    """Float32 has every eighth number there: 1e8 + 3 is 1e8, whose difference from W is none; 2 * 3 is nearly 8."""
    stored = store(tmp_path, {"a": torch.ones(1, 1), "b": torch.full((1, 1), 3.0)})
    lora = low_rank(stored["a"], stored["b"], 1.0)
    found = Change([[(2.0, [lora])]], WHOLE, (1, 1)).load()(torch.full((1, 1), 1e8), 0, 1)
    assert found.item() == 1e8 + 8


def test_the_same(tmp_path: Path) -> None:
    more = {"other": A + 1, "half": A.half(), "m": torch.ones(6)}
    stored = store(tmp_path, {"a": A.half().float(), "b": B, "copy of a": A.half().float()} | more)
    a, b, copy, m = (stored[name] for name in ("a", "b", "copy of a", "m"))
    other, half = stored["other"], stored["half"]
    assert is_same([(1.0, [low_rank(a, b, 1.0)])], [(1.0, [low_rank(copy, b, 1.0)])])
    assert is_same(a, copy) and not is_same(a, other) and not is_same(a, half) and not is_same(a, b)
    for another in (
        low_rank(a, b, 2.0),
        low_rank(a, b, 1.0, magnitude=m),
        low_rank(b, b, 1.0),
        replace(a),
        add_bias(a, 1.0),
    ):
        assert not is_same(low_rank(a, b, 1.0), another)
    assert not is_same([(1.0, [replace(a)])], [(0.5, [replace(a)])])
    assert not is_same([replace(a)], [])
    assert not is_same([replace(a)], replace(a)) and not is_same(replace(a), [replace(a)])
    assert not is_same(replace_rows([1], a), replace_rows([2], a))


def test_which_updates_take_blocks_and_which_add_the_same(tmp_path: Path) -> None:
    """What needs all rows at once costs memory; what does not add the same must see the weight."""
    stored = store(tmp_path, {"a": A, "b": B, "m": torch.rand(6)})
    lora, bias = low_rank(stored["a"], stored["b"], 1.0), add_bias(stored["m"], 1.0)
    dora = low_rank(stored["a"], stored["b"], 1.0, magnitude=stored["m"])
    whole, rows = replace(stored["m"]), replace_rows([1], stored["m"])
    assert not any(update.whole for update in (lora, bias, dora, whole, rows))
    assert [update.additive for update in (lora, bias, dora, whole, rows)] == [True, True, False, False, False]
    assert [update.shape for update in (lora, bias, dora, whole, rows)] == [None, None, None, (6,), None]


def test_a_magnitude_is_one_a_row_unless_it_is_one_a_column() -> None:
    """(3, 4) and (0, 2), to which nothing is added, at a length of 10 each; by column they are (3, 0) and (4, 2)."""
    block, nothing = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.zeros(2, 1)
    tens = torch.full((2,), 10.0)
    by_row = Fold(nothing, nothing.T, 1.0, magnitude=tens)(block.clone(), 0, 2)
    assert by_row.tolist() == [[6.0, 8.0], [0.0, 10.0]]
    by_column = Fold(nothing, nothing.T, 1.0, magnitude=tens, by_column=True)(block.clone(), 0, 2)
    torch.testing.assert_close(by_column, torch.tensor([[10.0, 40 / 20**0.5], [0.0, 20 / 20**0.5]]))
