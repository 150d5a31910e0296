"""Losses as the papers write them, in loops without hftune and without padding.

A row is a prompt and an answer, one at a time through the model; a batch is all records of a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import logsigmoid, relu
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from hftune.tools.doctor.tiny import STEPS, Figures

RATE, BETA, SMOOTHING = 1e-3, 0.1, 0.1
Rows = list[tuple[list[int], list[int]]]
"""Token ids of prompt and answer."""
END, LINE_END = "<|im_end|>", "<|im_end|>\n"
"""How an answer ends; a reward model scores the last token of the template's text, which ends its lines."""


def prompt_of(question: str) -> str:
    """ChatML up to where an answer begins."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def rows_of(records: Sequence[dict[str, Any]], tokenizer: Any, end: str = END) -> Rows:
    """Of chats one row a record; of pairs the chosen answers, then the rejected ones; of texts an empty prompt."""
    if "text" in records[0]:
        return [([], [*tokenizer(each["text"]).input_ids, tokenizer.eos_token_id]) for each in records]
    if "messages" in records[0]:
        asked = [tuple(turn["content"] for turn in each["messages"]) for each in records]
    else:
        sides = [(each, each[side]) for side in ("chosen", "rejected") for each in records]
        asked = [(each["conversations"][0]["value"], answer) for each, answer in sides]
    return [(tokenizer(prompt_of(question)).input_ids, tokenizer(answer + end).input_ids) for question, answer in asked]


def log_probs(model: Any, row: tuple[list[int], list[int]]) -> torch.Tensor:
    """(answer tokens,): log pi of each token of an answer, in the order of the row."""
    return distributions(model, row).gather(1, torch.tensor(_targets(row))[:, None])[:, 0]


def distributions(model: Any, row: tuple[list[int], list[int]]) -> torch.Tensor:
    """(answer tokens, vocabulary): log-probabilities from which each token of an answer is drawn."""
    prompt, answer = row
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    return logits[-len(answer) - 1 : -1].log_softmax(-1) if prompt else logits[:-1].log_softmax(-1)


def _targets(row: tuple[list[int], list[int]]) -> list[int]:
    prompt, answer = row
    return answer if prompt else answer[1:]  # nothing foretells the first token of a text


def trained_by_hand(model: Any, loss_of: Callable[[Any], torch.Tensor], clip: float = 1.0) -> Figures:
    """Loss and gradient norm of each step of AdamW without decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    found: Figures = {"loss": [], "grad_norm": []}
    for _ in range(STEPS):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        squares = [parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.stack(squares).sum().sqrt()
        for parameter in model.parameters():
            if parameter.grad is not None and norm > clip:
                parameter.grad *= clip / norm
        optimizer.step()
        found["loss"].append(loss.item())
        found["grad_norm"].append(norm.item())
    return found


def likelihood(start: Path, records: Sequence[dict[str, Any]], _: str) -> Figures:
    """Mean negative log-probability of all trained tokens of the batch (PT, SFT)."""
    rows = rows_of(records, AutoTokenizer.from_pretrained(start, trust_remote_code=False))

    def loss_of(model: Any) -> torch.Tensor:
        return -torch.cat([log_probs(model, row) for row in rows]).mean()

    return trained_by_hand(_causal(start), loss_of)


def rewards(start: Path, records: Sequence[dict[str, Any]], _: str) -> Figures:
    """Bradley and Terry: -log s(r(chosen) - r(rejected)), the mean over pairs."""
    rows = rows_of(records, AutoTokenizer.from_pretrained(start, trust_remote_code=False), LINE_END)

    def loss_of(model: Any) -> torch.Tensor:
        scores = torch.stack([model(torch.tensor([[*prompt, *answer]])).logits[0, 0] for prompt, answer in rows])
        chosen, rejected = scores.chunk(2)
        return -logsigmoid(chosen - rejected).mean()

    return trained_by_hand(_scoring(start), loss_of)


def preferences(start: Path, records: Sequence[dict[str, Any]], asked: str) -> Figures:
    """A loss of `PAIRS`, the mean over pairs; the reference is the model begun with, or the one of `NAME:FOLDER`."""
    name, _, other = asked.partition(":")
    rows = rows_of(records, AutoTokenizer.from_pretrained(start, trust_remote_code=False))
    reference = _causal(Path(other) if other else start)
    with torch.no_grad():
        before = torch.stack([log_probs(reference, row).sum() for row in rows])
    lengths = torch.tensor([float(len(answer)) for _, answer in rows])

    def loss_of(model: Any) -> torch.Tensor:
        now = torch.stack([log_probs(model, row).sum() for row in rows])
        return PAIRS[name](*now.chunk(2), *before.chunk(2), *lengths.chunk(2)).mean()

    return trained_by_hand(_causal(start), loss_of)


def kahneman_tversky(start: Path, records: Sequence[dict[str, Any]], _: str) -> Figures:
    """KTO (arXiv:2402.01306, eq. 7 and 8) of both answers of each pair; the reference is the model begun with.

    z0 is the mean log ratio, no less than 0, of each prompt with an answer to the one half the data away: the better
    answer for the first prompt, the worse one for the second, in turn.
    """
    rows = rows_of(records, AutoTokenizer.from_pretrained(start, trust_remote_code=False))
    number = len(records)
    answers = [rows[(at + number // 2) % number + number * (at % 2)][1] for at in range(number)]
    others = [(prompt, answer) for (prompt, _), answer in zip(rows, answers, strict=False)]
    reference = _causal(start)
    with torch.no_grad():
        before = torch.stack([log_probs(reference, row).sum() for row in [*rows, *others]])

    def loss_of(model: Any) -> torch.Tensor:
        with torch.no_grad():
            z0 = (
                (torch.stack([log_probs(model, row).sum() for row in others]) - before[len(rows) :]).mean().clamp(min=0)
            )
        good, bad = (torch.stack([log_probs(model, row).sum() for row in rows]) - before[: len(rows)]).chunk(2)
        return 1 - torch.cat([torch.sigmoid(BETA * (good - z0)), torch.sigmoid(BETA * (z0 - bad))]).mean()

    return trained_by_hand(_causal(start), loss_of)


def distillation(start: Path, records: Sequence[dict[str, Any]], asked: str) -> Figures:
    """The divergence of `asked` (`forward`, `reverse`, `jsd`) of teacher and student, the mean over answer tokens."""
    kind, teacher_folder = asked.split(":", 1)
    rows = rows_of(records, AutoTokenizer.from_pretrained(start, trust_remote_code=False))
    teacher = _causal(Path(teacher_folder))
    with torch.no_grad():
        taught = torch.cat([distributions(teacher, row) for row in rows])

    def loss_of(model: Any) -> torch.Tensor:
        student = torch.cat([distributions(model, row) for row in rows])
        return DIVERGENCES[kind](student, taught).sum(-1).mean()

    return trained_by_hand(_causal(start), loss_of)


def _kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one.exp() * (one - other)


def _mixed(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    return ((student.exp() + teacher.exp()) / 2).log()


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "forward": lambda student, teacher: _kl(teacher, student),
    "reverse": _kl,
    # arXiv:2306.13649, eq. 1, with beta 1/2.
    "jsd": lambda student, teacher: (
        _kl(teacher, _mixed(student, teacher)) / 2 + _kl(student, _mixed(student, teacher)) / 2
    ),
}


def _causal(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
    )


def _smoothed(x: torch.Tensor) -> torch.Tensor:
    return -(1 - SMOOTHING) * logsigmoid(x) - SMOOTHING * logsigmoid(-x)


def _odds(c: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """-log s(log(odds(chosen) / odds(rejected))) of mean log-probabilities a token."""
    return -logsigmoid((c - r) - (torch.log1p(-c.exp()) - torch.log1p(-r.exp())))


# Of sums of log-probabilities: chosen, rejected; the reference's chosen, rejected; lengths of both, (pairs,) each.
PAIRS: dict[str, Callable[..., torch.Tensor]] = {
    # arXiv:2305.18290, eq. 7.
    "sigmoid": lambda c, r, c0, r0, nc, nr: -logsigmoid(BETA * ((c - c0) - (r - r0))),
    # cDPO, ericmitchell.ai/cdpo.pdf, eq. 3.
    "smoothed": lambda c, r, c0, r0, nc, nr: _smoothed(BETA * ((c - c0) - (r - r0))),
    # arXiv:2403.00409, eq. 5.
    "robust": lambda c, r, c0, r0, nc, nr: (
        (
            -(1 - SMOOTHING) * logsigmoid(BETA * ((c - c0) - (r - r0)))
            + SMOOTHING * logsigmoid(-BETA * ((c - c0) - (r - r0)))
        )
        / (1 - 2 * SMOOTHING)
    ),
    # SLiC, arXiv:2305.10425.
    "hinge": lambda c, r, c0, r0, nc, nr: relu(1 - BETA * ((c - c0) - (r - r0))),
    # arXiv:2310.12036, eq. 17, of averages over tokens.
    "ipo": lambda c, r, c0, r0, nc, nr: ((c - c0) / nc - (r - r0) / nr - 1 / (2 * BETA)) ** 2,
    # arXiv:2405.14734, eq. 6, gamma 0.5.
    "simpo": lambda c, r, c0, r0, nc, nr: -logsigmoid(BETA * (c / nc - r / nr) - 0.5),
    # arXiv:2401.08417, eq. 7.
    "cpo": lambda c, r, c0, r0, nc, nr: -logsigmoid(BETA * (c - r)) - c.sum() / nc.sum(),
    # arXiv:2403.07691, eq. 6.
    "orpo": lambda c, r, c0, r0, nc, nr: -c.sum() / nc.sum() + BETA * _odds(c / nc, r / nr),
    # arXiv:2408.06266, eq. 7.
    "apo_zero": lambda c, r, c0, r0, nc, nr: 1 - torch.sigmoid(BETA * (c - c0)) + torch.sigmoid(BETA * (r - r0)),
    # arXiv:2408.06266, eq. 8.
    "apo_down": lambda c, r, c0, r0, nc, nr: (
        torch.sigmoid(BETA * (c - c0)) + 1 - torch.sigmoid(BETA * ((c - c0) - (r - r0)))
    ),
    # arXiv:2405.00675, eq. 4.7, each answer's probability of winning known.
    "sppo_hard": lambda c, r, c0, r0, nc, nr: (c - c0 - 0.5 / BETA) ** 2 + (r - r0 + 0.5 / BETA) ** 2,
    # arXiv:2402.05369, eq. 11.
    "nca_pair": lambda c, r, c0, r0, nc, nr: (
        -logsigmoid(BETA * (c - c0)) - 0.5 * logsigmoid(-BETA * (c - c0)) - 0.5 * logsigmoid(-BETA * (r - r0))
    ),
    # arXiv:2402.13228, eq. 3, lambda 50.
    "dpop": lambda c, r, c0, r0, nc, nr: -logsigmoid(BETA * ((c - c0) - (r - r0) - 50 * relu(c0 - c))),
}


def _scoring(folder: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", num_labels=1, trust_remote_code=False
    )
