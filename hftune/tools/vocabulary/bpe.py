"""Byte-pair encoding that continues from a tokenizer's merges (arXiv:1508.07909): new ones rank below its own.

New merges rank below all old ones, and no old merge takes a new token. So any text is first tokenised as before, and
then new merges join neighbours: where none applies, nothing changes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

Merge = tuple[str, str]
Word = tuple[str, ...]


def learn_merges(
    words: Counter[Word], count: int, allowed: Callable[[str], bool], min_frequency: int = 2
) -> list[Merge]:
    """The `count` most frequent merges, each found after those before it have been applied.

    Args:
        words: What no merge crosses, as the tokens that a tokenizer makes of it, and how often it occurs.
        allowed: Whether the spelling of two tokens together may become a token.
        min_frequency: A pair that is rarer is not merged.
    """
    learner = _Learner(words, allowed)
    merges: list[Merge] = []
    while len(merges) < count:
        pair = learner.most_frequent(min_frequency)
        if pair is None:
            break
        merges.append(pair)
        learner.merge(pair)
    return merges


class _Learner:
    """The words as tokens, how often each pair of neighbours occurs, and which words may have it."""

    def __init__(self, words: Counter[Word], allowed: Callable[[str], bool]) -> None:
        self.words = [list(word) for word in words]
        self.times = list(words.values())
        self.allowed = allowed
        self.counts: Counter[Merge] = Counter()
        self.places: dict[Merge, set[int]] = defaultdict(set)
        for number, word in enumerate(self.words):
            for pair in itertools.pairwise(word):
                self.counts[pair] += self.times[number]
                self.places[pair].add(number)
        # Entries stay as they are: a pair is pushed again with each new count, and stale entries are skipped when
        # popped.
        self.heap = [(-times, pair) for pair, times in self.counts.items()]
        heapq.heapify(self.heap)

    def most_frequent(self, least: int) -> Merge | None:
        """The most frequent pair that may be merged; of equals the first in the order of spelling; None for none."""
        while self.heap:
            times, pair = heapq.heappop(self.heap)
            current = self.counts.get(pair, 0)
            if current < least or current != -times:
                continue  # rarer by now: it was pushed again with its new count
            # Looked at only now: most pairs never come this far.
            if self.allowed(pair[0] + pair[1]):
                return pair
        return None

    def merge(self, pair: Merge) -> None:
        """Join the pair in all words; only pairs next to it are counted anew."""
        changed: Counter[Merge] = Counter()
        # May name words that have lost the pair since; joining it there changes nothing.
        for number in self.places.pop(pair):
            self.words[number], differences = _join_and_count(self.words[number], pair)
            times = self.times[number]
            for neighbours, difference in differences:
                changed[neighbours] += difference * times
                if difference > 0:
                    self.places[neighbours].add(number)
        # Once a pair, after all words: a push for each word would fill the heap with stale entries.
        for neighbours, difference in changed.items():
            if difference and neighbours != pair:
                self.counts[neighbours] += difference
                heapq.heappush(self.heap, (-self.counts[neighbours], neighbours))
        self.counts.pop(pair, None)


def _join_and_count(word: list[str], pair: Merge) -> tuple[list[str], list[tuple[Merge, int]]]:
    """The word with the pair joined, and which neighbouring pairs went (-1) and came (+1), without the pair itself."""
    left, right = pair
    whole = left + right
    joined: list[str] = []
    differences: list[tuple[Merge, int]] = []
    position, just_joined = 0, False
    while position < len(word):
        if word[position] != left or word[position + 1 : position + 2] != [right]:
            joined.append(word[position])
            position, just_joined = position + 1, False
            continue
        if just_joined:
            # Two in a row: what was counted as behind the first, its neighbour's left half, is whole now.
            differences += [((whole, left), -1), ((whole, whole), 1)]
        elif joined:
            differences += [((joined[-1], left), -1), ((joined[-1], whole), 1)]
        joined.append(whole)
        position, just_joined = position + 2, True
        if position < len(word):
            differences += [((right, word[position]), -1), ((whole, word[position]), 1)]
    return joined, differences


def join_pair(word: Iterable[str], pair: Merge) -> list[str]:
    """A word with each occurrence of the pair, from the left, as one token."""
    joined: list[str] = []
    for token in word:
        # A token that was joined just now is not the left half of the next: "a a a" gives "aa a".
        if joined and joined[-1] == pair[0] and token == pair[1]:
            joined[-1] = pair[0] + pair[1]
        else:
            joined.append(token)
    return joined


def apply_merges(word: Iterable[str], ranks: dict[Merge, int]) -> list[str]:
    """The tokens of a word after all merges, the lowest rank first."""
    tokens = list(word)
    while len(tokens) > 1:
        pairs = set(itertools.pairwise(tokens))
        # A pair without a rank comes last: if it is the best, no merge applies.
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        tokens = join_pair(tokens, best)
    return tokens


def merges_for(word: Iterable[str], whole: Callable[[str], bool]) -> list[Merge]:
    """Merges that join a word into one token: pairs whose spelling is `whole` first, else from the left."""
    tokens, merges = list(word), []
    while len(tokens) > 1:
        pairs = list(itertools.pairwise(tokens))
        pair = next((one for one in pairs if whole(one[0] + one[1])), pairs[0])
        merges.append(pair)
        tokens = join_pair(tokens, pair)
    return merges
