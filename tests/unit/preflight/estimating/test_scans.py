"""Layers that go through a row token by token are planned from short rows, as if the long one had been traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import JambaConfig, LlamaConfig, MambaConfig, PreTrainedConfig
from transformers.models.mamba import modeling_mamba

from hftune.arguments.entry import parse_arguments
from hftune.models.loading.skeleton import skeleton
from hftune.models.miniature import Miniature
from hftune.preflight.estimating import scans
from hftune.preflight.estimating.planner import Planner
from hftune.preflight.estimating.profiles import Batch, Part, Profile
from hftune.preflight.facts import resolve

SIZES = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 3}
MAMBA = MambaConfig(**SIZES, state_size=8)
JAMBA = JambaConfig(
    **SIZES, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, attn_layer_period=2,
    attn_layer_offset=1, expert_layer_period=4, expert_layer_offset=3, num_experts=2, mamba_d_state=8,
)  # fmt: skip


def planned(config: PreTrainedConfig, folder: Path, *flags: str, tokens: int = 32) -> Profile:
    config.save_pretrained(folder)
    given = ["--model_name_or_path", str(folder), "--output_dir", "o", "--use_cpu", "True", "--max_length", str(tokens)]
    planner = Planner(resolve("sft", parse_arguments("sft", [*given, *flags])))
    choice = planner.asked()
    profile, _, untraced = planner.profile(choice, planner.numerics(choice))
    assert untraced is None
    return profile


LORA = ["--use_peft", "--target_modules", "in_proj,x_proj"]


@pytest.mark.parametrize("flags", [[], ["--gradient_checkpointing", "False"], LORA])
@pytest.mark.parametrize("config", [MAMBA, JAMBA], ids=lambda config: config.model_type)
def test_as_if_the_long_row_had_been_traced(
    config: PreTrainedConfig, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "TOKENS", (8, 16))
    profile = planned(config, tmp_path, *flags)
    monkeypatch.setattr(scans, "scans", lambda model: False)
    whole = planned(config, tmp_path, *flags)
    assert profile.kept == pytest.approx(whole.kept, rel=0.02)
    assert (profile.embed, profile.tail, profile.kept_tail) == (whole.embed, whole.tail, whole.kept_tail)
    for name in ("forward", "backward"):
        for found, wanted in zip(getattr(profile, name), getattr(whole, name), strict=True):
            assert found.rise == pytest.approx(wanted.rise, rel=0.02)
            assert found.change == pytest.approx(wanted.change, abs=0.02 * wanted.rise)


def test_long_rows_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, usual = list[int](), modeling_mamba.mamba_selective_scan

    def scan(hidden: torch.Tensor, *args: Any, **named: Any) -> Any:
        lengths.append(hidden.shape[-1])
        return usual(hidden, *args, **named)

    monkeypatch.setattr(modeling_mamba, "mamba_selective_scan", scan)
    planned(MAMBA, tmp_path, tokens=160)
    assert lengths and set(lengths) == {*scans.TOKENS}


def test_who_scans() -> None:
    (_, _, _, args) = parse_arguments("sft", ["--model_name_or_path", "m", "--output_dir", "o"])
    assert scans.scans(skeleton(MAMBA, args)) and scans.scans(skeleton(JAMBA, args))
    assert not scans.scans(skeleton(LlamaConfig(**SIZES, num_attention_heads=4), args))


def test_the_most_that_lives_in_a_pass() -> None:
    """Either what scans needs it, or something else, which grows as it will."""
    args = parse_arguments("sft", ["--model_name_or_path", "m", "--output_dir", "o"])[-1]
    model = skeleton(MAMBA, args)
    miniature = Miniature(model, [], ())

    def pass_of(square: int) -> Callable[[Batch], int]:
        def peak(batch: Batch) -> int:
            skipped = "forward" in vars(model.backbone.layers[0].mixer)
            return max(square * batch.tokens**2, 0 if skipped else 100 * batch.tokens)

        return peak

    assert scans.peak_of(pass_of(0), miniature, Batch(1, 1000)) == 100_000
    assert scans.peak_of(pass_of(1), miniature, Batch(1, 1000)) == 1_000_000
    assert scans.peak_of(pass_of(0), miniature, Batch(1, 10)) == 1000
    assert "forward" not in vars(model.backbone.layers[0].mixer)


def test_numbers_on_a_line() -> None:
    assert scans._part(Part(1, 2), Part(3, 2), 10.0) == Part(21, 2)
    asked = list[Batch]()
    assert scans._two(lambda batch: asked.append(batch), Batch(2, scans.TOKENS[1]), scans.TOKENS) == (None, None)
    assert asked == [Batch(2, scans.TOKENS[1])], "a short row is traced as it is"
