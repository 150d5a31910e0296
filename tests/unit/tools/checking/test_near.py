"""Equal and nearly equal records, by numbers; and records of evaluation data that stand in others."""

from __future__ import annotations

import random

import numpy as np

from hftune.tools.checking import compare as near
from hftune.tools.checking.compare import LeakIndex, find_twins, shingles_of, signature_of
from hftune.tools.checking.records import Record
from tests.unit.tools.checking import made


def twins_of(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of texts, as of records: twins and similarities."""
    shingles = [shingles_of(text) for text in texts]
    exact = np.array([hash(text) % 2**63 for text in texts], np.uint64)
    signatures = np.array([signature_of(one) for one in shingles], np.uint32).reshape(
        len(texts), near.BANDS * near.ROWS
    )
    return find_twins(exact, np.array([len(one) for one in shingles], np.uint32), signatures)


def test_words_are_told_apart_as_they_should() -> None:
    def of(text: str) -> list[int]:
        return shingles_of(text).tolist()

    assert of("a b c d") == of("A, b; (c) D!") == sorted({*of("a b c"), *of("b c d")})
    assert of("ａ Ｂ ｃ") == of("a b c")  # full-width letters
    assert of("天地玄") == of("天 地，玄") and len(of("天地玄黄")) == 2
    assert len({*of("a b c"), *of("c b a"), *of("a b d"), *of("ab c d"), *of("天地玄")}) == 5
    assert of("") == of("a b") == [] and of("b a c a b a c") == sorted({*of("b a c a b a c")})
    assert of("a \ud83d b c") == of("a b c"), "half a character"


def test_edited_records_are_found_and_others_are_not() -> None:
    rng = random.Random(7)
    originals = [made.sentence(rng, rng.randrange(80, 160), chinese=bool(number % 3 == 0)) for number in range(150)]
    copies = [(number, how) for number in range(0, 120, 2) for how in made.EDITS]
    # Chinese has no case: that copy would be equal.
    copies = [(number, how) for number, how in copies if how != "case" or originals[number].isascii()]
    texts = [*originals, *(made.edited(rng, originals[number], how, one_in=50) for number, how in copies)]
    twins, similarity = twins_of(texts)
    assert (twins[: len(originals)] == -1).all()
    twin = twins[len(originals) :]
    missed = [copy for copy, one in zip(copies, twin.tolist(), strict=True) if one == -1]
    assert len(missed) <= 0.05 * len(copies), missed
    # A copy's twin is its original, or an earlier copy of it.
    sources = [number for number, _ in copies]
    for (number, _), one in zip(copies, twin.tolist(), strict=True):
        assert one in (-1, number) or sources[one - len(originals)] == number
    assert (similarity[len(originals) :][twin >= 0] >= near.SIMILAR).all()
    assert (similarity[: len(originals)] == 0).all()


def test_equal_records_have_the_first_one_as_their_twin() -> None:
    rng = random.Random(8)
    one, other = made.sentence(rng, 30), made.sentence(rng, 30)
    twins, similarity = twins_of([one, other, one, one, other, "", "a b"])
    assert twins.tolist() == [-1, -1, 0, 0, 1, -1, -1] and similarity.tolist() == [0, 0, 1, 1, 1, 0, 0]


def test_of_records_that_are_all_alike_the_first_stays() -> None:
    base = made.sentence(random.Random(9), 60)
    twins, _ = twins_of([f"{base} {number}" for number in range(400)])
    assert twins[0] == -1 and (twins[1:] == 0).all()


def test_short_texts_are_alike_by_chance_and_are_not_compared() -> None:
    texts = ["yes it is", "yes, it is!", "no it is not there", "no it is not there!"]
    assert (twins_of(texts)[0] == -1).all()


# --- evaluation data ---


def spoken(asked: str, said: str) -> Record:
    return Record("conversation", [("system", "You help."), ("user", asked), ("assistant", said)])


def leaks(evaluation: list[Record], texts: list[str]) -> list[tuple[int, str]]:
    """Number of a text, and which text of the evaluation data stands in it."""
    index = LeakIndex((f"e:{number}", record) for number, record in enumerate(evaluation, start=1))
    found = [(number, index.leak(shingles_of(text))) for number, text in enumerate(texts)]
    return [(number, said.split(" stands in it")[0]) for number, said in found if said]


def test_a_record_of_the_evaluation_data_is_found_in_longer_ones() -> None:
    rng = random.Random(10)
    evaluation = [spoken(made.sentence(rng, 20), made.sentence(rng, 40)) for _ in range(40)]
    others = [made.sentence(rng, rng.randrange(20, 400)) for _ in range(100)]
    assert leaks(evaluation, others) == []
    for how in made.EDITS:
        hidden = [
            f"{made.sentence(rng, 200)} {made.edited(rng, one.compared, how)} {made.sentence(rng, 100)}"
            for one in evaluation
        ]
        found = leaks(evaluation, [*others, *hidden])
        right = {(number + 100, f"e:{number + 1}") for number in range(40)}
        assert len({(record, said.split()[-1]) for record, said in found} & right) >= 38, how
        assert {record for record, _ in found} <= {*range(100, 140)}, how


def test_a_question_with_another_answer_is_a_leak() -> None:
    rng = random.Random(11)
    evaluation = [spoken(made.sentence(rng, 20), made.sentence(rng, 100)) for _ in range(5)]
    found = leaks(evaluation, [f"{evaluation[3].asked} {made.sentence(rng, 100)}"])
    assert found == [(0, "the question of e:4")]


def test_phrases_and_short_texts_are_no_leaks() -> None:
    rng = random.Random(12)
    phrase = "answer the following question with one of the letters below"
    evaluation = [spoken(f"{phrase} {made.sentence(rng, 12)}", "A") for _ in range(60)]
    evaluation.append(spoken("who are you", "I am"))
    # What sixty records begin with tells none of them.
    assert leaks(evaluation, [f"{phrase} {made.sentence(rng, 12)}", "tell me who they are and who you know"]) == []
    assert leaks([], ["a b c d e"]) == [] and leaks([spoken("a", "b")], ["a b c d"]) == []
