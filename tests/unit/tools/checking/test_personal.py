"""Secrets and personal data: found by their form and their check digits, and never shown."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hftune.secret_names import MARKS, SHAPES
from hftune.tools.checking.personal import (
    hidden,
    is_account_number,
    is_card_number,
    is_identity_number,
    personal_in,
    secrets_in,
    shown,
)

IDENTITY = "11010519491231002X"  # the example of GB 11643
CARD = "4111 1111 1111 1111"  # the test number that all shops know
IBAN = "GB82 WEST 1234 5698 7654 32"  # the example of ISO 13616


def found(text: str) -> list[tuple[str, str]]:
    return [(place.what, text[place.start : place.end]) for place in personal_in(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Mail me: jo.smith+x@mail.uni-bonn.de.", [("mail address", "jo.smith+x@mail.uni-bonn.de")]),
        ("jo@example.com or a@b.test, @someone, a@b", []),
        (f"身份证号{IDENTITY}，请保密", [("identity number", IDENTITY)]),
        ("id 110105194912310021", []),  # another check digit
        ("id 11010519491331002X", []),  # no 13th month
        (f"Card {CARD}.", [("card number", CARD)]),
        ("4111111111111112 and 1234567890123452", []),
        (f"To {IBAN}, please", [("account number", IBAN)]),
        ("GB82 WEST 1234 5698 7654 33", []),
        ("电话13800138000", [("telephone number", "13800138000")]),
        ("+86 138-0013-8000", [("telephone number", "+86 138-0013-8000")]),
        ("call (212) 555-0147 now", [("telephone number", "(212) 555-0147")]),
        ("+49 30 1234 5678", [("telephone number", "+49 30 1234 5678")]),
        ("2023-10-12, 3.14159265358979, 10 000 000, 192.168.100.200, 138001380001, x13800138000", []),
    ],
)
def test_personal_data(text: str, wanted: list[tuple[str, str]]) -> None:
    assert found(text) == wanted


def test_check_digits() -> None:
    assert is_identity_number(IDENTITY) and is_card_number("4111111111111111")
    assert is_card_number("378282246310005") and is_card_number("5555555555554444")
    assert is_account_number("DE89370400440532013000") and not is_account_number("DE89370400440532013001")
    # One digit that is wrong is found, wherever it is.
    for place in range(17):
        wrong = str((int(IDENTITY[place]) + 1) % 10)
        assert not is_identity_number(IDENTITY[:place] + wrong + IDENTITY[place + 1 :])
    for place in range(1, 16):
        assert not is_card_number("4111111111111111"[:place] + "2" + "4111111111111111"[place + 1 :])
    assert not is_identity_number("99010519491231002X"[:18])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("key hf_" + "aB3" * 10, "secret"),
        ("AKIA" + "A1B2C3D4E5F6G7H8", "secret"),
        ("Authorization: Bearer abcdef0123456789abcdef", "secret"),
        ("https://me:hunter22222@host/x", "password"),
    ],
)
def test_secrets(text: str, kind: str) -> None:
    (place,) = secrets_in(text)
    assert place.what == kind
    assert text[place.start : place.end] not in shown(text, place) and "***" in shown(text, place)
    assert hidden(f"a {text} b").endswith(" b") and text[place.start : place.end] not in hidden(text)


def test_every_form_of_a_token_holds_a_mark() -> None:
    """Marks are looked for first: a form without one would never be found."""
    rng = random.Random(1)
    examples = {
        "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----",
        *(f"{start}{''.join(rng.choices(string.ascii_letters + string.digits, k=60))}" for start in MARKS),
        *(f"gh{kind}_{'a1' * 20}" for kind in "opusr"),
        *(f"xox{kind}-{'a1' * 20}" for kind in "abeoprs"),
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc",
        "https://hooks.slack.com/services/T000/B000/XXXXXXXXXXXXXXXXXXXXXXXX",
        "https://discord.com/api/webhooks/123456789012345678/abcdefghijklmnop",
    }
    matched = [text for text in examples if SHAPES.search(text)]
    assert len(matched) >= 25
    assert all(any(mark in text for mark in MARKS) for text in matched)
    # Every alternative of the pattern begins with one, or holds it.
    for branch in SHAPES.pattern.split("|(?<![A-Za-z0-9])")[1:]:
        literal = branch.replace("\\", "").replace("(?:", "(")
        assert any(mark[:2] in literal or mark[0] in literal for mark in MARKS), branch


@given(st.text(alphabet=string.ascii_letters + string.digits + " @.-+:/_=", max_size=200))
def test_hiding_leaves_the_rest_as_it_is(text: str) -> None:
    taken = sorted({*secrets_in(text), *personal_in(text)}, key=lambda place: place.start)
    if not taken:
        assert hidden(text) == text
    for place in taken:
        assert text[place.start : place.end] not in hidden(text)


def test_what_is_shown_is_little() -> None:
    for text in (f"x {CARD}", "jo@uni-bonn.de", IDENTITY, "13800138000"):
        for place in personal_in(text):
            secret = text[place.start : place.end]
            said = shown(text, place)
            assert all(secret[at : at + 3] not in said for at in range(len(secret) - 2))
