"""The bookends of a run: what is said before anything loads."""

from __future__ import annotations

import pytest

from hftune import stage
from hftune.arguments.defaults.recipe import recipe
from hftune.arguments.entry import parse_arguments


def test_a_run_says_its_recipe_once_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in ("apply_warm_start", "lock_output", "_complete_chain", "follow_adapter"):
        monkeypatch.setattr(stage, name, lambda *_, **__: None)
    for name in ("decide_padding_free", "set_seed"):
        monkeypatch.setattr(stage, name, lambda *_: None)
    monkeypatch.setattr(stage.watchdog, "start", lambda *_: None)
    monkeypatch.setattr(stage, "check_run", lambda *_: said.append("checked"))
    # A resumed run may accumulate otherwise than it was asked to: the recipe is what is trained.
    monkeypatch.setattr(stage, "keep_global_batch", lambda args, _: vars(args).update(gradient_accumulation_steps=4))
    monkeypatch.setattr(
        stage.get_logger(), "info", lambda text, *values: said.append(text % values if values else text)
    )
    groups = parse_arguments("sft", ["--output_dir", "o", "--use_peft", "--per_device_train_batch_size", "2"])
    stage.start_run("sft", *groups)
    assert said[0] == "checked"
    assert said[2:] == recipe(*groups)
    assert "batch 8 = 2 per device x 4* accumulated" in said[4]
