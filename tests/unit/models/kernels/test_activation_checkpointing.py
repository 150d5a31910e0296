"""Which modules run twice, what is kept for the backward pass, and that no number changes by it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from trl.models.utils import disable_gradient_checkpointing

from hftune.arguments.recomputation import Recomputation
from hftune.models.kernels.activation_checkpointing import not_recomputable, recompute
from tests.architectures import few_quick, make_config
from tests.unit.models.adapting import loaded

pytestmark = pytest.mark.long

TOKENS = torch.arange(2 * 24).reshape(2, 24) % 60
LAYERS = 4


def model(attention: str = "eager", dropout: float = 0.2, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=dropout, attn_implementation=attention, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()


@contextmanager
def counted(plain: nn.Module) -> Iterator[Counter]:
    """How often projections and the softmax of each layer run, forward and backward pass together."""
    seen: Counter = Counter()
    handles = [
        module.register_forward_hook(lambda module, inputs, output, name=name: seen.update([name]))
        for name, module in plain.named_modules()
        if name.rpartition(".")[2] in ("q_proj", "up_proj", "input_layernorm")
    ]
    softmax = nn.functional.softmax

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.update(["softmax"])
        return softmax(*args, **kwargs)

    nn.functional.softmax = counting
    try:
        yield seen
    finally:
        nn.functional.softmax = softmax
        for handle in handles:
            handle.remove()


def step(plain: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Loss, gradients, and bytes kept for the backward pass outside of what is recomputed."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = plain(input_ids=TOKENS, labels=TOKENS).loss
    loss.backward()
    grads = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
    plain.zero_grad()
    return loss.detach(), grads, sum(kept.values())


# plan: how often each runs in a layer that is chosen; what is not named runs once.
TWICE = {
    Recomputation(): ("q_proj", "up_proj", "input_layernorm", "softmax"),
    Recomputation(("attention",)): ("q_proj", "softmax"),
    Recomputation(("mlp",)): ("up_proj",),
    Recomputation(("attention", "mlp")): ("q_proj", "softmax", "up_proj"),
}
WHICH = {(1, None): [0, 1, 2, 3], (2, None): [0, 2], (1, "1-2"): [1, 2], (1, "not 0,1"): [2, 3], (1, "1/2"): [0, 2]}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("plan", TWICE, ids=str)
def test_what_runs_twice_and_that_no_bit_changes(plan: Recomputation, reentrant: bool) -> None:
    plain, expected = model(), step(model())
    plain.enable_input_require_grads()
    for (every, which), chosen in WHICH.items():
        selected = Recomputation(plan.parts, every, which)
        recompute(plain, selected, reentrant=reentrant)
        plain._set_gradient_checkpointing(enable=True)
        with counted(plain) as seen:
            loss, grads, kept = step(plain)
        for name in ("q_proj", "up_proj", "input_layernorm"):
            runs = [sum(seen[k] for k in seen if f"layers.{n}." in k and k.endswith(name)) for n in range(LAYERS)]
            assert runs == [2 if n in chosen and name in TWICE[plan] else 1 for n in range(LAYERS)], (selected, name)
        assert seen["softmax"] == LAYERS + (len(chosen) if "softmax" in TWICE[plan] else 0)
        assert torch.equal(loss, expected[0])
        assert grads.keys() == expected[1].keys()
        assert all(torch.equal(grads[name], expected[1][name]) for name in grads)
        assert kept < expected[2], "less is kept"
        plain._set_gradient_checkpointing(enable=False)
        plain.__dict__.pop("_set_gradient_checkpointing")


@pytest.mark.parametrize("plan", [Recomputation(), Recomputation(("attention", "mlp"))], ids=str)
def test_offloaded_inputs_go_to_the_machine_and_nothing_changes(plan: Recomputation, monkeypatch: Any) -> None:
    """On a machine without an accelerator the way there is the same: each input is handed over once, and fetched."""
    packed: list[torch.Tensor] = []
    from hftune.models.kernels import activation_checkpointing as checkpointing

    class Recording(torch.autograd.graph.save_on_cpu):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: (packed.append(tensor), pack(tensor))[1]

    monkeypatch.setattr(checkpointing, "save_on_cpu", Recording)
    plain, expected = model(), step(model())
    recompute(plain, Recomputation(plan.parts, offload=True), on_cpu=False)
    plain._set_gradient_checkpointing()
    loss, grads, _ = step(plain)
    assert torch.equal(loss, expected[0]) and all(torch.equal(grads[name], expected[1][name]) for name in grads)
    wide = [tensor for tensor in packed if tensor.is_floating_point() and tensor.numel() >= TOKENS.numel() * 16]
    assert len(wide) >= LAYERS, "the input of every recomputed part"


def test_offloading_on_a_cpu_is_said() -> None:
    from hftune.logging import notices

    before = len(notices())
    plain = model()
    recompute(plain, Recomputation(offload=True), on_cpu=True)
    assert "no effect: on a CPU" in notices()[before]
    assert plain.recomputing.offload is False


def test_trl_switches_it_off_and_on_again_with_its_own_options() -> None:
    """Whatever options come along, also those that torch's checkpoint does not know: the plan is what counts."""
    plain = model()
    recompute(plain, Recomputation(("attention",), every=2))
    plain.gradient_checkpointing_enable()
    for leak in ({"every_n_layers": 2}, {"offload": True}, {"use_reentrant": True}, None):
        with disable_gradient_checkpointing(plain, leak), counted(plain) as seen:
            step(plain)
        assert set(seen.values()) == {1, LAYERS}, "each once, the softmax once a layer"
        with counted(plain) as seen:
            step(plain)
        assert [seen[f"model.layers.{n}.self_attn.q_proj"] for n in range(LAYERS)] == [2, 1, 2, 1]


