"""Log-probabilities of answers without logits of anything else, and without logits in the backward pass.

`model(..., answer_at=places, answer_ids=tokens)` runs the decoder, picks the hidden states that predict an answer's
tokens, and projects those alone, a chunk at a time. What a loss says of a token depends on one hidden state only, so
that its gradient there is known as soon as the token's logits are: they exist once, for one chunk (the idea is Liger's,
arXiv:2410.10989, section 3.2). Behind a frozen head (LoRA) the backward pass merely scales it. A head that is trained
gets its own gradient in the same chunk where the factor of each token in the loss is known beforehand; else it
recomputes its chunks in the backward pass, unless they are small enough to be kept.

TRL 1.16's `ChunkedLogProbFunction`, which projects again in the backward pass and folds tiles of the vocabulary, takes
2 to 4 times as long on a CPU, and its fused head applies the output embeddings to `base_model`'s states: in some models
that is the model itself (Llama 4), in others something comes between (BERT), or the head has a LoRA of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from hftune.compat.installing import method_replaced, replace_method
from hftune.constants import IGNORE_INDEX
from hftune.distributed import ranks, zero
from hftune.models.attention.documents import documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.attention.shared_prompts import shared_row
from hftune.models.structure import body_of

CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**28}
"""Float32 logits of a chunk: small enough for the caches of a CPU, large enough to keep a GPU busy."""

KEPT_BYTES = 2**28
"""Float32 logits that a trained head may keep for the backward pass instead of computing them again."""

FLOOR = -1e4
"""Of logits of a head that is more than a projection, which may be -inf: 0 * inf would be NaN."""

Columns = tuple[torch.Tensor, ...]
"""Of some tokens, (tokens,) each: of these the first has a gradient."""

Score = Callable[[torch.Tensor, slice], Columns]
"""From what the head gives of a chunk, (tokens, vocabulary), and which tokens these are."""

Ids = tuple[int, ...]


@torch.compiler.disable
def through_head(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    score: Score,
    factors: torch.Tensor | None = None,
    others: Sequence[torch.nn.Module] = (),
    *,
    several: bool = False,
) -> Columns:
    """The columns of all tokens, from hidden states (tokens, size) of one token at least.

    Args:
        factors: (tokens,), float32: then the sum of factor times first column comes before the columns, a scalar that
            has the gradient in their place.
        others: Heads that `score` calls as well.
        several: Whether further columns have a gradient.
    """
    by_module = several or not is_plain(head) or any(map(zero.is_any_partitioned, others))
    trained = any(parameter.requires_grad for parameter in head.parameters())
    if by_module or (factors is None and trained and torch.is_grad_enabled()):
        found, nothing = through_module(head, hidden, lambda part, rows: score(head(part), rows), *others)
        first, *rest = map(torch.cat, zip(*found, strict=True))
        if factors is None:
            return first + nothing, *rest
        return (factors * first).sum() + nothing, first.detach(), *rest
    # Called as a module, so that ZeRO-3 gathers its weight.
    _teach_head(head)
    columns: Columns = head(hidden, chunked=(score, factors, torch.is_grad_enabled()))
    return columns


class _Chunked(torch.autograd.Function):
    """`through_head` for a plain projection."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        score: Score,
        factors: torch.Tensor | None,
        learns: bool,
    ) -> Columns:
        """One chunk after the other; what the backward pass needs is as large as the hidden states and the head."""
        wanted = [learns and each for each in ctx.needs_input_grad[:3]]
        chunks = chunk_slices(hidden, len(weight))
        # Sums over several chunks want more than 16 bits.
        exact = torch.float32 if len(chunks) > 1 else weight.dtype
        to_hidden = torch.empty_like(hidden) if wanted[0] else None
        to_weight = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wanted[2] else None
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        # The projection is computed in the dtype of autocast, where it is on.
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        weight, bias = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        # 16 bits hold shares of the largest factor; one over all tokens of a batch might be too small for them.
        largest = None if factors is None else factors.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        # Allocated once: small tensors between chunks would keep glibc from using the memory of the last one again.
        found: Columns = ()
        with in_float32(hidden.device):
            for rows in chunks:
                part = hidden[rows].detach().to(dtype)
                columns, slope = _scored(part, weight, bias, rows, score, learns=any(wanted))
                found = found or tuple(each.new_empty(len(hidden)) for each in columns)
                for every, each in zip(found, columns, strict=True):
                    every[rows] = each
                if slope is not None and to_hidden is not None:
                    to_hidden[rows] = slope @ weight
                if slope is not None and factors is not None and largest is not None:
                    by = factors[rows] / largest
                    if to_weight is not None:
                        _add_product(to_weight, slope, (part * by[:, None]).to(dtype))
                    if to_bias is not None:
                        to_bias.addmv_(slope.float().T, by)
                del slope, columns  # before the next chunk's logits
        ctx.gradients = (to_hidden, to_weight, to_bias)
        ctx.save_for_backward(factors, largest)
        first, *rest = found
        ctx.mark_non_differentiable(*rest, *([] if factors is None else [first]))
        return (first, *rest) if factors is None else ((factors * first).sum(), first, *rest)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """What was found, times the gradient of the loss; once only, since it is scaled in place."""
        factors, largest = ctx.saved_tensors
        (to_hidden, *to_head), ctx.gradients = ctx.gradients, None
        if to_hidden is not None:
            to_hidden.mul_((gradient if factors is None else factors * gradient)[:, None])
        pairs = zip(to_head, ctx.dtypes, strict=True)
        scaled = (None if each is None else each.mul_(largest * gradient).to(dtype) for each, dtype in pairs)
        return to_hidden, *scaled, *[None] * 3


