"""Records of a mixture come as often as each other, in exact numbers."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from hftune.data.mixture import (
    Mixture,
    MixtureSampler,
    ReorderedSampler,
    Schedule,
    as_shares,
    largest_remainder,
    permutation,
)
from hftune.errors import ArgumentError


def test_permutations_are_fixed_for_good() -> None:
    """Literal values: if these change, every run that goes on from a checkpoint repeats and loses documents."""
    assert permutation(8, 42, 7).tolist() == [2, 4, 0, 3, 7, 1, 6, 5]
    assert sorted(permutation(1000, 1).tolist()) == list(range(1000))


@pytest.mark.parametrize("other", [(1,), (1, 0, 0), (0, 1), (1, 2)])
def test_keys_of_other_lengths_are_other_keys(other: tuple[int, ...]) -> None:
    assert permutation(100, 1, 0).tolist() != permutation(100, *other).tolist()


def test_largest_remainder_by_hand() -> None:
    # Quotas 3.33.. each: the one left over goes to the first. Then 1.5, 1.5, 7: the earlier of the two halves.
    assert largest_remainder([1, 1, 1], 10) == [4, 3, 3]
    assert largest_remainder([0.15, 0.15, 0.7], 10) == [2, 1, 7]


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=8), total=st.integers(0, 5000))
def test_largest_remainder_is_exact_and_within_one(weights: list[int], total: int) -> None:
    counts = largest_remainder(weights, total)
    assert sum(counts) == total
    assert all(
        abs(count - Fraction(total * weight, sum(weights))) < 1 for count, weight in zip(counts, weights, strict=True)
    )


def drawn(sampler: MixtureSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


def draws_all(mixture: Mixture) -> bool:
    """Whether an epoch has a record of every source; otherwise the mixture is refused."""
    try:
        return bool(mixture.counts())
    except ArgumentError:
        return False


MIXTURES = (
    st.integers(1, 4)
    .flatmap(
        lambda sources: st.builds(
            Mixture,
            sizes=st.tuples(*[st.integers(1, 12)] * sources),
            weights=st.one_of(st.none(), st.tuples(*[st.floats(0.5, 4)] * sources)),
            num_samples=st.one_of(st.none(), st.integers(40, 90)),
        )
    )
    .filter(draws_all)
)


@settings(deadline=None, max_examples=40)
@given(mixture=MIXTURES, seed=st.integers(0, 2**40), epochs=st.integers(1, 6))
def test_no_record_comes_again_before_all_of_its_source_have(mixture: Mixture, seed: int, epochs: int) -> None:
    sampler = MixtureSampler(mixture, seed)
    counts, seen = mixture.counts(), Counter()
    first = 0
    for epoch in range(epochs):
        indices = drawn(sampler, epoch)
        assert len(indices) == len(sampler) == (mixture.num_samples or sum(mixture.sizes))
        seen.update(indices)
        first = 0
        for size, count in zip(mixture.sizes, counts, strict=True):
            own = range(first, first + size)
            assert sum(index in own for index in indices) == count
            times = [seen[index] for index in own]
            assert max(times) - min(times) <= 1
            first += size
    assert set(seen) <= set(range(first))


def test_a_mixture_without_weights_is_an_ordinary_epoch() -> None:
    sampler = MixtureSampler(Mixture((3, 4)), seed=1)
    orders = [drawn(sampler, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert drawn(MixtureSampler(Mixture((3, 4)), seed=1), 2) == orders[2]


def test_a_small_source_is_oversampled_and_a_large_one_goes_on() -> None:
    """5 of 1 and 5 of 100: each epoch has the lone record five times, and twenty epochs use up the large source."""
    mixture = Mixture((1, 100), (1, 1), 10)
    sampler = MixtureSampler(mixture, seed=0)
    epochs = [drawn(sampler, epoch) for epoch in range(20)]
    assert all(epoch.count(0) == 5 for epoch in epochs)
    assert sorted(index for epoch in epochs for index in epoch if index) == list(range(1, 101))


def test_a_source_that_would_never_be_drawn_is_refused() -> None:
    with pytest.raises(ArgumentError, match="source 1 of 2 would never be drawn") as error:
        MixtureSampler(Mixture((5, 5), (0.001, 1), 10), seed=0)
    assert "--num_samples_each_epoch" in str(error.value)
    with pytest.raises(ArgumentError, match="without a record"):
        MixtureSampler(Mixture((5, 0)), seed=0)


def test_a_pattern_of_places_is_looked_up_in_the_order_of_the_epoch() -> None:
    order = MixtureSampler(Mixture((3,), None), seed=0)
    looked_up = ReorderedSampler(SequentialSampler(range(3)), order)
    looked_up.set_epoch(2)
    assert list(looked_up) == drawn(MixtureSampler(Mixture((3,)), 0), 2)
    assert next(iter(BatchSampler(looked_up, 2, False))) == list(looked_up)[:2]


def test_each_seed_has_orders_of_its_own() -> None:
    """A negative one as well, which stands for no other."""
    orders = {tuple(drawn(MixtureSampler(Mixture((20, 20)), seed), 0)) for seed in (0, 1, -1, 2**31)}
    assert len(orders) == 4


def test_each_source_has_an_order_of_its_own() -> None:
    """Sources in the same order, as translations of each other are, do not give the same records to an epoch."""
    order = drawn(MixtureSampler(Mixture((40, 40), (1, 1), 40), seed=0), 0)
    first, second = {at for at in order if at < 40}, {at - 40 for at in order if at >= 40}
    assert len(first) == len(second) == 20 and first != second


SHARES = st.lists(st.integers(1, 10**6), min_size=1, max_size=6)


@pytest.mark.parametrize("weights, shares", [([1, 2], [1, 2]), ([0.1, 0.2, 0.7], [1, 2, 7]), ([3.0, 6.0], [1, 2])])
def test_weights_become_whole_numbers(weights: list[float], shares: list[int]) -> None:
    assert as_shares(weights) == shares


def test_a_schedule_by_hand() -> None:
    """Shares 3 and 1: due at 2/3, 6/3, 10/3, ... and 2, 6, ...; at 2 both, and the earlier source goes first."""
    schedule = Schedule([3, 1])
    assert [schedule.locate(block) for block in range(8)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 1),
        (0, 5),
    ]


@settings(deadline=None, max_examples=50)
@given(shares=SHARES, start=st.integers(0, 10**9))
def test_a_schedule_counts_up_each_source_and_keeps_the_shares(shares: list[int], start: int) -> None:
    schedule = Schedule(shares)
    taken = schedule.before(start)
    assert sum(taken) == start
    for block in range(start, start + 300):
        source, rank = schedule.locate(block)
        assert rank == taken[source]
        taken[source] += 1
    exact = [Fraction((start + 300) * share, sum(shares)) for share in shares]
    assert all(abs(count - share) <= len(shares) / 2 for count, share in zip(taken, exact, strict=True))
