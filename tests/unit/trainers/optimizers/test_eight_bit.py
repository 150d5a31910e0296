"""Which moments bitsandbytes keeps in 32 bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hftune.trainers.optimizers.choice import SMALLEST_8BIT, bits_by_group, kept_in_32bit


class Made:
    """Stands for one of bitsandbytes' optimizers."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        return {"optim_bits": 8, "place": (gindex, pindex)}


def test_groups_say_the_bits_and_the_class_keeps_its_name() -> None:
    made: Any = bits_by_group(Made)
    assert made.__name__ == "Made" and issubclass(made, Made)
    assert made().get_config(1, 2, {"optim_bits": 32}) == {"optim_bits": 32, "place": (1, 2)}
    assert made().get_config(1, 2, {}) == {"optim_bits": 8, "place": (1, 2)}


def test_embeddings_and_small_tensors_keep_32_bits() -> None:
    side = int(SMALLEST_8BIT**0.5)
    model = nn.Sequential(nn.Embedding(side, 2 * side), nn.Linear(side, side), nn.Linear(side, side - 1))
    model[2].weight.ds_shape = torch.Size((side, 2 * side))  # ZeRO-3's: what lies here is a part
    options = kept_in_32bit(model)
    kept = {name for name, parameter in model.named_parameters() if options.get(id(parameter)) == {"optim_bits": 32}}
    assert kept == {"0.weight", "1.bias", "2.bias"}