def _scored(
    part: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: slice, score: Score, *, learns: bool
) -> tuple[Columns, torch.Tensor | None]:
    """The columns of a chunk without a gradient, and d first column / d what the head gives, (tokens, vocabulary)."""
    with torch.enable_grad():
        raw = linear(part.requires_grad_(learns), weight, bias)
        edge = get_gradient_edge(raw) if learns else None
        first, *rest = score(raw, rows)
    # As large as a chunk may be: what the gradient needs of it is kept by the loss itself.
    del raw
    slope = None if edge is None else torch.autograd.grad(first, edge, torch.ones_like(first))[0]
    return (first.detach(), *rest), slope


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the transposed `left` (tokens, rows) times `right` (tokens, columns), in place."""
    if total.dtype == right.dtype:
        total.addmm_(left.T, right)
    else:
        total.add_(left.T @ right)


def is_plain(head: torch.nn.Module) -> bool:
    """Whether it is a projection and nothing else."""
    return type(head) is torch.nn.Linear


def _teach_head(head: Any) -> None:
    """Have a plain head go through chunks in its forward pass where it is asked to, as ZeRO-3 needs it."""
    if getattr(head, "scores_answers", False):
        return
    original: Callable[[torch.Tensor], torch.Tensor] = head.forward

    def forward(self: torch.nn.Linear, hidden: torch.Tensor, chunked: tuple[Any, ...] = ()) -> Any:
        return _Chunked.apply(hidden, self.weight, self.bias, *chunked) if chunked else original(hidden)

    replace_method(head, "forward", forward)
    head.scores_answers = True


def _chunks(tokens: int, vocabulary: int, device: torch.device) -> int:
    """Into how many chunks so many tokens are cut."""
    return -(-tokens // max(1, CHUNK_BYTES.get(device.type, 2**28) // (4 * vocabulary)))


def chunk_slices(hidden: torch.Tensor, vocabulary: int) -> list[slice]:
    """Chunks of hidden states (tokens, size): as few as may be, of nearly the same length."""
    length = -(-len(hidden) // max(1, _chunks(len(hidden), vocabulary, hidden.device)))
    return [slice(start, start + length) for start in range(0, len(hidden), length)]


def in_float32(device: torch.device) -> torch.autocast:
    """Inside, products of float32 are computed as such, autocast or not, as sums over a vocabulary need it."""
    return torch.autocast(device.type, enabled=False)


def through_module(
    head: torch.nn.Module, hidden: torch.Tensor, score: Score, *others: torch.nn.Module
) -> tuple[list[Columns], torch.Tensor | float]:
    """Columns of each chunk of hidden states (tokens, size), and 0 with a gradient for chunks that only others have.

    Args:
        score: Calls the head with a chunk, which is of the given tokens.
        others: Heads that `score` gathers as well.
    """
    # A head that peft has wrapped may not say its size: 65536 rows are assumed, which only decides how long chunks are.
    vocabulary = int(getattr(head, "out_features", 0) or 2**16)
    most = len(hidden)
    if any(map(zero.is_any_partitioned, (head, *others))):
        # Each call gathers weights, and each backward pass of one: all processes need as many.
        most = ranks.max_over_ranks(most)
    # Logits of a trained head are kept where they are small, since computing them twice is half of the work again.
    again = torch.is_grad_enabled() and 4 * most * vocabulary > KEPT_BYTES
    found: list[Columns] = []
    nothing: torch.Tensor | float = 0.0
    start = 0
    for part in hidden.tensor_split(_chunks(most, vocabulary, hidden.device)):
        rows = slice(start, start := start + len(part))
        spare = not len(part)
        if spare:  # the first token once more: what the others wait for is the call, and its gradient, which is 0
            part, rows = hidden[:1], slice(0, 1)
        columns = checkpoint(score, part, rows, use_reentrant=False) if again else score(part, rows)
        if spare:
            nothing = nothing + 0.0 * columns[0].sum()
        else:
            found.append(columns)
    return found, nothing


@dataclass(frozen=True)
class LogitShape:
    """What comes of what a head gives: scale * x, then softcap * tanh(x / softcap), then / temperature."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LogitShape:
        """From a model's config; the names are those of transformers' architectures."""
        text = config.get_text_config()
        scale, output, head, divisor, base, width, cap = (
            getattr(text, name, None)
            for name in (
                *("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling", "dim_model_base"),
                *("logits_mup_width_multiplier", "final_logit_softcapping"),
            )
        )
        if divisor:  # Granite divides by it; HyperCLOVA X multiplies by the field of that name
            divisor = divisor if text.model_type == "hyperclovax" else 1 / divisor
        # MiniCPM and Inkling divide their states, before a head without a bias.
        scales = (scale, output, head, divisor, base and base / text.hidden_size, width and 1 / width)
        return cls(next((float(one) for one in scales if one), 1.0), cap)

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of the model from those of its head, float32, of any shape."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1.0 else logits / self.temperature


