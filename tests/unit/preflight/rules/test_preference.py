"""Losses of preferences, and options that they do not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.preflight.rules.preference import check_preferences

_ARGS = {
    **{"beta": 0.1, "label_smoothing": 0.0, "offset_alpha": 0.0, "normalize_logps": False},
    **{"f_divergence_type": "reverse_kl", "use_weighting": False, "needs_reference": True, "other_reference": False},
    **{"sync_ref_model": False, "precompute_ref_log_probs": False, "desirable_weight": 1.0, "undesirable_weight": 1.0},
}


def said(*losses: str, rows: tuple[bool, bool] = (True, True), **args: Any) -> list[str]:
    training_args = SimpleNamespace(**{**_ARGS, "loss_type": list(losses or ("sigmoid",)), **args})
    layout = SimpleNamespace(shared_prompts=rows[0], padding_free=rows[1])
    facts: Any = SimpleNamespace(training_args=training_args, rows=layout)
    return [str(problem) for problem in check_preferences(facts)]


@pytest.mark.parametrize(
    ("losses", "args"),
    [
        (("sigmoid",), {"label_smoothing": 0.1, "offset_alpha": 1.0, "rows": (False, False)}),
        (("exo_pair",), {"label_smoothing": 1e-3}),
        (("robust",), {"label_smoothing": 0.1}),
        (("sigmoid", "sft"), {"f_divergence_type": "js_divergence"}),
        (("ipo",), {"sync_ref_model": True}),
    ],
)
def test_what_fits_together(losses: tuple[str, ...], args: dict[str, Any]) -> None:
    assert said(*losses, **args) == []


@pytest.mark.parametrize(
    ("losses", "args", "problem"),
    [
        (("sigmiod",), {}, "there is no loss sigmiod"),
        (("orpo",), {"f_divergence_type": "js_divergence"}, "whose constant does not cancel"),
        (("aot",), {"use_weighting": True}, "sorted answers would get the weights of other pairs"),
        (("sigmoid",), {"beta": 0.0}, "beta 0"),
        (("exo_pair",), {}, "exo_pair needs a label smoothing above 0"),
        (("simpo",), {"normalize_logps": True}, "simpo divides by the length of an answer already"),
        (("ipo",), {"sync_ref_model": True, "precompute_ref_log_probs": True}, "cannot be computed before it"),
        (("orpo",), {"needs_reference": False, "sync_ref_model": True}, "no loss looks at a reference"),
        (("orpo",), {"needs_reference": False, "other_reference": True}, "--ref_model / --ref_adapters"),
        (("ipo",), {"sync_ref_model": True, "other_reference": True}, "renewed by mixing in the policy"),
        (("ipo",), {"rows": (True, False)}, "a padded row holds one answer"),
    ],
)
def test_what_does_not(losses: tuple[str, ...], args: dict[str, Any], problem: str) -> None:
    assert [each for each in said(*losses, **args) if problem in each], said(*losses, **args)


def test_the_nearest_loss_is_named() -> None:
    assert "did you mean --loss_type sigmoid?" in said("sigmiod")[0]
