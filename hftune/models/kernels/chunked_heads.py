"""A head's products a chunk of hidden states at a time, with their gradients: what all losses over a vocabulary share.

What a loss says of a token depends on one hidden state only, so its gradient there is known as soon as the token's
logits are: they exist once, for one chunk (the idea is Liger's, arXiv:2410.10989, section 3.2). Behind a frozen head
(LoRA) the backward pass merely scales it. A head that is trained gets its own gradient in the same chunk where the
factor of each token in the loss is known beforehand; else it recomputes its chunks in the backward pass, unless they
are small enough to be kept. TRL's `ChunkedLogProbFunction`, which projects again in the backward pass and folds tiles
of the vocabulary, takes 2 to 4 times as long on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

from hftune.compat.installing import replace_method
from hftune.distributed import ranks, zero

CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**28}
"""Float32 logits of a chunk: small enough for the caches of a CPU, large enough to keep a GPU busy."""

KEPT_BYTES = 2**28
"""Float32 logits that a trained head may keep for the backward pass instead of computing them again."""

Columns = tuple[torch.Tensor, ...]
"""Of some tokens, (tokens,) each: of these the first has a gradient."""

Score = Callable[[torch.Tensor, slice | None], Columns]
"""From what the head gives of a chunk, (tokens, vocabulary), and which tokens these are; None: one that is made up."""


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
    """The columns of all tokens, from hidden states (tokens, size).

    Args:
        factors: (tokens,), float32: then the sum of factor times first column comes before the columns, a scalar that
            has the gradient in their place.
        others: Heads that `score` calls as well.
        several: Whether further columns have a gradient.
    """
    by_module = several or not is_plain(head) or any(map(zero.is_any_partitioned, others))
    if by_module or (factors is None and is_trained(head) and torch.is_grad_enabled()):
        found, nothing = through_module(head, hidden, lambda part, rows: score(head(part), rows), *others)
        first, *rest = _joined(found, len(hidden))
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
        to_hidden, to_weight, to_bias = new_gradients(hidden, weight, bias, wanted)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        dtype = product_dtype(weight)
        weight, bias = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        # 16 bits hold shares of the largest factor; one over all tokens of a batch might be too small for them.
        largest = None if factors is None else factors.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        found: list[Columns] = []
        with in_float32(hidden.device):
            for rows in chunk_slices(hidden, len(weight)):
                part = hidden[rows].detach().to(dtype)
                columns, slope = _scored(part, weight, bias, rows, score, learns=any(wanted))
                found.append(columns)
                if slope is not None and to_hidden is not None:
                    to_hidden[rows] = slope @ weight
                if slope is not None and factors is not None and largest is not None:
                    by = factors[rows] / largest
                    if to_weight is not None:
                        add_product(to_weight, slope, (part * by[:, None]).to(dtype))
                    if to_bias is not None:
                        to_bias.addmv_(slope.float().T, by)
                del slope  # before the next chunk's logits
            found = found or [score(weight.new_zeros(1, len(weight)), None)]
        ctx.gradients = (to_hidden, to_weight, to_bias)
        ctx.save_for_backward(factors, largest)
        first, *rest = _joined(found, len(hidden))
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


def _joined(found: list[Columns], tokens: int) -> Columns:
    return tuple(torch.cat(column)[:tokens] for column in zip(*found, strict=True))


def is_plain(head: torch.nn.Module) -> bool:
    """Whether it is a projection and nothing else."""
    return type(head) is torch.nn.Linear


def is_trained(head: torch.nn.Module) -> bool:
    """Whether a weight of the head gets gradients."""
    return any(parameter.requires_grad for parameter in head.parameters())


def _teach_head(head: Any) -> None:
    """Have a plain head go through chunks in its forward pass where it is asked to, as ZeRO-3 needs it."""
    if getattr(head, "scores_answers", False):
        return
    original: Callable[[torch.Tensor], torch.Tensor] = head.forward

    def forward(self: torch.nn.Linear, hidden: torch.Tensor, chunked: tuple[Any, ...] = ()) -> Any:
        return _Chunked.apply(hidden, self.weight, self.bias, *chunked) if chunked else original(hidden)

    replace_method(head, "forward", forward)
    head.scores_answers = True


def chunk_slices(hidden: torch.Tensor, vocabulary: int) -> list[slice]:
    """Chunks of hidden states (tokens, size): as few as may be, of nearly the same length."""
    most = max(1, CHUNK_BYTES.get(hidden.device.type, 2**28) // (4 * vocabulary))
    chunks = -(-len(hidden) // most)
    length = -(-len(hidden) // chunks) if chunks else 1
    return [slice(start, start + length) for start in range(0, len(hidden), length)]


def product_dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype in which the projection is computed: that of autocast, where it is on."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def in_float32(device: torch.device) -> torch.autocast:
    """Inside, products of float32 are computed as such, autocast or not, as sums over a vocabulary need it."""
    return torch.autocast(device.type, enabled=False)


def new_gradients(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients to be filled of hidden states, weight and bias, where each is wanted: the last two zeros, to add to."""
    # Sums over several chunks want more than 16 bits.
    exact = torch.float32 if len(chunk_slices(hidden, weight.shape[0])) > 1 else weight.dtype
    return (
        torch.empty_like(hidden) if wanted[0] else None,
        torch.zeros_like(weight, dtype=exact) if wanted[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wanted[2] else None,
    )


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, alpha: float = 1.0) -> None:
    """Add alpha times the transposed `left` (tokens, rows) times `right` (tokens, columns), in place."""
    if total.dtype == right.dtype:
        total.addmm_(left.T, right, alpha=alpha)
    else:
        total.add_(left.T @ right, alpha=alpha)


