"""What merging means, for any matrices: zero adapters, scales and chains."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hftune.merging.changes import LowRank
from hftune.merging.skeleton import StoredSlice
from tests.unit.merging.models import store

FILES, NUMBERS = tempfile.TemporaryDirectory(), itertools.count()
SCALES = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])  # exact in binary


def matrices(rows: int, columns: int, ranks: list[int], seed: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """A weight, and for each rank A (r, columns) and B (rows, r)."""
    chance = torch.Generator().manual_seed(seed)
    pairs = [(torch.randn(r, columns, generator=chance), torch.randn(rows, r, generator=chance)) for r in ranks]
    return torch.randn(rows, columns, generator=chance), pairs


def updates(pairs: list[tuple[Tensor, Tensor]], scales: list[float]) -> list[LowRank]:
    """Low-rank updates of matrices that lie in a file."""
    named = {f"{kind}{at}": one.clone() for at, pair in enumerate(pairs) for kind, one in zip("ab", pair, strict=True)}
    found = store(Path(FILES.name) / str(next(NUMBERS)), named)
    return [LowRank(found[f"a{at}"], found[f"b{at}"], scale) for at, scale in enumerate(scales)]


def merged(updates: list[LowRank], weight: Tensor) -> Tensor:
    """The weight afterwards."""
    found = weight.clone()
    for update in updates:
        found = update.apply(found, StoredSlice("w"))
    return found


SIZES = {"rows": st.integers(1, 9), "columns": st.integers(1, 7), "seed": st.integers(0, 2**16)}


@settings(max_examples=30)
@given(**SIZES, scale=SCALES)
def test_an_adapter_of_zeros_changes_no_bit(rows: int, columns: int, seed: int, scale: float) -> None:
    weight, ((a, b),) = matrices(rows, columns, [2], seed)
    zero, other = updates([(a, torch.zeros_like(b)), (a, b)], [scale, scale])
    assert torch.equal(merged([zero], weight), weight)
    # Before another adapter it does not change what that one does.
    assert torch.equal(merged([zero, other], weight), merged([other], weight))


@settings(max_examples=30)
@given(**SIZES, scales=st.lists(SCALES, min_size=2, max_size=3))
def test_a_chain_is_one_adapter_with_all_columns(rows: int, columns: int, seed: int, scales: list[float]) -> None:
    weight, pairs = matrices(rows, columns, [1 + at for at in range(len(scales))], seed)
    # B = [s1 B1, s2 B2], A = [A1; A2]: the scales go into B.
    whole = (
        torch.cat([a for a, _ in pairs]),
        torch.cat([scale * b for scale, (_, b) in zip(scales, pairs, strict=True)], dim=1),
    )
    *chain, one = updates([*pairs, whole], [*scales, 1.0])
    torch.testing.assert_close(merged(chain, weight), merged([one], weight), rtol=1e-5, atol=1e-4)


@settings(max_examples=30)
@given(**SIZES, scale=SCALES)
def test_powers_of_two_change_no_bit(rows: int, columns: int, seed: int, scale: float) -> None:
    weight, ((a, b),) = matrices(rows, columns, [2], seed)
    once, halved = updates([(a, b), (a, b / 2)], [scale, 2 * scale])
    assert torch.equal(merged([once], weight), merged([halved], weight))
