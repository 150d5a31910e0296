"""Recipes of FP8, dropout that is asked for, and a router's loss that is left to the model."""

from __future__ import annotations

import pytest

from hftune.arguments.computation import RECIPES, DropoutFields, PrecisionFields, RouterFields
from hftune.errors import ArgumentError


@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_recipes(recipe: str | None) -> None:
    PrecisionFields(fp8=recipe).check_precision()


def test_a_recipe_that_torchao_does_not_have() -> None:
    with pytest.raises(ArgumentError, match="'true' is no recipe of FP8") as caught:
        PrecisionFields(fp8="true").check_precision()
    assert all(recipe in str(caught.value) for recipe in RECIPES)


@pytest.mark.parametrize(
    ("hidden", "attention", "asked"),
    [(None, None, False), (0.1, None, True), (None, 0.1, True), (0.0, None, True)],  # 0 is asked for as well
)
def test_dropout_other_than_the_models(hidden: float | None, attention: float | None, asked: bool) -> None:
    fields = DropoutFields(hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
    assert fields.asks_for_dropout is asked


def test_a_routers_loss_is_the_models_unless_it_is_given() -> None:
    assert RouterFields().router_aux_loss_coef is None and RouterFields().moe_z_loss_coef == 0
