"""A miniature without data foretells what a whole model with data allocates: every architecture, mode and dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, BloomConfig, CodeGenConfig, GPT2Config, MambaConfig

from hftune.arguments.entry import parse_arguments
from hftune.models.adapters.preparation import add_adapter
from hftune.preflight.estimating.planner import Choice, Planner, Tracer
from hftune.preflight.estimating.profiles import backward_peaks, forward_levels
from hftune.preflight.estimating.traced_step import traced_step
from hftune.preflight.estimating.tracing import Tracker, base_of
from hftune.preflight.estimating.work import FULL_LOGITS
from hftune.preflight.facts import resolve
from tests.architectures import ARCHITECTURES, MIXTURES_OF_EXPERTS, make_config

pytestmark = pytest.mark.long

LAYERS, ROWS, TOKENS = 5, 2, 64


def config_of(name: str) -> Any:
    """Five layers: of two kinds where the architecture has two."""
    types = {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"]}
    return make_config(name, num_hidden_layers=LAYERS, **(types if name in ("gemma2", "gemma3_text") else {}))


def planner_of(
    config: Any, folder: Path, stage: str, *flags: str, tracer: Tracer | None = traced_step
) -> tuple[Planner, Choice]:
    config.save_pretrained(folder)
    length = "--block_size" if stage == "pt" else "--max_length"
    given = parse_arguments(
        stage,
        [
            *("--model_name_or_path", str(folder), "--output_dir", "o", "--use_cpu", "True", length, str(TOKENS)),
            *("--per_device_train_batch_size", str(ROWS)),
            # Rows of one shape, as the model that is measured gets them.
            *(() if stage == "rl" else ("--padding_free", "False")),
            *flags,
        ],
    )
    planner = Planner(resolve(stage, given), tracer)
    return planner, planner.asked()


def step(model: Any, *, with_loss: bool, masked: bool, autocast: bool = False) -> int:
    """The most that a step of a real model allocates, bytes, beside weights and gradients."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    ids = torch.full((ROWS, TOKENS), 5)
    inputs: dict[str, Any] = {"input_ids": ids}
    if masked:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][0, -7:] = 0
    if with_loss:
        inputs["labels"] = ids.clone()
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    tracker = Tracker([*model.parameters(), *model.buffers(), *grads, *inputs.values()])
    with tracker:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = (model if with_loss else base_of(model))(**inputs, use_cache=False)
        kept = out.loss if with_loss else out.last_hidden_state
        copied = out.logits.float() if with_loss and autocast else None
        del out, copied
        kept.backward(torch.ones_like(kept))
    return tracker.stretches[0].peak


def planned(planner: Planner, choice: Choice) -> int:
    profile, _, untraced = planner.profile(choice, planner.numerics(choice))
    assert untraced is None, untraced
    return max(forward_levels(profile)[0], *backward_peaks(profile))


FULL, NONE = (("--activation_checkpointing", mode) for mode in ("full", "none"))
QUICK = {("llama", FULL), ("llama", NONE), ("gemma2", NONE), ("phi", FULL), ("deepseek_v3", NONE), ("qwen3_moe", FULL)}
# Of every other architecture the same lines are at work, on other layers.
ARCHITECTURES_AND_MODES = [
    pytest.param("sft", name, mode, marks=() if (name, mode) in QUICK else pytest.mark.slow)
    for name in ARCHITECTURES
    for mode in (FULL, NONE)
]
SMOOTHED = ("--bf16", "True", "--packing", "False", "--label_smoothing_factor", "0.1")
LOWER = ("--freeze_parameters", "model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2")


