"""What a model is made of, read off its class alone: the ground on which expectations stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.initialization import no_init_weights

from hftune.distributed import zero
from hftune.models.classes import make_reward_models
from tests.architectures import make_config

# Dimensions that bitsandbytes' blocks of 64 fill, for every matrix that it may quantise; and more embeddings than the
# tokenizer has tokens, as most models have.
DIVISIBLE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 16,
    "moe_intermediate_size": 64,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "v_head_dim": 16,
}


@dataclass(frozen=True)
class Plain:
    """Names of a model before any adapter is put on it.

    Args:
        parameters: All of them; a tied head is its embeddings.
        linears: Modules that multiply by a matrix, without the head.
        head: The module of the head: `lm_head` or `score`.
        experts: Modules whose parameters stack the experts of a mixture.
        layers: Number of decoder layers.
        undecayed: Parameters that weight decay leaves alone: biases and the weights of norms.
        tied: Whether the head is the embeddings.
    """

    parameters: frozenset[str]
    linears: frozenset[str]
    head: str
    experts: frozenset[str]
    layers: int
    undecayed: frozenset[str]
    tied: bool


@cache
def plain(architecture: str, *, scores: bool) -> Plain:
    """The tiny model of an architecture as the table uses it, without weights."""
    config = make_config(architecture, **changes(architecture))
    with zero.no_partitioning(), no_init_weights(), torch.device("meta"):
        if scores:
            config.num_labels = 1
            make_reward_models(config)
            model = AutoModelForSequenceClassification.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    head = "score" if scores else "lm_head"
    names = frozenset(name for name, _ in model.named_parameters())
    modules = dict(model.named_modules())
    norms = {name for name, module in modules.items() if "norm" in type(module).__name__.lower()}
    return Plain(
        parameters=names,
        linears=frozenset(
            name for name, module in modules.items() if isinstance(module, torch.nn.Linear) and name != head
        ),
        head=head,
        experts=frozenset(name for name in modules if name.endswith(".experts")),
        layers=config.num_hidden_layers,
        undecayed=frozenset(n for n in names if n.endswith(".bias") or n.rpartition(".")[0] in norms),
        tied=not scores and f"{head}.weight" not in names,
    )


def changes(architecture: str) -> dict[str, int]:
    """What `make_model` gets, so that the model can be quantised."""
    config = make_config(architecture)
    # With latent attention, heads are made of parts that have sizes of their own.
    own = {"head_dim"} if hasattr(config, "qk_rope_head_dim") else set()
    return {n: value for n, value in DIVISIBLE.items() if n not in own and isinstance(getattr(config, n, None), int)}
