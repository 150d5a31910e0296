"""Rows of a grown vocabulary: values worked out by hand, bits that stay, padding that is never chosen."""

from __future__ import annotations

import pytest
import torch

from hftune.models.vocabulary.growth import Growth
from hftune.models.vocabulary.resized_rows import resized_rows

pytestmark = pytest.mark.long

# Three tokens and a row of padding.
OLD = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0], [100.0, 100.0]])

PIECES = Growth(base_rows=4, base_tokens=3, rows=6, ids=[3, 4], pieces=[[0, 1], [2, 2, 0]])


def growth_with(**changes: object) -> Growth:
    return Growth(**{**vars(PIECES), **changes})


def test_rows_of_pieces() -> None:
    expected = [
        *([1, 2], [3, 4], [5, 9]),  # as they were
        [2, 3],  # the mean of rows 0 and 1; it was padding before
        [11 / 3, 20 / 3],  # the mean of rows 2, 2 and 0
        [3, 5],  # padding: the mean of the three tokens, not of the old padding
    ]
    torch.testing.assert_close(resized_rows(OLD, PIECES), torch.tensor(expected))


def test_rows_of_the_mean_and_of_a_bias() -> None:
    grown = resized_rows(OLD, growth_with(init="mean"))
    assert grown[3:].tolist() == [[3, 5]] * 3
    assert resized_rows(OLD[:, 1], growth_with(init="mean")).tolist() == [2, 4, 9, 5, 5, 5]
    assert resized_rows(OLD[:, 1], growth_with(init="normal")).tolist() == [2, 4, 9, 0, 0, 5]


def test_rows_that_are_drawn() -> None:
    many = Growth(base_rows=4, base_tokens=4, rows=1004, ids=list(range(4, 1004)), init="normal", std=0.1, seed=3)
    torch.manual_seed(0)
    first = resized_rows(torch.zeros(4, 64), many)
    torch.manual_seed(1)
    assert torch.equal(first, resized_rows(torch.zeros(4, 64), many))  # the record's seed alone
    assert first[4:].std().item() == pytest.approx(0.1, rel=0.02)
    assert abs(first[4:].mean().item()) < 0.002


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_old_rows_keep_their_bits(dtype: torch.dtype) -> None:
    old = torch.randn(9000, 8).to(dtype)  # more than a block of rows
    grown = resized_rows(old, Growth(base_rows=9000, base_tokens=9000, rows=9002, ids=[9000], init="mean"))
    assert grown.dtype == dtype and torch.equal(grown[:9000], old)
    assert torch.equal(grown[9000], old.double().mean(0).to(dtype)) and torch.equal(grown[9000], grown[9001])


def test_padding_is_never_the_most_likely_token() -> None:
    torch.manual_seed(0)
    grown = resized_rows(torch.randn(50, 16), Growth(base_rows=50, base_tokens=50, rows=64))
    logits = torch.randn(1000, 16) @ grown.T
    assert (logits.argmax(-1) < 50).all()
