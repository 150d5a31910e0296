"""The dtypes in which a run keeps and computes, as far as memory depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.models.loading.dtype import weight_dtype
from hftune.preflight.memory import Setup


@dataclass(frozen=True)
class Numerics:
    """Dtypes of a run.

    Args:
        weights: Of the base, or of the whole model in full training.
        packed: That packed linear layers are unpacked to; None where the base is not quantised.
        spare: Of a quantised base's other weights.
        adapter_float32: Whether an adapter is kept in float32 next to a base in 16 bit.
        autocast: What is computed in where weights have another dtype; None without autocast.
    """

    weights: torch.dtype
    packed: torch.dtype | None
    spare: torch.dtype
    adapter_float32: bool
    autocast: torch.dtype | None

    @property
    def compute(self) -> torch.dtype:
        """The dtype in which matrices are multiplied."""
        return self.autocast or self.weights

    @property
    def head(self) -> torch.dtype:
        """The dtype of the head's weights, which are never quantised."""
        return self.spare if self.packed is not None else self.weights

    def of(self, model: nn.Module) -> Callable[[str, torch.Tensor], torch.dtype]:
        """A function from a parameter of `model` (its name and tensor) to the dtype it has in the run."""
        names = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        # transformers leaves output embeddings whole when it quantises; `score` is a reward model's, `embed_out`
        # GPT-NeoX's.
        heads = ("lm_head", "score", "embed_out")
        # Low-rank matrices are linears as well, but peft adds them after the base was quantised.
        owners = {f"{name}.weight" for name in names if name.rsplit(".", 1)[-1] not in heads and "lora_" not in name}

        def dtype(name: str, parameter: torch.Tensor) -> torch.dtype:
            if self.adapter_float32 and parameter.requires_grad:
                return torch.float32
            if self.packed is None:
                return self.weights
            return self.packed if name in owners else self.spare

        return dtype


def numerics_of(
    model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments, setup: Setup
) -> Numerics:
    """The dtypes of a run."""
    half = torch.bfloat16 if training_args.bf16 else torch.float16 if training_args.fp16 else None
    dtype = weight_dtype(model_args, training_args, trains_all=not adapter_args.use_peft)
    quantised = adapter_args.quantised
    # DeepSpeed casts the whole model, an adapter and a base's norms included, to the dtype it computes in.
    if setup.deepspeed and half is not None:
        return Numerics(half, half if quantised else None, half, adapter_float32=False, autocast=None)
    # Under ZeRO-3 an adapter has the base's dtype, or could not be gathered with it.
    in_float32 = adapter_args.use_peft and (quantised or setup.zero_stage != 3)
    return Numerics(dtype, dtype if quantised else None, torch.float32, in_float32, autocast=half)
