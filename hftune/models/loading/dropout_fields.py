"""The dropout that a model's config has fields for, and what is left to be set on the model itself."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedConfig

from hftune.arguments.training import StageArguments

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