def through_module(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    score: Callable[[torch.Tensor, slice | None], Columns],
    *others: torch.nn.Module,
) -> tuple[list[Columns], torch.Tensor | float]:
    """Columns of each chunk of hidden states (tokens, size), and 0 with a gradient for chunks that only others have.

    Args:
        score: Calls the head with a chunk, which is of the given tokens, or is made up (None).
        others: Heads that `score` gathers as well.
    """
    # A head that peft has wrapped may not say its size: 65536 rows are assumed, which only decides how long chunks are.
    vocabulary = int(getattr(head, "out_features", 0) or 2**16)
    # Without a token of its own a process calls the head all the same: reducing its gradient is collective.
    most = max(len(hidden), 1)
    if any(map(zero.is_any_partitioned, (head, *others))):
        # Each call gathers weights, and each backward pass of one: all processes need as many.
        most = ranks.max_over_ranks(most)
    # Logits of a trained head are kept where they are small, since computing them twice is half of the work again.
    again = torch.is_grad_enabled() and 4 * most * vocabulary > KEPT_BYTES
    chunks = -(-most // max(1, CHUNK_BYTES.get(hidden.device.type, 2**28) // (4 * vocabulary)))
    found: list[Columns] = []
    nothing: torch.Tensor | float = 0.0
    start = 0
    for part in hidden.tensor_split(chunks):
        rows = slice(start, start := start + len(part)) if len(part) else None
        if rows is None:
            # Zeros that lead to the model: its own weights wait for a gradient, and without one ZeRO-3 has no moment in
            # the backward pass to give the head's away again.
            part = hidden[:0].sum(dim=0, keepdim=True)
        columns = checkpoint(score, part, rows, use_reentrant=False) if again else score(part, rows)
        found.append(columns if rows is not None else tuple(column[:0] for column in columns))
        if rows is None:
            # Times 0, so that the backward pass of this process has as many calls of the head as that of the others.
            nothing = nothing + 0.0 * columns[0].sum()
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
        scale = next(
            (
                value
                for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")
                if (value := getattr(text, name, None)) is not None
            ),
            None,
        )
        # Granite divides by `logits_scaling`; HyperCLOVA X multiplies by the field of that name.
        divisor = getattr(text, "logits_scaling", None)
        if scale is None and divisor is not None:
            scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
        # MiniCPM and Inkling divide their states, before a head without a bias.
        if scale is None and getattr(text, "dim_model_base", None):
            scale = text.dim_model_base / text.hidden_size
        if scale is None and getattr(text, "logits_mup_width_multiplier", None):
            scale = 1 / text.logits_mup_width_multiplier
        return cls(1.0 if scale is None else float(scale), getattr(text, "final_logit_softcapping", None))

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of the model from those of its head, float32, of any shape."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1.0 else logits / self.temperature


def answer_log_probs(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    *,
    entropy_learns: bool = False,
) -> Columns:
    """From hidden states (tokens, size) and targets (tokens,) to the first columns of `AnswerOutput`.

    Args:
        detail: 0 log-probabilities alone, 1 entropy and `is_top1` as well, 2 all.
        entropy_learns: Whether the entropy has a gradient, as the log-probability has it.
    """
    score = _answer_score(targets, shape, detail, entropy_learns=entropy_learns)
    log_probs, _, *rest = through_head(head, hidden, score, several=entropy_learns)
    return log_probs, *rest


def weighted_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor,
    *,
    dft: bool = False,
) -> tuple[torch.Tensor, Columns]:
    """-sum of factor * log_prob, a float32 scalar, and the columns without a gradient.

    Args:
        factors: (tokens,), float32.
        dft: Scale each by its token's probability, held constant (arXiv:2508.05629).
    """
    loss, _, *columns = through_head(head, hidden, _answer_score(targets, shape, detail, dft=dft), -factors)
    return loss, tuple(columns)


def _answer_score(
    targets: torch.Tensor, shape: LogitShape, detail: int, *, dft: bool = False, entropy_learns: bool = False
) -> Score:
    """What is minimised of each token, its log-probability without a gradient, and what else is asked for."""

    def score(raw: torch.Tensor, rows: slice | None) -> Columns:
        ids = targets.new_zeros(1) if rows is None else targets[rows]
        logits = shape(raw)
        every = logits.log_softmax(dim=1)
        own = every.gather(1, ids[:, None]).squeeze(1)
        value = own * own.detach().exp() if dft else own
        with in_float32(raw.device):
            columns = _measured(logits.detach(), every if entropy_learns else every.detach(), ids, detail)
        return value, own.detach(), *columns

    return score


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