OF_ANSWERS = ("log_probs", "entropy", "is_top1", "mean_logits", "log_sum_sq")
"""What is measured of each token: the first with detail 0, the first three with 1, all with 2."""

Measured = tuple[torch.Tensor | None, dict[str, torch.Tensor]]
"""The loss where factors were given, a float32 scalar, and columns of `AnswerOutput` by name."""


def answers(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor | None = None,
    *,
    dft: bool = False,
    entropy_learns: bool = False,
) -> Measured:
    """-sum of factor * log_prob, where factors are given, and `OF_ANSWERS`; log-probabilities have a gradient else.

    Args:
        hidden, targets: (tokens, size) and (tokens,).
        factors: (tokens,), float32.
        dft: Scale each by its token's probability, held constant (arXiv:2508.05629).
        entropy_learns: Whether the entropy has a gradient, as the log-probability has it.
    """

    def score(raw: torch.Tensor, rows: slice) -> Columns:
        ids, logits = targets[rows], shape(raw)
        every = logits.log_softmax(dim=1)
        own = every.gather(1, ids[:, None]).squeeze(1)
        value = own * own.detach().exp() if dft else own
        with in_float32(raw.device):
            columns = _measured(logits.detach(), every if entropy_learns else every.detach(), ids, detail)
        return value, own.detach(), *columns

    if factors is None:
        log_probs, _, *rest = through_head(head, hidden, score, several=entropy_learns)
        return None, dict(zip(OF_ANSWERS, (log_probs, *rest), strict=False))
    loss, _, *columns = through_head(head, hidden, score, -factors)
    return loss, dict(zip(OF_ANSWERS, columns, strict=False))


def _measured(logits: torch.Tensor, every: torch.Tensor, ids: torch.Tensor, detail: int) -> Columns:
    """From logits and log-probabilities, (tokens, vocabulary) each."""
    if not detail:
        return ()
    chances = every.exp()
    # Of several that are the largest, one is the most likely.
    columns = (-torch.linalg.vecdot(chances, every), every.max(dim=1).indices == ids)
    if detail == 1:
        return columns
    return (*columns, logits.mean(dim=1), torch.linalg.vecdot(chances, chances).log())


