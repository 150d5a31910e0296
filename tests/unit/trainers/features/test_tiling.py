"""MLPs in pieces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import LlamaConfig

from hftune.trainers.features import tiling
from hftune.trainers.features.tiling import Tiling
from tests.unit.trainers.features import made_up


def test_as_many_pieces_as_the_longest_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = list[object](), list[str]()
    monkeypatch.setattr(tiling, "row_length", lambda args: 100)
    monkeypatch.setattr(tiling, "longest_batch", lambda args, longest: 2 * longest + 1)
    monkeypatch.setattr(tiling, "tiles_for", lambda tokens, hidden: tokens // hidden)
    monkeypatch.setattr(tiling, "tile_mlps", lambda model, tiles: asked.append((model, tiles)) or 3)
    monkeypatch.setattr(tiling, "notice", said.append)
    run = made_up.run(model=SimpleNamespace(config=LlamaConfig(hidden_size=64)))
    Tiling().on_built(run)
    assert asked == [(run.model, 3)]
    assert said == ["--tiled_mlp: 3 MLPs are computed in 3 piece(s) of at most 67 tokens"]
