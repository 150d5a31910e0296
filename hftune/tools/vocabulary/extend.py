"""New tokens for an existing tokenizer, from a corpus or from another vocabulary, every old id kept.

They become part of the tokenizer's own model (merges or pieces), not tokens next to it: those would be cut out of a
text before it is split into words, wherever their letters occur, and a byte-level decoder would write some wrongly.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.trainers import UnigramTrainer
from transformers import PreTrainedTokenizerBase

from hftune.logging import notice
from hftune.tools.vocabulary.bpe import Merge, apply_merges, learn_merges, merges_for
from hftune.tools.vocabulary.kinds import SPACE, Kind, kind_of
from hftune.tools.vocabulary.model_file import all_halves


def extend_from_corpus(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    count: int,
    *,
    min_frequency: int = 2,
    max_length: int = 16,
) -> dict[str, Any]:
    """The `tokenizer.json` with up to `count` tokens more, those that shorten the texts most.

    Args:
        tokenizer: Byte-level BPE, BPE with byte fallback, or Unigram.
        min_frequency: How often a new token occurs at least.
        max_length: Characters of a new token at most.
    """
    kind = kind_of(tokenizer)
    words = Counter(word for text in texts for word in kind.words(text))
    if kind.name == "unigram":
        return _with_pieces(kind, _domain_pieces(words, count, max_length), count)
    growing = _Growing(kind, count)
    # Before the corpus is tokenised: merges build on letters, and an unknown one would be lost there.
    growing.add_letters(kind.alphabet(words.elements()))
    tokens: Counter[tuple[str, ...]] = Counter()
    backend = growing.backend()
    for word, times in words.items():
        # By the model alone: `words` are normalised and split already.
        tokens[tuple(token.value for token in backend.model.tokenize(word))] += times

    def allowed(spelling: str) -> bool:
        fits = spelling not in growing.vocabulary and kind.characters(spelling) <= max_length
        return fits and kind.may_be_token(spelling)

    for pair in learn_merges(tokens, growing.left, allowed, min_frequency):
        growing.add_merge(pair)
    return growing.finished()


def extend_from_tokens(tokenizer: PreTrainedTokenizerBase, domain: list[str], count: int) -> dict[str, Any]:
    """The `tokenizer.json` with up to `count` tokens more, for the texts `domain` in their order.

    A token that the tokenizer has, or that it would split before its model sees it, is passed over, and counted. What a
    word needs on its way (the bytes of its characters joined one by one) are tokens as well.
    """
    kind = kind_of(tokenizer)
    if kind.name == "unigram":
        return _with_pieces(kind, [(text.replace(" ", SPACE), 0.0) for text in domain], count)
    spelt = [_spelling(kind, text) for text in domain]
    wanted = list(dict.fromkeys(word for word in spelt if word is not None))
    growing = _Growing(kind, count)
    if kind.name == "byte_bpe":
        growing.add_letters(kind.alphabet(()))
    # A merge on the way to one wanted word may be another wanted word: those are preferred.
    known = frozenset(wanted)
    taken = sum(growing.add_word(word, known.__contains__) for word in wanted)
    passed = len(domain) - len(wanted)
    notice(f"merge: {taken} of {len(domain)} tokens are new; {passed} are several words to the tokenizer or no text")
    return growing.finished()


def _spelling(kind: Kind, text: str) -> str | None:
    """How the vocabulary spells a text that is one word to the tokenizer; None where it is several, or none."""
    if kind.name == "bpe":
        # Its normaliser puts a space in front of a text; a piece may stand within a word.
        words = [text.replace(" ", SPACE)]
    else:
        words = list(kind.words(text))
    return words[0] if len(words) == 1 and kind.may_be_token(words[0]) else None


class _Growing:
    """A BPE `tokenizer.json` to which letters and merges are added while ids are left."""

    def __init__(self, kind: Kind, count: int) -> None:
        self.kind, self.left = kind, count
        # `kind` is still asked for the old tokens after this one has grown.
        self.content = copy.deepcopy(kind.content)
        self.vocabulary: dict[str, int] = self.content["model"]["vocab"]
        _pin_added_tokens(self.content)
        self.first_new = self.next_id = max(self.vocabulary.values()) + 1
        self.ranks: dict[Merge, int] = {}

    def add_letters(self, letters: list[str]) -> None:
        """Add letters that the vocabulary lacks, in order, while there is room."""
        lacking = [letter for letter in letters if letter not in self.vocabulary]
        for letter in lacking[: self.left]:
            self._add(letter)
        if lacking and self.kind.name == "byte_bpe":
            notice(f"the tokenizer lacked {len(lacking)} bytes of UTF-8, whose text it dropped; they are among the new")

    def add_merge(self, pair: Merge) -> None:
        """Add a merge, and its token unless the vocabulary has it."""
        self.content["model"]["merges"].append(list(pair))
        self.ranks[pair] = len(self.ranks)
        if pair[0] + pair[1] not in self.vocabulary:
            self._add(pair[0] + pair[1])

    def add_word(self, word: str, wanted: Callable[[str], bool]) -> bool:
        """Add merges that make one token of a word; False where it is one already, or no room is left."""
        letters = [letter for letter in word if letter not in self.vocabulary]
        if self.kind.name == "byte_bpe":
            tokens = [token.value for token in self.kind.backend.model.tokenize(word)]
        else:
            tokens = self._tokens_of_characters(word)

        def whole(spelling: str) -> bool:
            return spelling in self.vocabulary or wanted(spelling) or self.kind.may_be_token(spelling)

        # Merges of earlier words apply to this one as they will when text is tokenised.
        merges = merges_for(apply_merges(tokens, self.ranks), whole)
        new = {*letters, *("".join(pair) for pair in merges)} - set(self.vocabulary)
        # A word whose last merge has no room would leave halves that nothing uses.
        if not (merges or letters) or word in self.vocabulary or len(new) > self.left:
            return False
        for letter in dict.fromkeys(letters):
            self._add(letter)
        for pair in merges:
            self.add_merge(pair)
        return True

    def _tokens_of_characters(self, word: str) -> list[str]:
        """Tokens of a word in which characters that the vocabulary lacks stand for themselves, not for their bytes."""
        tokens: list[str] = []
        run = ""
        for letter in [*word, ""]:
            if letter and letter in self.kind.model["vocab"]:
                run += letter
                continue
            tokens += [token.value for token in self.kind.backend.model.tokenize(run)] if run else []
            tokens += [letter] if letter else []
            run = ""
        return tokens

    def finished(self) -> dict[str, Any]:
        """The `tokenizer.json` with all that was added."""
        if self.kind.name == "bpe":
            all_halves(self.content, self.first_new, len(self.kind.model["merges"]))
        return self.content

    def backend(self) -> Tokenizer:
        """The tokenizer with what has been added so far."""
        return Tokenizer.from_str(json.dumps(self.content))

    def _add(self, token: str) -> None:
        assert self.left > 0, "there is no room for another token"
        self.vocabulary[token] = self.next_id
        self.next_id, self.left = self.next_id + 1, self.left - 1


def _pin_added_tokens(content: dict[str, Any]) -> None:
    """Give added tokens their ids in the model's vocabulary, too.

    Those that are not in it get the ids behind it when a tokenizer is read (tokenizers 0.23), so they would move up as
    it grows. No merge makes them, so the model never does.
    """
    vocabulary = content["model"]["vocab"]
    for token in content["added_tokens"]:
        vocabulary.setdefault(token["content"], token["id"])


# --- Unigram ------------------------------------------------------------------------------------------------------


def _domain_pieces(words: Counter[str], count: int, max_length: int) -> list[tuple[str, float]]:
    """Pieces of a Unigram model trained on the words, with log-probabilities, the most likely first."""
    # Twice as many as wanted, and some: pieces that the tokenizer has already are passed over later.
    trainer = UnigramTrainer(
        vocab_size=2 * count + 2000, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>",
        max_piece_length=max_length,
    )  # fmt: skip
    domain = Tokenizer(Unigram())
    domain.train_from_iterator(words.elements(), trainer)
    pieces = json.loads(domain.to_str())["model"]["vocab"]
    return sorted(((piece, score) for piece, score in pieces if piece != "<unk>"), key=lambda one: (-one[1], one[0]))


def _with_pieces(kind: Kind, pieces: list[tuple[str, float]], count: int) -> dict[str, Any]:
    """A Unigram `tokenizer.json` with more pieces. A text without them has the same paths with the same scores.

    A piece that saves tokens must win over the pieces that spelt it: it scores a little more than they do together,
    where the domain does not say more than that.
    """
    content = copy.deepcopy(kind.content)
    table: list[list[Any]] = content["model"]["vocab"]
    known = {piece: score for piece, score in table}
    # SentencePiece's penalty of an unknown character: 10 below the least likely piece.
    unknown = min(known.values()) - 10.0
    behind = [token for token in content["added_tokens"] if token["id"] >= len(table)]
    for token in sorted(behind, key=lambda token: token["id"]):
        # A piece's id is its place. What stood behind the pieces keeps its id as one that no text reaches.
        assert token["id"] == len(table), "added tokens have holes between their ids"
        table.append([token["content"], unknown - 1e4])
    left = count
    for piece, score in pieces:
        if left == 0:
            break
        if piece in known or not kind.may_be_token(piece):
            continue
        parts = [token.value for token in kind.backend.model.tokenize(piece)]
        table.append([piece, max(score, sum(known.get(part, unknown) for part in parts) + 1e-3)])
        left -= 1
    return content
