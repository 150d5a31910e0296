"""The proof, before the first step, that what shares a row is scored as if it stood alone.

One comparison, `assert_same_scores`, for all stages: documents of a row with another document before them, and the
answers of pairs and of RL in the layout of the run with the same answers in rows of their own. Whatever stands between
the borders and the softmax (a model's own mask, a kernel, a patch) is covered: a rule about names would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import FlatCollator, sliced
from hftune.distributed import ranks, zero
from hftune.distributed.ds_config import asks_for_compiling
from hftune.errors import ArgumentError
from hftune.models.kernels.float8 import without_float8
from hftune.models.vocabulary import vocabulary_rows
from hftune.trainers.features.run import Run

Batch = dict[str, Any]

Read = Callable[[Any, Batch], torch.Tensor]
"""From model and inputs to (1, tokens, outputs)."""

Layout = Callable[[], torch.Tensor]
"""A forward pass over made-up rows in some layout, to their scores: the same numbers in the same order for each."""

LONG, SHORT = (100, 156), (8, 16)
"""Tokens of the two documents: more than a block of any kernel in all, with the border inside a block. On a CPU, where
no kernel works in blocks, a large model would take a second for the long ones."""

LONG_ANSWERS, SHORT_ANSWERS = ((60, 40, 70), (50, 90, 30)), ((9, 5, 8), (7, 10, 4))
"""Likewise a prompt and its two answers, twice."""

TOLERANCE = 0.02
"""How far logits may move, as a share of the largest one. A mask that leaks moves them by 0.1 to 1.5 (measured on
SmolLM2 and random models); bf16 rounds to 0.004, where the order of sums depends on the other document at all."""

EXACT = 0.002
"""In float32 throughout on a CPU, where only the order of sums can differ. A mixture of experts adds others' tokens to
a product and moves by less than a millionth."""

INT8 = 0.06
"""For a base in LLM.int8(), which computes columns with outliers separately, whichever document has them: SmolLM2's
logits moved by 0.04."""

OF_ANSWERS = 0.05
"""How far log-probabilities may move. A mask that leaks moves them by 0.2 and more; bf16 rounds to less than 0.01."""


@torch.no_grad()
def assert_same_scores(model: Any, here: Layout, there: Layout, tolerance: float, problem: ArgumentError) -> None:
    """Compare what a model says in two layouts; every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        here, there: The two layouts.
        tolerance: How far they may be apart, as a share of the first one's largest number.

    Raises:
        ArgumentError: `problem`, where they differ by more.
    """
    was_training = model.training
    model.eval()  # dropout would move the scores, too
    first, second = here().float(), there().float()
    model.train(was_training)
    # ZeRO-3 has noted in which order these passes used the modules; training would prefetch by it.
    zero.reset_fetch_order(model)
    if float((first - second).abs().max() / first.abs().max().clamp(min=1e-6)) > tolerance:
        raise problem


def prove_rows_isolated(run: Run, model: Any, read: Read | None = None) -> None:
    """Show that documents in a row of a run do not see each other; every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        read: None: the model's logits, put together where processes share a row.

    Raises:
        ArgumentError: They do.
    """
    args = run.args
    if read is None and run.sequence_group is not None:
        read = partial(_logits_of_whole_row, run.sequence_group)
    prove = partial(
        prove_isolation,
        model,
        vocabulary_rows(run.model),
        run.model.config._attn_implementation,
        args.device,
        read,
        autocast=args.bf16 or args.fp16,
    )
    with uncompiled_and_unrounded(run.model, args):
        prove_on_all(prove)


def prove_answers_isolated(run: Run, model: Any, here: Layout, alone: Layout, *, place: str, fix: str) -> None:
    """Show that answers of a run are scored as if each stood alone behind its prompt; every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        here, alone: Made-up answers in the layout of this run, and in rows of one answer each, which no other reaches.
        place, fix: For the message.

    Raises:
        ArgumentError: They are not.
    """
    cause = "answers in a row are not scored as if they stood alone: this model or attention mixes them up"
    problem = ArgumentError(cause, place=place, fix=fix)
    prove = partial(assert_same_scores, model, here, alone, OF_ANSWERS, problem)
    with run.compute_loss_context_manager(), uncompiled_and_unrounded(run.model, run.args):
        prove_on_all(prove)


def prove_on_all(prove: Callable[[], object]) -> None:
    """Prove that documents are kept apart; where one process finds that they are not, all stop.

    Args:
        prove: Raises ArgumentError where documents see each other; a collective.

    Raises:
        ArgumentError: They do.
    """
    problem = None
    try:
        prove()
    except ArgumentError as error:
        problem = error
    if not ranks.all_agree(problem is None):
        raise problem or ArgumentError(
            "documents in a row see each other on another process",
            place="--packing",
            fix="See what that process says, or train without --packing (for text: --packing False).",
        )


@contextmanager
def uncompiled_and_unrounded(model: nn.Module, args: Any) -> Iterator[None]:
    """For a proof: inside, nothing is compiled for its odd lengths, and FP8 does not round one document by another.

    A kernel that is compiled by itself (flex_attention) is, and DeepCompile's model cannot run otherwise.

    Args:
        args: Those of the run.
    """
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    deep = args.ds_resolved is not None and asks_for_compiling(args.ds_resolved)
    # A compiled model would be compiled again for two more lengths, which costs minutes.
    eagerly = args.torch_compile and not deep and attention != "flex_attention"
    with without_float8(model), torch.compiler.set_stance("force_eager") if eagerly else nullcontext():
        yield


def prove_isolation(
    model: Any,
    vocabulary: int,
    attention: str | None,
    device: torch.device,
    read: Read | None = None,
    autocast: bool = True,
) -> None:
    """Change the first of two documents in a row, and compare what the model says of the second.

    It costs two forward passes of 256 tokens a run, of 24 on a CPU. Every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        vocabulary: Token ids from 0 to below this are used.
        read: None: the model's logits.
        autocast: Whether it may compute in 16 bits, whatever its parameters are in.

    Raises:
        ArgumentError: The second document noticed.
    """
    on_cpu = device.type == "cpu"
    lengths = SHORT if on_cpu and attention != "flex_attention" else LONG
    # The first document's tokens: every one, then every seventh of the vocabulary.
    before, after = (
        partial(_logits_of_second, model, vocabulary, step, device, read or _logits, lengths) for step in (1, 7)
    )
    problem = ArgumentError(
        f"documents in a row see each other in {type(_inner(model)).__name__} with attention {attention}",
        place="--packing / --padding_free / --attn_implementation",
        fix="use --attn_implementation hftune_segments, or train without --packing (for text: --packing False)",
    )
    assert_same_scores(model, before, after, logit_tolerance(model, exact=on_cpu and not autocast), problem)


def logit_tolerance(model: Any, *, exact: bool) -> float:
    """How far a model's logits may move, as a share of the largest one.

    Args:
        model: As it is trained, an engine or a wrapper included.
        exact: Whether what it computes on and in rounds no more than its parameters do.
    """
    model = _inner(model)
    if getattr(model, "is_loaded_in_8bit", False):
        return INT8
    exact = exact and all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return EXACT if exact else TOLERANCE


def _logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(**inputs).logits
    return logits


def _logits_of_whole_row(group: Any, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The logits (1, tokens, vocabulary) of a row that a group of processes shares, on each of them."""
    ids = inputs["input_ids"]
    # Slices have labels; these are ignored.
    own = sliced({**inputs, "labels": torch.full_like(ids, -100)}, group.slice_of, group.size)
    del own["labels"], own["shift_labels"]
    whole: torch.Tensor = group.whole(model(**own).logits, ids.shape[1])
    return whole


