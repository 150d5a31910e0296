"""Merges by hand, and the quick learner against one that counts everything anew."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hftune.tools.vocabulary.bpe import apply_merges, join_pair, learn_merges, merges_for


def test_merges_by_hand() -> None:
    # ab: 3 + 2 = 5, bc: 3, bd: 2. Then (ab, c): 3, (ab, d): 2.
    words = Counter({("a", "b", "c"): 3, ("a", "b", "d"): 2})
    assert learn_merges(words, 3, lambda _: True) == [("a", "b"), ("ab", "c"), ("ab", "d")]
    assert learn_merges(words, 3, lambda _: True, min_frequency=3) == [("a", "b"), ("ab", "c")]
    # What may not be a token is passed over: then bc comes first.
    assert learn_merges(words, 1, lambda spelling: spelling != "ab") == [("b", "c")]


def test_pairs_are_joined_from_the_left() -> None:
    assert join_pair("aaa", ("a", "a")) == ["aa", "a"]
    assert join_pair("abab", ("a", "b")) == ["ab", "ab"]
    assert join_pair(["aa", "a", "a"], ("aa", "a")) == ["aaa", "a"]


def test_a_word_is_joined_by_what_there_is_first() -> None:
    assert merges_for("abcd", {"cd"}.__contains__) == [("c", "d"), ("a", "b"), ("ab", "cd")]
    assert merges_for("a", lambda _: True) == []


def slow_merges(words: Counter, count: int, allowed, least: int) -> list[tuple[str, str]]:
    now = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter = Counter()
        for word, times in words.items():
            for pair in pairwise(now[word]):
                pairs[pair] += times
        fit = [(-times, pair) for pair, times in pairs.items() if times >= least and allowed("".join(pair))]
        if not fit:
            break
        merges.append(min(fit)[1])
        now = {word: join_pair(tokens, merges[-1]) for word, tokens in now.items()}
    return merges


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9).map(tuple), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_it_learns_what_counting_anew_gives(words: dict, least: int) -> None:
    def allowed(spelling: str) -> bool:
        return len(spelling) <= 4 and spelling != "ab"

    expected = slow_merges(Counter(words), 10, allowed, least)
    merges = learn_merges(Counter(words), 10, allowed, least)
    assert merges == expected
    # Applied by rank they give the words that were counted.
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for word in words:
        tokens = list(word)
        for pair in merges:
            tokens = join_pair(tokens, pair)
        assert apply_merges(word, ranks) == tokens
