"""The work of a micro step, read from a run's arguments: rows, tokens, dtypes, head, reference, generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.models.loading.build import weight_dtype
from hftune.models.loading.config import row_length
from hftune.preflight.memory import Setup, packed_linears

FULL_LOGITS, ANSWERS, WEIGHTED, SCORE = "full logits", "answers", "weighted", "score"

PROMPT = 512
"""Tokens of a prompt where nothing bounds them: as TRL's GRPO had until it left prompts whole."""


@dataclass(frozen=True)
class Generation:
    """Completions that are sampled before they are trained on.

    Args:
        rows: At a time in a process.
        prompt: Tokens before them.
        tokens: The most of a completion.
    """

    rows: int
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Work:
    """A micro step of one process.

    Args:
        examples: `--per_device_train_batch_size`.
        rows: That the model sees; a pair has two.
        tokens: In a row, at most.
        flat: All rows go through the model as a single one, without padding.
        masked: The attention gets a mask of tokens by tokens.
        head: `FULL_LOGITS`, `ANSWERS`, `WEIGHTED` (with a loss known beforehand) or `SCORE`.
        reference: A forward pass of the reference runs while the policy's activations are kept.
        generation: Of RL.
        accumulation: Micro steps a step.
        length_known: Whether something bounds the rows.
    """

    examples: int
    rows: int
    tokens: int
    flat: bool
    masked: bool
    head: str
    reference: bool = False
    generation: Generation | None = None
    accumulation: int = 1
    length_known: bool = True

    @property
    def tokens_per_micro_step(self) -> int:
        """The tokens of one process, padding included."""
        return self.rows * self.tokens

    @property
    def scored_tokens(self) -> int:
        """Those of them that the head sees: of drawn answers alone, where hftune's head scores them."""
        if self.generation is None or self.head != ANSWERS:
            return self.tokens_per_micro_step
        return self.rows * self.generation.tokens

    def with_examples(self, examples: int) -> Work:
        """The same global batch in micro steps of another size, which must divide this one."""
        factor = self.examples // examples
        fewer = self.rows // factor
        # What is generated stays: it is sampled for the whole global batch at once, whatever the micro steps.
        return replace(
            self,
            examples=examples,
            rows=fewer,
            # A single row has no padding, and needs no mask.
            masked=self.masked and (fewer > 1 or self.flat),
            accumulation=self.accumulation * factor,
        )


def work_of(training_args: StageArguments, attention: str, *, adapted: bool) -> Work:
    """The micro step that the arguments ask for.

    Args:
        attention: The implementation that will be used.
        adapted: Whether an adapter is trained.
    """
    examples = training_args.per_device_train_batch_size
    length = row_length(training_args)
    generation = _generation(training_args)
    if generation is not None:
        length = generation.prompt + generation.tokens
    rows = examples * training_args.rows_per_record
    flat = training_args.flat_batches
    return Work(
        examples=examples,
        rows=rows,
        tokens=length or getattr(training_args, "max_length", None) or 1024,  # what TRL would bound rows by
        flat=flat,
        # Padded rows, or documents in a row that plain SDPA keeps apart. Without a mask SDPA takes causal as a word.
        masked=attention == "eager" or (attention == "sdpa" and (flat or rows > 1)),
        head=_head(training_args),
        reference=compares_while_training(training_args, adapted=adapted),
        generation=generation,
        accumulation=training_args.gradient_accumulation_steps,
        length_known=length is not None,
    )


def _head(training_args: StageArguments) -> str:
    # By what arguments have, not by their classes: those of other stages bring TRL's trainers with them.
    if training_args.scores:
        return SCORE
    if hasattr(training_args, "rl_algorithm") or hasattr(training_args, "needs_reference"):
        return ANSWERS
    smoothed = isinstance(training_args, PTArguments | SFTArguments) and training_args.label_smoothing_factor
    return FULL_LOGITS if smoothed else WEIGHTED  # in distillation the loss is known beforehand, too


def _generation(training_args: StageArguments) -> Generation | None:
    args: Any = training_args
    if not hasattr(args, "rl_algorithm"):
        return None
    # As TRL fills it in: completions for one whole optimizer step.
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    return Generation(
        rows=args.per_device_train_batch_size * steps,
        prompt=args.max_prompt_length or PROMPT,
        # None leaves it to the model's config, which allows far more than answers have.
        tokens=args.max_completion_length or 256,
    )


def compares_while_training(training_args: StageArguments, *, adapted: bool) -> bool:
    """Whether a forward pass of the reference runs alongside the policy's, and not once before training.

    Args:
        adapted: Whether an adapter is trained: switched off it is the reference; left open, records that are seen once
            are then compared as they come, and others before.
    """
    args: Any = training_args
    if not getattr(args, "needs_reference", False):
        return False
    asked = args.precompute_ref_log_probs
    # Computing all of the reference beforehand pays only where records are seen more than once.
    once = args.max_steps > 0 or args.num_train_epochs <= 1
    return bool(args.sync_ref_model or asked is False or (asked is None and adapted and once))


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
        packed = {id(linear.weight) for linear in packed_linears(model)}

        def dtype(name: str, parameter: torch.Tensor) -> torch.dtype:
            if self.adapter_float32 and parameter.requires_grad:
                return torch.float32
            if self.packed is None:
                return self.weights
            # Low-rank matrices are linears as well, but peft adds them after the base was quantised.
            return self.packed if id(parameter) in packed and "lora_" not in name else self.spare

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
    in_float32 = setup.adapter_bytes is not None
    return Numerics(dtype, dtype if quantised else None, torch.float32, in_float32, autocast=half)
