"""Losses of reward models, as pure functions of scores.

Scores are unbounded: s(answer) is the log-odds that an answer is preferred, up to a constant. All functions return one
loss a pair or step, float32, and leave the mean to the caller.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


def bradley_terry(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    *,
    margin: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Negative log-likelihood that the chosen answer wins, in nats.

    -w [(1 - e) log p + e log(1 - p)] with p = sigmoid(chosen - rejected - m): Bradley-Terry as in arXiv:2203.02155,
    equation 1; margin m as in Llama 2 (arXiv:2307.09288, equation 2); weight w as "scaled Bradley-Terry" of HelpSteer2
    (arXiv:2410.01257); label smoothing e, the share of pairs that are the wrong way round, as in
    arXiv:2401.06080.

    Args:
        chosen: Scores of the better answers, (pairs,).
        rejected: Scores of the worse answers, (pairs,).
        margin: How far apart the scores shall be, (pairs,); None: 0.
        weight: How much a pair counts, (pairs,), not negative; None: 1.
        label_smoothing: e, from 0 to below 0.5.

    Returns:
        (pairs,), float32.
    """
    distance = chosen.float() - rejected.float()
    if margin is not None:
        distance = distance - margin.float()
    losses = -(1 - label_smoothing) * logsigmoid(distance)
    # Left out at 0: the loss is the paper's then, to the bit.
    if label_smoothing:
        losses = losses - label_smoothing * logsigmoid(-distance)
    return losses if weight is None else losses * weight.float()


def centring(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """(chosen + rejected)^2, which keeps the scores of a pair around zero (arXiv:2312.09244).

    Args:
        chosen: (pairs,)
        rejected: (pairs,)

    Returns:
        (pairs,), float32, before its coefficient.
    """
    return (chosen.float() + rejected.float()).square()


def step_loss(logits: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Cross entropy of the two classes of a step, in nats: -[y log p + (1 - y) log(1 - p)], p the share of "right".

    Hard labels as in arXiv:2305.20050, soft ones as in Math-Shepherd (arXiv:2312.08935).

    Args:
        logits: (steps, 2), of the classes wrong and right.
        labels: (steps,), the probability that a step is right: 0, 1, or between.
        label_smoothing: e: labels become (1 - e) y + e (1 - y).

    Returns:
        (steps,), float32.
    """
    # The log-odds of "right": two classes need no softmax.
    distance = logits[:, 1].float() - logits[:, 0].float()
    right = labels.float() * (1 - label_smoothing) + (1 - labels.float()) * label_smoothing
    return -(right * logsigmoid(distance) + (1 - right) * logsigmoid(-distance))
