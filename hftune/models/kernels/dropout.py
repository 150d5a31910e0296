"""Where a model drops hidden states and attention weights, found by structure, and set to any probability.

Most architectures since Llama have a dropout on attention weights and none on hidden states. The latter is added where
BERT and ERNIE have it: on what attention and MLP give, before it is added to the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.models.structure import decoder_layers

HIDDEN_FIELDS = ("resid_pdrop", "hidden_dropout", "hidden_dropout_prob", "resid_dropout")
ATTENTION_FIELDS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""What configs call the two."""


@dataclass(frozen=True)
class Probabilities:
    """The two, each None where the model's own stays."""

    hidden: float | None
    attention: float | None

    def __bool__(self) -> bool:
        return self.hidden is not None or self.attention is not None

    def scaled(self, share: float) -> Probabilities:
        """Both times `share`."""
        return Probabilities(*(None if p is None else p * share for p in (self.hidden, self.attention)))


def set_dropout_fields(config: PreTrainedConfig, training_args: StageArguments) -> None:
    """Write the probabilities asked for into the fields that this config has; what has no field is set on the model."""
    text = config.get_text_config()
    asked = (
        (HIDDEN_FIELDS, training_args.hidden_dropout_prob),
        (ATTENTION_FIELDS, training_args.attention_probs_dropout_prob),
    )
    for names, value in asked:
        # All that are there: some architectures have one for attention and one for the MLP.
        for name in names:
            if value is not None and hasattr(text, name):
                setattr(text, name, value)


def outside_config(config: PreTrainedConfig, training_args: StageArguments) -> Probabilities:
    """The probabilities that the config's fields do not set: without a field, or changing with steps or layers."""
    # A field holds one value for all layers and the whole run.
    changes = bool(training_args.dropout_warmup_steps or training_args.layerwise_dropout)
    text = config.get_text_config()

    def left(value: float | None, fields: tuple[str, ...]) -> float | None:
        return value if value and (changes or not any(hasattr(text, name) for name in fields)) else None

    return Probabilities(
        left(training_args.hidden_dropout_prob, HIDDEN_FIELDS),
        left(training_args.attention_probs_dropout_prob, ATTENTION_FIELDS),
    )


_ATTENTION_ATTRIBUTES = ("attention_dropout", "attn_dropout")
# Dropout modules of a layer's two residual branches: one for both, or one each.
_HIDDEN_MODULES = (
    ("resid_dropout",),
    ("resid_attn_dropout", "resid_mlp_dropout"),
    ("post_attention_dropout", "post_mlp_dropout"),
)
# The last modules of the two residual branches, both of which must be there: alone, a norm called
# post_attention_layernorm is the one before the MLP (Llama), and not the end of a branch.
_BRANCH_ENDS = (
    ("post_self_attn_layernorm", "post_mlp_layernorm"),
    ("post_attention_layernorm", "post_feedforward_layernorm"),
    ("self_attn", "mlp"),
    ("self_attn", "block_sparse_moe"),
    ("self_attn", "feed_forward"),
)


def find_dropouts(model: nn.Module, asked: Probabilities) -> list[Dropouts]:
    """The places of every decoder layer, from the first to the last.

    Raises:
        ArgumentError: The architecture has no place for what was asked.
    """
    layers = decoder_layers(model)
    found = [Dropouts(layer) for layer in layers]
    name = type(model).__name__
    if not found or (asked.hidden is not None and not all(places.takes_hidden for places in found)):
        raise _refused("hidden", name, "--hidden_dropout_prob")
    if asked.attention is not None and not all(places.attention for places in found):
        raise _refused("attention", name, "--attention_probs_dropout_prob")
    return found


class Dropouts:
    """The dropouts of one decoder layer.

    Args:
        layer: A decoder layer; nothing is changed until `set`.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.attention = list(_attention_places(layer))
        self.modules = next((found for names in _HIDDEN_MODULES if (found := _children(layer, names))), [])
        self.ends = next((found for names in _BRANCH_ENDS if (found := _children(layer, names))), [])
        self.hidden = 0.0
        self._hooked = False

    @property
    def takes_hidden(self) -> bool:
        """Whether there is a place for a dropout on hidden states."""
        return bool(self.modules or self.ends)

    def set(self, asked: Probabilities) -> None:
        """Use these probabilities from the next forward pass, in training mode only."""
        if asked.attention is not None:
            for module, name in self.attention:
                _assign(module, name, asked.attention)
        if asked.hidden is None:
            return
        self.hidden = asked.hidden
        for module in self.modules:
            module.p = asked.hidden
        # One hook for the whole run, which reads the probability of the moment: `set` is called at every step.
        if not self.modules and not self._hooked:
            self._hooked = True
            for end in self.ends:
                end.register_forward_hook(self._drop)

    def _drop(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Of the output of a branch's last module, which may be a tuple that begins with the hidden states."""
        if not self.hidden or not module.training:
            return output
        if isinstance(output, tuple):
            return (nn.functional.dropout(output[0], self.hidden, training=True), *output[1:])
        return nn.functional.dropout(output, self.hidden, training=True)


def _children(layer: nn.Module, names: tuple[str, ...]) -> list[Any]:
    """The children of these names; none unless all are there."""
    found = [getattr(layer, name, None) for name in names]
    return found if all(isinstance(module, nn.Module) for module in found) else []


def _attention_places(layer: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for module in layer.modules():
        for name in _ATTENTION_ATTRIBUTES:
            if isinstance(getattr(module, name, None), float | int | nn.Dropout):
                yield module, name


def _assign(module: nn.Module, name: str, value: float) -> None:
    current = getattr(module, name)
    if isinstance(current, nn.Dropout):
        current.p = value
    else:
        setattr(module, name, value)


def _refused(kind: str, name: str, flag: str) -> ArgumentError:
    return ArgumentError(
        f"{name} has no place for a dropout on {kind} {'states' if kind == 'hidden' else 'weights'} that hftune knows",
        place=flag,
        fix="leave the flag out; --lora_dropout, --weight_decay and --neftune_noise_alpha also regularise",
    )