def _logits_of_second(
    model: Any, vocabulary: int, step: int, device: torch.device, read: Read, lengths: tuple[int, int]
) -> torch.Tensor:
    first, second = (_tokens(length, by, vocabulary) for length, by in zip(lengths, (step, 5), strict=True))
    batch = FlatCollator()([{"input_ids": ids, "labels": ids} for ids in (first, second)])
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    del inputs["labels"]
    return read(model, inputs)[0, lengths[0] :]


def _tokens(length: int, step: int, vocabulary: int) -> list[int]:
    """Made-up tokens, from the middle of the vocabulary: its ends hold placeholders, for images and the like."""
    return [(vocabulary // 3 + step * place) % vocabulary for place in range(length)]


def made_up_answers(vocabulary: int, device: torch.device) -> list[list[list[int]]]:
    """Two prompts with two answers each."""
    lengths = SHORT_ANSWERS if device.type == "cpu" else LONG_ANSWERS
    return [
        [_tokens(length, 3 + 4 * number + 2 * place, vocabulary) for place, length in enumerate(each)]
        for number, each in enumerate(lengths)
    ]


def padded_answers(vocabulary: int, device: torch.device) -> dict[str, torch.Tensor]:
    """`made_up_answers` as a batch, (answers, tokens), padded as TRL's are."""
    made = made_up_answers(vocabulary, device)
    left = max(len(prompt) for prompt, *_ in made)
    right = max(len(answer) for _, *answers in made for answer in answers)
    rows = []
    for prompt, *answers in made:
        for answer in answers:
            before, after = left - len(prompt), right - len(answer)
            seen = [0] * before + [1] * (len(prompt) + len(answer)) + [0] * after
            rows.append(([0] * before + prompt + answer + [0] * after, seen))
    input_ids, mask = (torch.tensor(column, device=device) for column in zip(*rows, strict=True))
    labels = input_ids.masked_fill(mask == 0, IGNORE_INDEX)
    labels[:, :left] = IGNORE_INDEX
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def _inner(model: Any) -> Any:
    """The model inside an engine, a wrapper or an adapter."""
    inner = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