@pytest.mark.parametrize(
    ("stage", "name", "flags"),
    [
        *ARCHITECTURES_AND_MODES,
        ("sft", "llama", ("--activation_checkpointing", "attention")),
        ("sft", "llama", ("--activation_checkpointing", "mlp")),
        ("sft", "llama", ("--activation_checkpointing_every", "2")),
        ("sft", "llama", ("--activation_checkpointing_layers", "1/3")),
        # Half precision, and all logits at once.
        ("pt", "llama", (*SMOOTHED, *FULL)),
        ("pt", "llama", (*SMOOTHED, *NONE)),
        ("sft", "qwen3", ("--use_peft", *FULL)),
        ("sft", "qwen3", ("--use_peft", *NONE)),
        # Lower layers that are frozen keep nothing.
        ("sft", "llama", (*LOWER, *NONE)),
    ],
)
def test_a_real_step_takes_what_was_planned(tmp_path: Path, stage: str, name: str, flags: tuple[str, ...]) -> None:
    config = config_of(name)
    planner, choice = planner_of(config, tmp_path, stage, *flags)
    assert choice.work.masked and (choice.work.head == FULL_LOGITS) == (stage == "pt")
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=planner.attention)
    adapted = add_adapter(model.train(), planner.adapter_args, planner.training_args).train()
    if choice.recompute is not None:
        model.gradient_checkpointing_enable()
    elif choice.adapter.use_peft:
        # In the miniature one layer stands for all, of which only the first has an input without a gradient.
        adapted.enable_input_require_grads()
    # A mixture computes expert by expert here, and all in one matrix product where it is reckoned.
    tolerance = 0.12 if name in MIXTURES_OF_EXPERTS else 0.02 if flags[0] in ("--use_peft", LOWER[0]) else 0.01
    real = step(adapted, with_loss=stage == "pt", masked=True, autocast=stage == "pt")
    assert planned(planner, choice) == pytest.approx(real, rel=tolerance)


@pytest.mark.parametrize("make", [GPT2Config, BloomConfig, CodeGenConfig])
@pytest.mark.parametrize("mode", ["full", "none"])
def test_configs_that_call_their_layers_otherwise(tmp_path: Path, make: Any, mode: str) -> None:
    ids = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None}
    config = make(num_hidden_layers=LAYERS, hidden_size=32, num_attention_heads=4, rotary_dim=8, **ids)
    planner, choice = planner_of(config, tmp_path, "sft", "--activation_checkpointing", mode)
    assert len(planner.profile(choice, planner.numerics(choice))[0].kinds) == LAYERS
    assert planner.plan(choice).untraced is None


def test_what_is_kept_is_what_autograd_saves(tmp_path: Path) -> None:
    """The inventory of saved tensors, storage by storage, of a real model."""
    config = config_of("llama")
    planner, choice = planner_of(config, tmp_path, "sft", "--activation_checkpointing", "none")
    profile, _, _ = planner.profile(choice, planner.numerics(choice))
    model = AutoModelForCausalLM.from_config(config).train()
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    saved: dict[int, int] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.full((ROWS, TOKENS), 5)
    mask = torch.ones_like(ids)
    mask[0, -7:] = 0
    with saved_tensors_hooks(remember, lambda tensor: tensor):
        hidden = base_of(model)(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    # Beside what autograd saves, the last hidden states live, and indices that the embedding was given.
    assert profile.all_kept == pytest.approx(sum(saved.values()) + hidden.nbytes, rel=0.02)


def test_a_model_that_cannot_be_traced_is_reckoned_by_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    planner, choice = planner_of(config, tmp_path, "sft", "--activation_checkpointing", "none")
    exact = planner.plan(choice)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("data-dependent")

    model_class = type(planner.bare.get_decoder())
    monkeypatch.setattr(model_class, "forward", fail)
    rough = Planner(planner.facts, traced_step).plan(choice)
    assert rough.untraced == "RuntimeError: data-dependent"
    wanted = exact.moment.parts["activations"]
    assert wanted / 3 < rough.moment.parts["activations"] < wanted * 3


def test_what_the_planner_does_wrong_is_not_taken_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, choice = planner_of(config_of("llama"), tmp_path, "sft")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr("hftune.preflight.estimating.traced_step.materialise", fail)
    with pytest.raises(TypeError, match="a bug"):
        planner.plan(choice)


def test_layers_that_go_token_by_token_are_by_formula(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    for config, traced in ((MambaConfig(**sizes), False), (make_config("llama"), True)):
        planner, choice = planner_of(config, tmp_path / config.model_type, "sft")
        assert (planner.plan(choice).untraced is None) is traced
