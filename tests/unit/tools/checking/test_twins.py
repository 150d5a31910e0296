"""Equal and nearly equal records, and those judged both ways, by the numbers of the store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hftune.tools.checking import twins
from hftune.tools.checking.leaks import Sketches
from hftune.tools.checking.records import Record
from hftune.tools.checking.shingles import shingles_of, signatures_of
from hftune.tools.checking.store import ABOUT, BYTES, Store
from hftune.tools.checking.twins import NONE, contradictions, find_twins
from tests.unit.tools.checking import made


def stored(folder: Path, texts: list[str], part: int = 7, **columns: list[int]) -> Store:
    """A store of texts, appended part by part."""
    folder.mkdir()
    store = Store(folder)
    for start in range(0, len(texts), part):
        found = shingles_of(texts[start : start + part])
        about = np.zeros(len(found.bounds) - 1, ABOUT)
        about["shingles"] = np.diff(found.bounds)
        about["exact"] = [hash(text) % 2**63 for text in texts[start : start + part]]
        for name, values in columns.items():
            about[name] = values[start : start + part]
        store.add(about, signatures_of(found))
    store.finish()
    return store


def test_edited_records_are_found_and_others_are_not(tmp_path: Path) -> None:
    rng = random.Random(7)
    originals = [made.sentence(rng, rng.randrange(80, 160), chinese=bool(number % 3 == 0)) for number in range(150)]
    copies = [(number, how) for number in range(0, 120, 2) for how in made.EDITS]
    # Chinese has no case: that copy would be equal.
    copies = [(number, how) for number, how in copies if how != "case" or originals[number].isascii()]
    texts = [*originals, *(made.edited(rng, originals[number], how, one_in=50) for number, how in copies)]
    found = find_twins(stored(tmp_path / "s", texts))
    assert (found.near[: len(originals)] == NONE).all() and (found.equal == NONE).all()
    twin = found.near[len(originals) :]
    missed = [copy for copy, one in zip(copies, twin.tolist(), strict=True) if one == NONE]
    assert len(missed) <= 0.05 * len(copies), missed
    # A copy's twin is its original, or an earlier copy of it.
    sources = [number for number, _ in copies]
    for (number, _), one in zip(copies, twin.tolist(), strict=True):
        assert one in (NONE, number) or sources[one - len(originals)] == number
    assert (found.similarity[len(originals) :][twin != NONE] >= twins.SIMILAR).all()
    assert (found.similarity[: len(originals)] == 0).all()


@pytest.mark.parametrize("words", [15, 40, 200])
def test_an_instruction_that_all_records_share_makes_none_alike(tmp_path: Path, words: int) -> None:
    """Different reviews behind one instruction, and answers of one word, are different; edited ones are found."""
    rng = random.Random(words)
    asked = made.sentence(rng, words)
    reviews = [f"{made.sentence(rng, rng.randrange(15, 60))}" for _ in range(1000)]
    copied = [review for review in reviews if len(review.split()) > 40][:100]
    copies = [made.edited(rng, review, "words", one_in=60) for review in copied]
    found = find_twins(stored(tmp_path / "s", [f"{asked} {text} positive" for text in (*reviews, *copies)], 300))
    assert (found.near[:1000] == NONE).all()
    right = [reviews.index(review) == one for review, one in zip(copied, found.near[1000:].tolist(), strict=True)]
    # Behind 200 words few numbers of a signature are left.
    assert sum(right) >= {15: 95, 40: 90, 200: 60}[words]


def test_equal_records_have_the_first_one_as_their_twin(tmp_path: Path) -> None:
    rng = random.Random(8)
    one, other = made.sentence(rng, 30), made.sentence(rng, 30)
    found = find_twins(stored(tmp_path / "s", [one, other, one, one, other, "", "a b"]))
    assert found.equal.tolist() == [NONE, NONE, 0, 0, 1, NONE, NONE]
    assert (found.near == NONE).all()


@pytest.mark.parametrize("count", [0, 1])
def test_next_to_no_records(tmp_path: Path, count: int) -> None:
    store = stored(tmp_path / "s", ["one two three four five six seven eight"] * count)
    found = find_twins(store)
    assert len(found.equal) == len(found.near) == count and (found.near == NONE).all()
    assert list(contradictions(store)) == []


def test_records_that_are_all_alike_cost_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them stays, and pairs that are compared grow with the records, not with their square."""
    rng = random.Random(9)
    base = made.sentence(rng, 60)
    compared, agreement = {}, twins._agreement
    for count in (100, 400):
        pairs = []

        def counted(*given: Any, pairs: list[int] = pairs) -> np.ndarray:
            pairs.append(len(given[-1]))
            return agreement(*given)

        monkeypatch.setattr(twins, "_agreement", counted)
        monkeypatch.setattr(twins, "SHARED", 1.0)
        texts = [f"{base} {number}" for number in range(count)]
        found = find_twins(stored(tmp_path / f"s{count}", texts))
        monkeypatch.undo()
        assert found.near[0] == NONE and (found.near[1:] == 0).all()
        compared[count] = sum(pairs)
    assert compared[400] <= 5 * compared[100]


def test_short_texts_are_alike_by_chance_and_are_not_compared(tmp_path: Path) -> None:
    texts = ["yes it is", "yes, it is!", "no it is not there", "no it is not there!"]
    assert (find_twins(stored(tmp_path / "s", texts)).near == NONE).all()


def test_judged_both_ways(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(7)]
    store = stored(tmp_path / "s", texts, judged=[5, 0, 5, 6, 5, 6, 0], verdict=[1, 1, -1, 1, 1, 1, -1])
    assert sorted(contradictions(store)) == [(0, 2), (2, 0), (4, 2)]


def test_bytes_of_a_record(tmp_path: Path) -> None:
    """What the page says of the disk is what is there."""
    stored(tmp_path / "s", [f"a b c d {number}" for number in range(50)])
    assert sum(file.stat().st_size for file in (tmp_path / "s").iterdir()) == 50 * BYTES


# --- evaluation data ---


def spoken(asked: str, said: str) -> Record:
    return Record("conversation", [("system", "You help."), ("user", asked), ("assistant", said)])


def leaks(evaluation: list[Record], texts: list[str]) -> list[tuple[int, str, str]]:
    sketches = Sketches()
    sketches.add([f"e:{number}" for number in range(1, len(evaluation) + 1)], evaluation)
    return [(leak.record, leak.origin, leak.what) for leak in sketches.index().leaks(shingles_of(texts))]


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
        assert len({(record, origin) for record, origin, _ in found} & right) >= 38, how
        assert {record for record, _, _ in found} <= {*range(100, 140)}, how


def test_a_question_with_another_answer_is_a_leak() -> None:
    rng = random.Random(11)
    evaluation = [spoken(made.sentence(rng, 20), made.sentence(rng, 100)) for _ in range(5)]
    found = leaks(evaluation, [f"{evaluation[3].asked} {made.sentence(rng, 100)}"])
    assert found == [(0, "e:4", "the question")]


def test_phrases_and_short_texts_are_no_leaks() -> None:
    rng = random.Random(12)
    phrase = "answer the following question with one of the letters below"
    evaluation = [spoken(f"{phrase} {made.sentence(rng, 12)}", "A") for _ in range(60)]
    evaluation.append(spoken("who are you", "I am"))
    # What sixty records begin with tells none of them.
    assert leaks(evaluation, [f"{phrase} {made.sentence(rng, 12)}", "tell me who they are and who you know"]) == []
    assert leaks([], ["a b c d e"]) == [] and leaks([spoken("a", "b")], ["a b c d"]) == []
