"""Words, shingles and signatures, against the same made by plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hftune.tools.checking import shingles
from hftune.tools.checking.languages import language_of
from hftune.tools.checking.shingles import hash_of_word, shingles_of, signatures_of
from tests.unit.tools.checking import made

LATIN, HAN = "abcdefgh", "天地玄黄"


def words_of(text: str) -> list[str]:
    """The words of a text of the letters above, by hand."""
    found, word = [], ""
    for sign in [*text.lower(), " "]:
        if sign in LATIN:
            word += sign
            continue
        found += [word] if word else []
        word = ""
        found += [sign] if sign in HAN else []
    return found


def hashes(words: list[str]) -> list[int]:
    return [hash_of_word(word) for word in words]


@given(st.lists(st.text(alphabet="abcdeABC天地 ,。\n\U0001f600", max_size=30), max_size=8))
def test_words_and_shingles_are_those_of_a_plain_loop(texts: list[str]) -> None:
    found = shingles_of(texts)
    for number, text in enumerate(texts):
        words = words_of(text)
        first, last = found.word_bounds[number : number + 2]
        assert found.words[first:last].tolist() == hashes(words)
        first, last = found.bounds[number : number + 2]
        assert last - first == max(0, len(words) - 2)
        # A text alone has the shingles that it has among others.
        assert found.hashes[first:last].tolist() == shingles_of([text]).hashes.tolist()


def test_shingles_are_told_apart_by_words_and_their_order() -> None:
    def of(text: str) -> list[int]:
        return shingles_of([text]).hashes.tolist()

    assert of("a b c d") == of("A, b; (c) D!") == [*of("a b c"), *of("b c d")]
    assert of("ａ Ｂ ｃ") == of("a b c")  # full-width letters
    assert len({*of("a b c"), *of("c b a"), *of("a b d"), *of("ab c d"), *of("天地玄")}) == 5
    assert shingles_of(["b a c a b a c"]).of(0).tolist() == sorted({*of("b a c a b a c")})
    # Letters beyond those that are told apart by their place still count by their number.
    assert hash_of_word("a" * 70) != hash_of_word("a" * 71)
    assert hash_of_word("ab") != hash_of_word("ba")


def test_many_texts_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    texts = [made.sentence(rng, rng.randrange(0, 60), chinese=bool(number % 2)) for number in range(40)]
    whole = shingles_of(texts)
    monkeypatch.setattr(shingles, "_CHARACTERS", 50)
    monkeypatch.setattr(shingles, "_SHINGLES", 7)
    parts = shingles_of(texts)
    for name in ("words", "word_bounds", "hashes", "bounds"):
        assert (getattr(whole, name) == getattr(parts, name)).all(), name
    small = signatures_of(parts)
    monkeypatch.undo()
    assert (small == signatures_of(whole)).all()


def test_a_signature_has_the_least_of_each_permutation() -> None:
    found = shingles_of(["a b c d e f", "", "a b c d e f"])
    signatures = signatures_of(found)
    assert signatures.shape == (3, 128) and (signatures[0] == signatures[2]).all()
    assert (signatures[1] == 0xFFFFFFFF).all()
    for place in (0, 77):
        times, plus = int(shingles._TIMES[place]), int(shingles._PLUS[place])
        assert signatures[0, place] == min((one * times + plus) % 2**32 for one in found.of(0).tolist())
    # A permutation: no two hashes become one.
    assert times % 2 == 1


def test_signatures_estimate_the_similarity_of_sets() -> None:
    rng = random.Random(5)
    words = [f"w{number}" for number in range(4000)]
    errors = []
    for shared in (0, 100, 300, 500, 700, 900):
        common, left, right = (rng.sample(words, count) for count in (shared, 1000 - shared, 1000 - shared))
        texts = [" ".join([*common, *left]), " ".join([*common, *right])]
        found = shingles_of(texts)
        one, other = ({*found.of(number).tolist()} for number in (0, 1))
        signatures = signatures_of(found)
        errors.append((signatures[0] == signatures[1]).mean() - len(one & other) / len(one | other))
    # The standard deviation of 128 numbers is 0.044 at most.
    assert np.abs(errors).max() < 0.15 and abs(np.mean(errors)) < 0.06


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the roof, and it is not happy with that.", "en"),
        ("Der Hund ist nicht in dem Haus, und das ist auch gut so.", "de"),
        ("Le chat est sur le toit et il n'est pas content dans la nuit.", "fr"),
        ("El perro está en la casa y no es muy grande para su edad.", "es"),
        ("Он не знает, что это такое, и как с этим быть.", "ru"),
        ("今天天气很好，我们去公园。", "zh"),
        ("今日は天気がいいので公園に行きます。", "ja"),
        ("오늘 날씨가 좋아서 공원에 갑니다.", "ko"),
        ("الطقس جميل اليوم", "ar"),
        ("def f(x): return x", "other"),
        ("12345 +++", "other"),
        ("", "other"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text, shingles_of([text]).words) == language
