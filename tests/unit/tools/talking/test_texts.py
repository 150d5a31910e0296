"""Text of tokens as they come, up to a stop: put together it is the whole."""

from __future__ import annotations

import random

from hftune.tools.talking.texts import StopFinder, TokenText
from tests.conftest import tiny_tokenizer


def test_pieces_make_the_text_of_all_tokens() -> None:
    tokenizer = tiny_tokenizer()
    text = "What is 2 plus 3? 你好, 世界! \U0001f600 naïve<|im_start|>end"
    ids = tokenizer(text).input_ids
    take = TokenText(tokenizer)
    pieces = [take(token) for token in ids]
    assert "".join(pieces) + take.rest() == text
    assert all("\ufffd" not in piece for piece in pieces) and pieces.count("") >= 8, "bytes wait for their character"
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    take = TokenText(tokenizer, {start})
    assert "".join(map(take, ids)) + take.rest() == text.replace("<|im_start|>", "")


def test_half_a_character_at_the_end_is_left_out() -> None:
    tokenizer = tiny_tokenizer()
    take = TokenText(tokenizer)
    ids = tokenizer("a你").input_ids
    assert "".join(take(token) for token in ids[:-1]) + take.rest() == "a"


def test_a_text_ends_at_the_first_stop() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices("ab", k=12))
        stops = tuple("".join(draw.choices("ab", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 3)))
        found, passed, rest = StopFinder(stops), "", text
        while rest:
            size = draw.randint(1, 3)
            piece, rest = rest[:size], rest[size:]
            passed += found(piece)
            # Nothing that was passed on is a part of a stop, and no more than needed is held back.
            assert found.found or len(found.held) < max(map(len, stops), default=1)
        passed += found.rest()
        places = [text.find(stop) for stop in stops if stop in text]
        # A piece may hold two of them; one that ended in an earlier piece counts first, as the text went no further.
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        assert found.found == bool(places)
        assert (passed in {text[:place] for place in places}) if places else passed == text
        if places and len({*ends}) == 1:
            assert passed == text[: min(places)]
