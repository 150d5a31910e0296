"""The work of a stage in a micro step, read from its arguments: rows, tokens, head, reference, generation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hftune.arguments.preference import DPOArguments, RMArguments
from hftune.arguments.rl_algorithms import RLFields
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.models.loading.config import row_length

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
        separate_reference: One runs, while none are.
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
    separate_reference: bool = False
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
        generation = self.generation  # sampled for the whole global batch at once, whatever the micro steps
        return replace(
            self,
            examples=examples,
            rows=fewer,
            # A single row has no padding, and needs no mask.
            masked=self.masked and (fewer > 1 or self.flat),
            accumulation=self.accumulation * factor,
            generation=generation,
        )


def work_of(training_args: StageArguments, attention: str, *, adapted: bool) -> Work:
    """The micro step that the arguments ask for.

    Args:
        attention: The implementation that will be used.
        adapted: Whether an adapter is trained.
    """
    examples, pairs = training_args.per_device_train_batch_size, isinstance(training_args, DPOArguments | RMArguments)
    length = row_length(training_args)
    generation = _generation(training_args)
    if generation is not None:
        length = generation.prompt + generation.tokens
    rows = examples * (2 if pairs else 1)
    flat = training_args.flat_batches
    return Work(
        examples=examples,
        rows=rows,
        tokens=length or _model_max(training_args),
        flat=flat,
        # Padded rows, or documents in a row that plain SDPA keeps apart. Without a mask SDPA takes causal as a word.
        masked=attention == "eager" or (attention == "sdpa" and (flat or rows > 1)),
        head=_head(training_args),
        reference=compares_while_training(training_args, adapted=adapted),
        # TRL scores completions by the reference before it trains on them, and not at all without a KL penalty.
        separate_reference=generation is not None and bool(training_args.beta),
        generation=generation,
        accumulation=training_args.gradient_accumulation_steps,
        length_known=length is not None,
    )


def _head(training_args: StageArguments) -> str:
    if isinstance(training_args, RMArguments):
        return SCORE
    if isinstance(training_args, DPOArguments):
        return ANSWERS
    if isinstance(training_args, PTArguments | SFTArguments):
        return FULL_LOGITS if training_args.label_smoothing_factor else WEIGHTED
    # In distillation the loss is known beforehand, too.
    return ANSWERS if isinstance(training_args, RLFields) else WEIGHTED


def _generation(training_args: StageArguments) -> Generation | None:
    if not isinstance(training_args, RLFields):
        return None
    args: Any = training_args  # with TRL's config
    # As TRL fills it in: completions for one whole optimizer step.
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    return Generation(
        rows=args.per_device_train_batch_size * steps,
        prompt=args.max_prompt_length or PROMPT,
        # None leaves it to the model's config, which allows far more than answers have: 256 as
        # `activations.COMPLETION`.
        tokens=args.max_completion_length or 256,
    )


def _model_max(training_args: StageArguments) -> int:
    """The length to plan with if nothing bounds rows: what TRL would bound them by."""
    return int(getattr(training_args, "max_length", None) or 1024)


def compares_while_training(training_args: StageArguments, *, adapted: bool) -> bool:
    """Whether a forward pass of the reference runs alongside the policy's, and not once before training.

    Args:
        adapted: Whether an adapter is trained: switched off it is the reference; left open, records that are seen once
            are then compared as they come, and others before.
    """
    if not isinstance(training_args, DPOArguments) or not training_args.needs_reference:
        return False
    asked = training_args.precompute_ref_log_probs
    # Computing all of the reference beforehand pays only where records are seen more than once.
    once = training_args.max_steps > 0 or training_args.num_train_epochs <= 1
    return bool(training_args.sync_ref_model or asked is False or (asked is None and adapted and once))
