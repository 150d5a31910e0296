"""Every loss that TRL has, with its options: same value, same gradient of every token's log-probability."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl

from hftune.arguments.preference import LOSS_TYPES
from hftune.trainers.losses.table import LOSSES, combined
from hftune.trainers.losses.terms import Settings, Terms
from tests.unit.trainers.losses.batches import LENGTHS, lengths, per_token, terms

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "experimental": compared with, not used
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

OURS_ALONE = {"dpop", "kto_pair", "simpo", "cpo", "cpo_simpo", "odds_ratio", "orpo", "kto", "apo_zero_unpaired"}
CASES: list[dict[str, Any]] = [
    *({"loss_type": [name]} for name in LOSSES if name not in OURS_ALONE | {"exo_pair", "robust"}),
    *({"loss_type": [name], "label_smoothing": 0.1} for name in ("exo_pair", "robust", "aot", "aot_unpaired")),
    *(
        {"loss_type": [name], "f_divergence_type": kind, "f_alpha_divergence_coef": alpha}
        for name in ("sigmoid", "hinge", "ipo", "sigmoid_norm")
        for kind, alpha in (
            ("forward_kl", 0.5), ("js_divergence", 0.5), ("alpha_divergence", 0.5), ("alpha_divergence", 1.0),
        )
    ),
    {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    *({"loss_type": [name], "ld_alpha": 0.3} for name in ("sigmoid", "apo_zero", "ipo")),
    {"loss_type": ["sigmoid"], "use_weighting": True},
]  # fmt: skip


def padded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens side by side as TRL's rows behind a prompt of two tokens: values and completion mask, (answers, width)."""
    width = 2 + max(map(max, LENGTHS))
    rows, masks, at = [], [], 0
    for length in lengths().tolist():
        # Position t of a row's log-probabilities belongs to token t + 1.
        row = torch.nn.functional.pad(values[at : at + length], (1, width - 2 - length))
        rows.append(row)
        masks.append([0, 0] + [1] * length + [0] * (width - 2 - length))
        at += length
    return torch.stack(rows), torch.tensor(masks)


def trl_loss(policy: torch.Tensor, reference: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """What TRL's trainer computes from the same log-probabilities."""
    rows, mask = padded(policy)
    ref_rows, _ = padded(reference)
    zeros = torch.zeros_like(rows)
    names = ("log_probs", "entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
    made = dict(zip(names, (rows, zeros, zeros, zeros.bool(), zeros), strict=True))
    ref = SimpleNamespace(**{**made, "log_probs": ref_rows})
    model = torch.nn.Linear(1, 1)
    model.is_gradient_checkpointing = False
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    accelerator.unwrap_model = lambda model: model
    itself = SimpleNamespace(
        model=model,
        ref_model=lambda **kwargs: ref,
        accelerator=accelerator,
        aux_loss_enabled=False,
        precompute_ref_logps=False,
        args=SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None),
        loss_types=options["loss_type"],
        loss_weights=options.get("loss_weights") or [1.0] * len(options["loss_type"]),
        beta=0.3,
        ld_alpha=options.get("ld_alpha"),
        f_divergence_type=options.get("f_divergence_type", "reverse_kl"),
        f_alpha_divergence_coef=options.get("f_alpha_divergence_coef", 0.5),
        label_smoothing=options.get("label_smoothing", 0.0),
        use_weighting=options.get("use_weighting", False),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {"input_ids": mask, "completion_mask": mask, "attention_mask": mask}
    loss: torch.Tensor = trl.DPOTrainer._compute_loss(itself, lambda **kwargs: SimpleNamespace(**made), inputs, False)
    return loss


def our_loss(policy: torch.Tensor, reference: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    settings = Settings(
        beta=0.3, **{name: value for name, value in options.items() if name in Settings.__dataclass_fields__}
    )
    made = terms(policy, reference, settings, options.get("ld_alpha"))
    weights = None
    if options.get("use_weighting"):
        weights = (made.chosen / made.chosen_tokens + made.rejected / made.rejected_tokens).exp().detach()
    parts = combined(
        made, options["loss_type"], options.get("loss_weights") or [1.0] * len(options["loss_type"]), weights
    )
    return parts.over(counted(made))


def counted(made: Terms) -> torch.Tensor:
    """Pairs and chosen tokens of the batch alone, as TRL takes its means."""
    return torch.stack([torch.tensor(float(len(made.chosen))), made.chosen_tokens.sum()])


@pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(map(str, options.values())))
def test_as_trl(options: dict[str, Any]) -> None:
    found = []
    for compute in (trl_loss, our_loss):
        policy = per_token(1).float().requires_grad_()
        loss = compute(policy, per_token(2).float(), options)
        loss.backward()
        found.append((loss.detach(), policy.grad))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-6, rtol=1e-5)
    assert found[0][1].abs().max() > 1e-4
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-6, rtol=1e-5)


def test_every_loss_of_trl_is_there() -> None:
    listed = trl.DPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    theirs = {word.strip("`',.") for word in listed.split() if word.startswith("`'")}
    assert theirs and theirs <= set(LOSSES)
    assert set(LOSSES) == LOSS_TYPES


@pytest.mark.parametrize("kind", ["simpo", "sigmoid"])
def test_simpo_and_cpo_as_trl(kind: str) -> None:
    made = terms(per_token(1), per_token(2), Settings(beta=2.0, simpo_gamma=0.7, label_smoothing=0.1, cpo_alpha=0.0))
    itself = SimpleNamespace(
        loss_type=kind, beta=2.0, simpo_gamma=0.7, label_smoothing=0.1, alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    inputs = made.averages if kind == "simpo" else (made.chosen, made.rejected)
    expected, _, _ = CPOTrainer.cpo_loss(itself, *inputs)
    name = "simpo" if kind == "simpo" else "cpo"
    torch.testing.assert_close(LOSSES[name].of(made), expected)
    if kind == "simpo":
        torch.testing.assert_close(LOSSES["cpo_simpo"].of(made), expected)
    assert combined(made, ["cpo_simpo"], [1.0], None).of_tokens is None, "alpha is 0"


def test_orpo_as_trl() -> None:
    made = terms(per_token(1), per_token(2), Settings(beta=0.2))
    itself = SimpleNamespace(beta=0.2, accelerator=SimpleNamespace(device="cpu"))
    chosen, rejected = made.averages
    losses, *_ = ORPOTrainer.odds_ratio_loss(itself, chosen, rejected)
    # TRL subtracts the mean of these from the NLL.
    expected = made.nll.sum() / made.chosen_tokens.sum() - losses.mean()
    assert float(combined(made, ["orpo"], [1.0], None).over(counted(made))) == pytest.approx(float(expected), abs=1e-5)
