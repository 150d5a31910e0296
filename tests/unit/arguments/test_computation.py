"""Recipes of FP8 are torchao's."""

from __future__ import annotations

import pytest

from hftune.arguments.computation import RECIPES, PrecisionFields
from hftune.errors import ArgumentError


@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_recipes(recipe: str | None) -> None:
    PrecisionFields(fp8=recipe).check_precision()


def test_a_recipe_that_torchao_does_not_have() -> None:
    with pytest.raises(ArgumentError, match="'true' is no recipe of FP8") as caught:
        PrecisionFields(fp8="true").check_precision()
    assert all(recipe in str(caught.value) for recipe in RECIPES)
