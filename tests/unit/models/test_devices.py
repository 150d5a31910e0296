"""What is made inside a function lies where its inputs do: held without a META, on the device that has no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hftune.models.attention.segments import Segments, _places, _Softmax
from hftune.models.attention.shared_prompts import SharedPrompts
from hftune.trainers.losses.divergences import desensitised
from hftune.trainers.losses.routers import balance_loss, z_loss

META = torch.device("meta")


def floats(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=META)


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=META)


def answers(**more: Any) -> torch.Tensor:
    return desensitised(floats(5), numbers(2, 3), numbers(2, 2), **more)


PROMPTS = SharedPrompts((2,), ((2, 3),))
MADE: dict[str, Callable[[], Any]] = {
    "answers": lambda: answers(ld_alpha=None),
    "answers of which a part counts": lambda: answers(ld_alpha=0.5),
    "balance of routers": lambda: balance_loss(floats(4, 3), numbers(0, 1, 2, 0)[:, None]),
    "z-loss": lambda: z_loss(floats(4, 3)),
    "band": lambda: Segments(numbers(0, 5).int(), (5,), window=2).band(5),
    "dense mask": lambda: Segments(numbers(0, 2, 5).int(), (2, 3)).dense(1, 5),
    "places": lambda: torch.cat([one.flatten() for one in _places(2, 5, META)]),
    "scores by the formula": lambda: _Softmax(0.0, None, 5.0, None).of(*[floats(1, 2, 3, 4)] * 3, None),
    "borders of prompts": lambda: PROMPTS.borders([2, 3], META),
    "what an answer sees": lambda: PROMPTS.seen(3, 5, None, META),
}


@pytest.mark.parametrize("name", MADE)
def test_where_the_inputs_are(name: str) -> None:
    PROMPTS._masks.clear()
    assert MADE[name]().device == META