def test_a_copy_recomputes_with_its_own_weights() -> None:
    plain = model()
    recompute(plain, Recomputation(("attention", "mlp")))
    twin = copy.deepcopy(plain)
    plain._set_gradient_checkpointing()
    assert twin.model.layers[0].self_attn.gradient_checkpointing is False
    twin._set_gradient_checkpointing()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    fresh = model()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.mul_(0.5)
    assert torch.equal(step(twin)[0], step(fresh)[0])


def test_evaluation_and_sampling_recompute_nothing_and_may_cache() -> None:
    plain = model(dropout=0.0)
    recompute(plain, Recomputation(("attention",)))
    plain._set_gradient_checkpointing()
    plain.eval()
    with counted(plain) as seen, torch.no_grad():
        plain.generate(TOKENS[:1, :4], max_new_tokens=3, do_sample=False)
    assert seen["model.layers.0.self_attn.q_proj"] == 3
    with counted(plain) as seen:
        step(plain)
    assert seen["model.layers.0.self_attn.q_proj"] == 1, "nor where a gradient is asked for"


def test_a_run_recomputes_what_was_asked_for(tiny_model: Path) -> None:
    on = ("--gradient_checkpointing", "True")
    parts = loaded("sft", tiny_model, *on, "--activation_checkpointing", "attention")[0]
    assert parts.recomputing.parts == [layer.self_attn for layer in parts.model.layers] and not parts.recomputing.whole
    whole = loaded("sft", tiny_model, *on, "--gradient_checkpointing_kwargs", '{"use_reentrant": true}')[0]
    assert whole.recomputing.whole == [*whole.model.layers] and whole.recomputing.options["use_reentrant"] is True


@pytest.mark.parametrize("architecture", few_quick())
def test_every_architecture(architecture: str) -> None:
    """All parts are found wherever an architecture is promised, and change nothing."""
    plain = AutoModelForCausalLM.from_config(make_config(architecture), attn_implementation="eager").train()
    expected = step(plain)
    for parts in (("full",), ("attention", "mlp")):
        recompute(plain, Recomputation(parts))
        plain.gradient_checkpointing_enable()
        loss, grads, kept = step(plain)
        assert torch.equal(loss, expected[0]) and kept < expected[2]
        assert all(torch.equal(grads[name], expected[1][name]) for name in expected[1])


def test_what_cannot_be_recomputed() -> None:
    class Whole(PreTrainedModel):
        config_class = LlamaConfig
        supports_gradient_checkpointing = True

        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(config.num_hidden_layers)])

    config = LlamaConfig(num_hidden_layers=2)
    whole = Whole(config)
    assert not_recomputable(whole, Recomputation()) is None
    assert "as a whole" in str(not_recomputable(whole, Recomputation(("attention",))))
    assert "as a whole" in str(not_recomputable(whole, Recomputation(every=2)))
    whole.supports_gradient_checkpointing = False
    assert "cannot recompute" in str(not_recomputable(whole, Recomputation()))
    assert "no layer 9" in str(not_recomputable(model(), Recomputation(which="0,9")))
    plain = model()
    for layer in plain.model.layers:
        layer.mixing = layer.self_attn
        del layer.self_attn
    assert "finds no attention" in str(not_recomputable(plain, Recomputation(("attention",))))
