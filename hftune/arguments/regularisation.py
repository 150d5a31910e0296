"""What keeps training stable besides the loss: the routers of experts, and dropout. The same in every stage."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RouterFields:
    """Losses of a mixture of experts' routers. `router_aux_loss_coef` is TRL's name."""

    # None is not 0: the weight in the model's config counts then.
    router_aux_loss_coef: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the routers' load-balancing loss (arXiv:2101.03961). Left out: what the model's config "
            "says, 0 where it says nothing."
        },
    )
    moe_z_loss_coef: float = field(
        default=0.0,
        metadata={"help": "Weight of the routers' z-loss (arXiv:2202.08906), a mean over tokens and layers."},
    )


@dataclass
class DropoutFields:
    """Dropout on ERNIEKit's names, whatever the model's config calls it."""

    hidden_dropout_prob: float | None = field(
        default=None,
        metadata={
            "help": "Dropout on what attention and MLP add to the hidden states. Left out: as the model's config says."
        },
    )
    attention_probs_dropout_prob: float | None = field(
        default=None, metadata={"help": "Dropout on attention weights. Left out: as the model's config says."}
    )
    dropout_warmup_steps: int = field(
        default=0, metadata={"help": "Steps in which both grow from 0 to their values, linearly."}
    )
    layerwise_dropout: bool = field(
        default=False,
        metadata={"help": "Scale both by a layer's number (from 0) over the count of layers, as ERNIEKit does."},
    )

    @property
    def asks_for_dropout(self) -> bool:
        """Whether a dropout other than the model's own was asked for."""
        return self.hidden_dropout_prob is not None or self.attention_probs_dropout_prob is not None
