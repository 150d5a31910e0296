"""Which words inherited arguments take: upstream says so in its help, and finds out in the middle of a run."""

from __future__ import annotations

# With another loss it would do nothing, so a rule refuses it there.
SMOOTHED = frozenset(
    ["sigmoid", "sigmoid_norm", "exo_pair", "robust", "aot", "aot_unpaired", "dpop", "simpo", "cpo", "cpo_simpo"],
)
"""Losses that `--label_smoothing` changes."""

UNPAIRED = frozenset(("kto", "apo_zero_unpaired"))
"""Losses of single answers with a label."""

_EVERYWHERE = {
    "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite"),
}
_CACHES: tuple[str, ...] = ("dynamic", "static", "offloaded", "offloaded_static", "quantized", "paged")
# Older names of the others, which transformers still takes.
_CACHES += ("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked")
_OF_STAGE: dict[str, dict[str, tuple[str, ...]]] = {
    "distill": {"cache_implementation": _CACHES},
    "dpo": {"f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")},
    "rl": {
        "cache_implementation": _CACHES,
        "importance_sampling_level": ("token", "sequence"),
        "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        # The last two are older names of the first and the third.
        "scale_rewards": ("group", "batch", "none", "True", "False"),
    },
}

JSON_OBJECTS = ("generation_kwargs", "transformers_continuous_batching_config")
"""Texts that upstream takes for an object of JSON if they begin like one."""


def choices_of(stage: str) -> dict[str, tuple[str, ...]]:
    """The words that arguments of a stage take, by their names (TRL 1.16, transformers 5.23, torch 2.13)."""
    return _EVERYWHERE | _OF_STAGE.get(stage, {})
