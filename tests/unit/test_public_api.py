"""What users build on changes only where it is meant to."""

from __future__ import annotations

from tests.public_api import KEPT, modules, text


def test_the_public_api_is_as_listed() -> None:
    assert text().splitlines() == KEPT.read_text().splitlines(), "if this is meant: python -m tests.public_api --write"


def test_what_is_public() -> None:
    found = modules()
    assert {"hftune.stage", "hftune.trainers.features.feature", "hftune.errors", "hftune.data.splits"} <= {*found}
    assert "hftune.trainers.unlearn" not in found, "an example's own"