@dataclass(frozen=True)
class TeacherStates:
    """A teacher's last hidden states, and how its logits come of them.

    Args:
        hidden: (tokens, size) of the teacher.
        head: Its projection; `torch.nn.Identity` where `hidden` are logits.
        shape: What it does to logits.
        vocabulary: Rows of the head that tokens have; None: all of them.
    """

    hidden: torch.Tensor
    head: torch.nn.Module
    shape: LogitShape
    vocabulary: int | None = None

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """Modules that `at` calls."""
        return (self.head,)

    @torch.no_grad()
    def logits(self, rows: slice) -> torch.Tensor:
        """(tokens, vocabulary) of some tokens, float32, temperature 1."""
        states: Any = self.hidden[rows]
        # Called as a module, which ZeRO-3 gathers.
        raw = self.head(states.to(self.head.weight.dtype) if is_plain(self.head) else states)
        return self.shape(raw).clamp(min=FLOOR)

    def at(self, rows: slice, widest: int, temperature: float) -> torch.Tensor:
        """Log-probabilities of some tokens, over the first `widest` of the vocabulary at most."""
        return tempered(self.logits(rows)[:, : min(widest, self.vocabulary or widest)], temperature)

    def made_up(self) -> TeacherStates:
        """Of one token that a batch without labels projects all the same."""
        return replace(self, hidden=self.hidden.new_zeros(1, self.hidden.shape[1]))


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of logits, or of other log-probabilities, (tokens, vocabulary)."""
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=1)


@dataclass
class AnswerOutput(ModelOutput):
    """Of each answer token, (tokens,), in the order of `answer_ids`; only the first has a gradient.

    Args:
        log_probs: log pi(token | what is before it), nats, float32. Where there is a `loss`, that has the gradient.
        entropy: Of the distribution over the vocabulary, nats.
        is_top1: Whether the token was the most likely one, bool.
        mean_logits: Mean logit over the vocabulary.
        log_sum_sq: log of the sum of squared probabilities (WPO).
        loss: Where factors were given: -sum of factor * log_probs, a scalar. With a lesson, the sum of factor * what
            its divergence says; of the columns there are, with detail 0, `divergence` alone.
        divergence: From the teacher, nats, before the share of the label.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    is_top1: torch.Tensor | None = None
    mean_logits: torch.Tensor | None = None
    log_sum_sq: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    divergence: torch.Tensor | None = None


