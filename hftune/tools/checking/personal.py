"""Secrets and personal data in texts: where they stand, and how they may be shown.

Numbers count only with their check digits. No pattern repeats without a bound, and where one may begin is looked for
first: a text made for it would else cost its length squared.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

from hftune.secret_names import BEARER, IN_URL, MARKS, MASK, SHAPES


class Place(NamedTuple):
    """What stands where in a text."""

    what: str
    start: int
    end: int


# Behind an @: a domain of some labels. What stands before it is looked for backwards, from there.
_DOMAIN = re.compile(r"@((?:[A-Za-z0-9-]{1,63}\.){1,5}[A-Za-z]{2,24})(?![A-Za-z0-9-])")
_NAME = re.compile(r"[A-Za-z0-9._%+-]{1,64}\Z")
_NAME_LENGTH = 64
_RESERVED = re.compile(r"(?i)(?:^|\.)(?:example|test|invalid|localhost|local)(?:\.(?:com|org|net))?$")
# Digits, perhaps in groups: what they are is for their check digits to say.
_DIGITS = re.compile(r"(?<![0-9A-Za-z.+])[0-9](?:[ -]?[0-9]){12,18}[Xx]?(?![0-9A-Za-z])")
_PHONES = re.compile(
    r"(?<![0-9A-Za-z.+-])(?:"
    r"(?:\+86[ -]?)?1[3-9][0-9][ -]?[0-9]{4}[ -]?[0-9]{4}"  # Chinese mobile phones
    r"|\+[1-9][0-9]{0,2}[ -](?:\([0-9]{1,4}\)[ -]?)?[0-9]{1,4}(?:[ -][0-9]{2,4}){1,4}"
    r"|(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-.])[2-9][0-9]{2}[-.][0-9]{4}"  # North America
    r")(?![0-9A-Za-z-])"
)
_IBAN = re.compile(r"(?<![0-9A-Za-z])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![0-9A-Za-z])")
_IBAN_LENGTHS = range(15, 35)
_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
# First digits and lengths by issuer: of any sixteen digits one in ten has the right check digit.
_CARDS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|(?:5[1-5]|2[2-7])[0-9]{14}|3[47][0-9]{13}|(?:6011|65[0-9]{2})[0-9]{12}"
    r"|62[0-9]{14,17}|35[0-9]{14}"
)


def secrets_in(text: str) -> Iterator[Place]:
    """Tokens by their form, passwords in URLs and headers."""
    # The pattern of all forms takes a hundred times as long as looking for what each of them begins with.
    if any(mark in text for mark in MARKS):
        yield from (Place("secret", *found.span()) for found in SHAPES.finditer(text))
    if "earer" in text or "asic" in text:
        yield from (Place("secret", *found.span(3)) for found in _BEARER.finditer(text))
    if "://" in text and "@" in text:
        yield from (Place("password", *found.span(2)) for found in IN_URL.finditer(text))


_BEARER = re.compile(BEARER.pattern.replace("(?=", "((?=", 1) + ")")


def personal_in(text: str) -> Iterator[Place]:
    """Mail addresses, telephone numbers, numbers of identity cards, bank cards and accounts."""
    if "@" in text:
        yield from _mails(text)
    taken = sorted([*_numbers(text), *_accounts(text)], key=lambda place: place.start)
    yield from taken
    starts = [place.start for place in taken]
    for found in _PHONES.finditer(text):
        # Part of a longer number is no telephone number; only the last that begins before its end may hold it.
        before = bisect_left(starts, found.end())
        if not before or taken[before - 1].end <= found.start():
            yield Place("telephone number", *found.span())


def shown(text: str, place: Place) -> str:
    """Two characters of what was found, for its finder to know it by; never more than a quarter of it."""
    found = text[place.start : place.end]
    return f"{place.what} {found[: min(2, len(found) // 4)]}{MASK}"


def hidden(text: str) -> str:
    """A text with a mask in place of all secrets and personal data."""
    places = sorted([*secrets_in(text), *personal_in(text)], key=lambda place: place.start)
    parts, at = [], 0
    for place in places:
        if place.end > at:
            parts += [text[at : max(at, place.start)], MASK]
            at = place.end
    return "".join([*parts, text[at:]])


def _mails(text: str) -> Iterator[Place]:
    for found in _DOMAIN.finditer(text):
        name = _NAME.search(text[max(0, found.start() - _NAME_LENGTH) : found.start()])
        # Addresses of documentation belong to nobody.
        if name and not _RESERVED.search(found[1]):
            yield Place("mail address", found.start() - len(name[0]), found.end())


def _numbers(text: str) -> Iterator[Place]:
    for found in _DIGITS.finditer(text):
        number = re.sub("[ -]", "", found[0]).upper()
        if is_identity_number(number):
            yield Place("identity number", *found.span())
        elif is_card_number(number):
            yield Place("card number", *found.span())


def _accounts(text: str) -> Iterator[Place]:
    for found in _IBAN.finditer(text):
        if is_account_number(found[0].replace(" ", "")):
            yield Place("account number", *found.span())


def is_identity_number(number: str) -> bool:
    """Whether a text is a Chinese identity number: with a date of birth and a check digit (GB 11643)."""
    if len(number) != 18 or not number[:17].isdecimal() or not "11" <= number[:2] <= "82":
        return False
    try:
        born = date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    rest = sum(int(digit) * weight for digit, weight in zip(number, _WEIGHTS, strict=False)) % 11
    return born.year >= 1900 and number[17] == "10X98765432"[rest]


def is_card_number(number: str) -> bool:
    """Whether digits are the number of a bank card: an issuer's first digits, and Luhn's check digit."""
    if not _CARDS.fullmatch(number):
        return False
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(number)))
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0


def is_account_number(number: str) -> bool:
    """Whether a text is an IBAN (ISO 13616): with its first four signs at the end, 1 modulo 97."""
    if len(number) not in _IBAN_LENGTHS:
        return False
    return int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97 == 1
