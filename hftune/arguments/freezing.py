"""Which parameters stay as they are, and which are trained."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FreezingArguments:
    """Megatron-SWIFT's names, and LLaMA-Factory's of freeze tuning. What is named as trainable wins."""

    freeze_parameters: list[str] | None = field(
        default=None, metadata={"help": "Leave parameters as they are whose names begin so: model.embed_tokens."}
    )
    freeze_parameters_regex: str | None = field(
        default=None, metadata={"help": "Leave parameters as they are in whose names this is found."}
    )
    # A share of the elements, not of the layers, as Megatron-SWIFT counts.
    freeze_parameters_ratio: float = field(
        default=0.0,
        metadata={
            "help": "Leave the first parameters as they are, from the embeddings up: as many as fit into this share of "
            "all elements; 1 for all."
        },
    )
    trainable_parameters: list[str] | None = field(
        default=None,
        metadata={
            "help": "Train parameters whose names begin so, though they are frozen otherwise. With an adapter: modules "
            "of the base that are trained in full and saved with it."
        },
    )
    trainable_parameters_regex: str | None = field(
        default=None, metadata={"help": "Train parameters in whose names this is found, likewise."}
    )
    freeze_trainable_layers: int | None = field(
        default=None,
        metadata={"help": "Train the last N decoder layers only; the first N for -N (freeze tuning)."},
    )
    freeze_trainable_modules: list[str] = field(
        default_factory=lambda: ["all"],
        metadata={"help": "With --freeze_trainable_layers: modules of these layers, such as self_attn,mlp; or all."},
    )
    freeze_extra_modules: list[str] | None = field(
        default=None,
        metadata={"help": "With --freeze_trainable_layers: modules outside of the layers to train as well (lm_head)."},
    )

    def __post_init__(self) -> None:
        # `a,b` and `a b` mean the same, as for the modules of an adapter.
        self.freeze_trainable_modules = split_commas(self.freeze_trainable_modules)
        for name in ("freeze_parameters", "trainable_parameters", "freeze_extra_modules"):
            if getattr(self, name):
                setattr(self, name, split_commas(getattr(self, name)))

    @property
    def freezes(self) -> bool:
        """Whether a flag leaves some parameters as they are."""
        by_name = bool(self.freeze_parameters or self.freeze_parameters_regex)
        return by_name or self.freeze_parameters_ratio > 0 or self.freeze_trainable_layers is not None

    @property
    def unfreezes(self) -> bool:
        """Whether a flag names parameters to train."""
        return bool(self.trainable_parameters or self.trainable_parameters_regex)


def split_commas(names: list[str] | str) -> list[str]:
    """Several names, however they were separated: `["a,b", "c"]` as `["a", "b", "c"]`."""
    listed = [names] if isinstance(names, str) else names
    return [name.strip() for entry in listed for name in entry.split(",") if name.strip()]