def add_answer_head(
    model: PreTrainedModel, temperature: float = 1.0, *, entropy_learns: bool = False, exact: bool = False
) -> None:
    """Give a model (without an adapter around it) the arguments `answer_at` and `answer_ids`, in place.

    `answer_at` (tokens,) are places in the flattened (batch * length) input whose hidden state predicts a token,
    `answer_ids` (tokens,) those tokens. Without them the model does what it did. `answer_factors` (tokens,), float32,
    ask for the loss; `answer_dft` and `answer_detail` are those of `answers`. `answer_teacher`, a `Lesson`, with
    factors has the loss be what it asks for. `answer_states` asks a teacher for its `TeacherStates` at `answer_at`,
    without a gradient.

    Args:
        temperature: What logits are divided by.
        entropy_learns: Whether entropies have a gradient where no factors are given.
        exact: Whether log-probabilities are computed in float32, outside of autocast.
    """
    original = model.forward
    own = LogitShape.of(model.config)
    known: list[bool] = []  # whether the head on the body's states gives the model's logits: tried in the first call

    @functools.wraps(type(model).forward)
    def forward(
        self: PreTrainedModel,
        *args: Any,
        answer_at: torch.Tensor | None = None,
        answer_ids: torch.Tensor | None = None,
        answer_factors: torch.Tensor | None = None,
        answer_dft: bool = False,
        answer_detail: int = 2,
        answer_teacher: Any = None,
        answer_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        if answer_at is None or (answer_ids is None and not answer_states):
            return original(*args, **kwargs)
        # A batch of this process may hold no answer. It then projects one token with factor 0, since every process has
        # to use the head: gathering it (ZeRO-3) and reducing its gradient are collective.
        none = answer_ids is not None and not len(answer_at)
        if none and answer_ids is not None:
            answer_at, answer_ids = answer_at.new_zeros(1), answer_ids.new_zeros(1)
            answer_factors = None if answer_factors is None else answer_factors.new_zeros(1)
            answer_teacher = None if answer_teacher is None else answer_teacher.made_up()
        if not known:
            known.append(_head_is_all(self, original, own))
        head, form = self.get_output_embeddings(), replace(own, temperature=temperature)
        with torch.no_grad() if answer_states else nullcontext():
            if known[0]:
                hidden = body_of(self)(*args, **{**kwargs, "use_cache": False}).last_hidden_state
            else:
                head, form = _AS_IT_IS, LogitShape(temperature=temperature)
                hidden = original(*args, **{**kwargs, "use_cache": False}).logits
            picked = hidden.reshape(-1, hidden.shape[-1]).index_select(0, answer_at)
        if answer_ids is None:
            return TeacherStates(picked, head, form)
        with in_float32(picked.device) if exact else nullcontext():
            asked = (head, picked.float() if exact else picked, answer_ids, form, answer_detail, answer_factors)
            if answer_teacher is None:
                loss, found = answers(*asked, dft=answer_dft, entropy_learns=entropy_learns)
            else:
                loss, found = answer_teacher.loss(*asked)
        return AnswerOutput(loss=loss, **{name: one[:0] if none else one for name, one in found.items()})

    replace_method(model, "forward", forward)


_AS_IT_IS = torch.nn.Identity()
"""The head where the rows are logits already."""

_PROBED = 8
"""Tokens of the trial."""

_ROUNDED = 0.02
"""How far logits may be off in 16 bits, as a share of the largest; what comes between changes them by more."""

_MISFITS = (RuntimeError, TypeError, AttributeError, LookupError, ValueError)
"""What a trial raises where something before the head takes states of another kind."""


@dataclass
class _States(BaseModelOutput):
    """What a body returns, but for anything else than its states."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _head_is_all(model: Any, original: Any, shape: LogitShape) -> bool:
    """Whether a model's logits are `shape` of its head of the last states of its body, and nothing comes between.

    A model may transform its states before the head, as BERT does, scale them, as MiniCPM3 does, or name no body. It is
    tried out on made-up states. Where that would disturb the order in which ZeRO-3 fetches weights, or a compiler, the
    structure decides: there is the head alone next to the body.
    """
    body, head = body_of(model), model.get_output_embeddings()
    if body is model or head is None:
        return False
    if torch.compiler.is_compiling() or any(map(zero.is_partitioned, model.parameters())):
        others = [child for child in model.children() if child is not body and any(True for _ in child.parameters())]
        # Rows that only fill up the head (Inkling) would count among what is predicted.
        filled = getattr(model.config.get_text_config(), "unpadded_vocab_size", None) is not None
        return len(others) == 1 and others[0] is head and not filled
    return _try_head(model, original, body, lambda states: shape(head(states)))


@torch.compiler.disable
@torch.no_grad()
def _try_head(model: Any, original: Any, body: torch.nn.Module, logits_of: Callable[[torch.Tensor], Any]) -> bool:
    try:
        with made_up_states(model, body) as (ids, states):
            logits = original(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.float()
        found = logits_of(states).float()
    except _MISFITS:
        return False
    return found.shape == logits.shape and bool((found - logits).abs().max() <= _ROUNDED * logits.abs().max())


@contextmanager
def made_up_states(model: Any, body: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """In the block the body returns made-up states (1, tokens, size) for ids (1, tokens): both are given."""
    head, ids = model.get_output_embeddings(), torch.arange(1, _PROBED + 1, device=model.device)[None]
    width = getattr(head, "in_features", None) or model.config.get_text_config().hidden_size
    # From a generator of its own: a run's random numbers stay what they are.
    drawn = torch.randn((1, _PROBED, width), generator=torch.Generator().manual_seed(0), device="cpu")
    states = drawn.to(model.device, model.dtype)
    # The body itself is not run: its layers may share rows with other processes, or ask for borders of a real row.
    with method_replaced(body, "forward", lambda *args, **kwargs: _States(last_hidden_state=states)):
        yield ids, states


@dataclass(frozen=True, eq=False)
class AnswerRows:
    """A batch for a transformer without a head, and where in it the tokens to score are.

    Args:
        inputs: What the transformer is called with.
        at: (tokens,) places in the flattened input whose states predict a token, row by row of the padded batch.
        ids: (tokens,) those tokens.
        mask: Bool (rows, tokens of a padded row - 1): where they belong.
    """

    inputs: dict[str, Any]
    at: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor

    def pick(self, states: torch.Tensor) -> torch.Tensor:
        """Those of (batch, length, size) that predict a token: (tokens, size)."""
        return states.reshape(-1, states.shape[-1]).index_select(0, self.at)

    def spread(self, column: torch.Tensor) -> torch.Tensor:
        """(tokens,) as (rows, tokens of a padded row - 1), 0 where there is nothing to score.

        Connected to the model even where no token is scored, so that every process has a gradient.
        """
        return column.new_zeros(self.mask.shape).masked_scatter(self.mask, column)


def padded_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """The batch as it is: (rows, tokens) each; labels are -100 where nothing is scored."""
    mask = labels[:, 1:] != IGNORE_INDEX
    # The state before a label predicts it; the last one of a row predicts none.
    at = torch.nn.functional.pad(mask, (0, 1)).flatten().nonzero().squeeze(1)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
    return AnswerRows(inputs, at, labels[:, 1:][mask], mask)


def shared_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """One row: a prompt, its answers, the next prompt, ...; as it is where no prompt stands before an answer.

    Each token of an answer has a label. Rows of the batch without one are left out: nothing is scored there.
    """
    padded = padded_rows(input_ids, attention_mask, labels)
    rows = _rows(input_ids, attention_mask, padded.mask)
    if not all(prompt for prompt, _ in rows.values()):
        return padded
    groups: dict[Ids, dict[int, Ids]] = {}
    for number, (prompt, answer) in rows.items():
        groups.setdefault(prompt, {})[number] = answer
    device = input_ids.device
    inputs, places = shared_row([*groups], [[*answers.values()] for answers in groups.values()], device)
    numbers = chain.from_iterable(groups.values())
    places_of = dict(zip(numbers, chain.from_iterable(places), strict=True))
    at = [place for number in rows for place in places_of[number]][: len(padded.ids)]
    return AnswerRows(inputs, torch.tensor(at, dtype=torch.long, device=device), padded.ids, padded.mask)


def _rows(input_ids: torch.Tensor, real: torch.Tensor, scored: torch.Tensor) -> dict[int, tuple[Ids, Ids]]:
    """Prompt and answer of each row that has an answer, by its number; of the first row where none has."""
    found: dict[int, tuple[Ids, Ids]] = {}
    # One copy to the host for all rows: a row is laid out in plain numbers.
    for number, (ids, seen, labelled) in enumerate(
        zip(input_ids.tolist(), real.tolist(), scored.tolist(), strict=True)
    ):
        start = labelled.index(True) + 1 if any(labelled) else len(ids)
        prompt = tuple(token for token, here in zip(ids[:start], seen, strict=False) if here)
        answer = tuple(token for token, here in zip(ids[start:], seen[start:], strict=True) if here)
        if answer:
            found[number] = prompt, answer
    # A process without an answer takes part all the same: what reduces its gradients is a collective.
    first = input_ids[0].tolist()
    return found or {0: (tuple(first[:1]), tuple(first[-1:]))}


@dataclass
class Scores(ModelOutput):
    """What TRL reads of its fused head: (batch, tokens - 1), float32, with gradients; 0 where there is no label."""

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


def add_scoring_head(
    model: Any,
    temperature: float = 1.0,
    *,
    shares_prompts: bool = False,
    trains_entropy: bool = False,
    cast_lm_head_to_fp32: bool = False,
    outputs: tuple[str, ...] = (),
) -> None:
    """Have `model(..., labels=labels, fused_lm_head=True)` return the `log_probs` that its own logits give, in place.

    Args:
        model: A causal LM, without an adapter around it.
        temperature: What logits are divided by.
        shares_prompts: Whether the model's attention knows rows in which answers share a prompt.
        trains_entropy: Whether entropies need a gradient.
        cast_lm_head_to_fp32: Whether the projection is computed in float32, outside of autocast.
        outputs: What is wanted besides, as TRL's `add_fused_lm_head` has it: "entropy".
    """
    if shares_prompts and documents_of(model) is None:  # a reference that TRL has read
        isolate_documents(model, ATTENTION)
    original = model.forward
    add_answer_head(model, temperature, entropy_learns=trains_entropy, exact=cast_lm_head_to_fp32)
    answered, detail = model.forward, int("entropy" in outputs)

    @functools.wraps(type(model).forward)  # `generate` reads the signature
    def forward(
        self: PreTrainedModel,
        *args: Any,
        fused_lm_head: bool = False,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if not fused_lm_head:
            return original(*args, **kwargs, **({} if labels is None else {"labels": labels}))
        assert labels is not None, "TRL gives them with fused_lm_head"
        rows = rows_to_score(self, kwargs.pop("input_ids"), kwargs.pop("attention_mask"), labels)
        found = answered(**rows.inputs, **kwargs, answer_at=rows.at, answer_ids=rows.ids, answer_detail=detail)
        columns = (found.log_probs, found.entropy) if detail else (found.log_probs,)
        return Scores(*(rows.spread(column) for column in columns))

    replace_method(model, "forward", forward)


def rows_to_score(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
) -> AnswerRows:
    """A padded batch as a model reads it: as it is where its attention alone does not keep answers apart."""
    documents = documents_of(model)
    if documents is None or documents.way != ATTENTION:
        return padded_rows(input_ids, attention_mask, labels)
    return shared_rows(input_ids, attention_mask, labels)
