"""Rows whose other side is a formula: losses by the papers in plain loops, and TRL's own trainers."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.tools.parity.flags import EACH_FOUR, QUARTERS, WHOLE, sft
from hftune.tools.parity.plain import DIVERGENCES
from hftune.tools.parity.rows import ByHand, Row
from hftune.tools.parity.runs import Run

PAPERS = "Losses by the papers, in a plain loop"
_PAIRS = {
    **{"sigmoid": "DPO", "hinge": "SLiC", "ipo": "IPO", "simpo": "SimPO", "cpo": "CPO", "orpo": "ORPO"},
    **{"apo_zero": "APO-zero", "apo_down": "APO-down", "sppo_hard": "SPPO", "nca_pair": "NCA"},
}
_SMOOTH = ("--label_smoothing", "0.1")


def papers() -> Iterator[Row]:
    """All records in each step, one at a time, without padding."""
    pt = Run("pt", WHOLE, few=True)
    yield Row(PAPERS, "PT: mean over all tokens of the batch", pt, ByHand("likelihood", pt))
    yield Row(
        PAPERS, "SFT: mean over the answers' tokens of the batch", sft(few=True), ByHand("likelihood", sft(few=True))
    )
    two = sft(*EACH_FOUR, processes=2, few=True)
    yield Row(PAPERS, "SFT: the same on 2 processes", two, ByHand("likelihood", sft(few=True)))
    accumulated = sft(*QUARTERS, few=True)
    yield Row(PAPERS, "SFT: the same, 4 × 2 accumulated", accumulated, ByHand("likelihood", sft(few=True)))
    scored = Run("rm", few=True)
    begun = Run("rm", ("--learning_rate", "0", "--max_steps", "1", *_PLAIN_SCORES), few=True)
    yield Row(PAPERS, "RM: Bradley-Terry", scored, ByHand("rewards", begun, begun=True))
    yield from _pairs()
    for kind, beta in zip(DIVERGENCES, ("0", "1", "0.5"), strict=True):
        run = Run("distill", ("--beta", beta), few=True)
        yield Row(PAPERS, f"distillation: {kind}", run, ByHand("distillation", run, f"{kind}:{{teacher}}"))


_PLAIN_SCORES = ("--normalize_scores", "False")


def _pairs() -> Iterator[Row]:
    for loss, title in _PAIRS.items():
        run = Run("dpo", ("--loss_type", loss, "--beta", "0.1"), few=True)
        yield Row(PAPERS, f"{title} (`{loss}`)", run, ByHand("preferences", run, loss))
    run = Run("dpo", ("--loss_type", "kto", "--beta", "0.1"), few=True)
    yield Row(PAPERS, "KTO of pairs (`kto`)", run, ByHand("kto", run))
    # With another reference: where both models are one, its penalty has a kink, and rounding chooses the side.
    run = Run("dpo", ("--loss_type", "dpop", "--beta", "0.1", "--ref_model", "{teacher}"), few=True)
    yield Row(PAPERS, "DPO-Positive (`dpop`), another reference", run, ByHand("preferences", run, "dpop:{teacher}"))
    for name, loss, title in (("smoothed", "sigmoid", "cDPO"), ("robust", "robust", "robust DPO")):
        run = Run("dpo", ("--loss_type", loss, "--beta", "0.1", *_SMOOTH), few=True)
        yield Row(PAPERS, title, run, ByHand("preferences", run, name))


TRL = "TRL's own trainers"


def trls() -> Iterator[Row]:
    """TRL without hftune, on the same rows."""
    yield Row(TRL, "SFT = TRL's SFTTrainer", sft(few=True), ByHand("trl", sft(few=True), "sft"))
    for loss in ("sigmoid", "ipo", "hinge", "apo_zero", "sppo_hard"):
        run = Run("dpo", ("--loss_type", loss, "--beta", "0.1"), few=True)
        yield Row(TRL, f"DPO, {loss} = TRL's DPOTrainer", run, ByHand("trl", run, f"dpo:{loss}"))
    begun = Run("rm", ("--learning_rate", "0", "--max_steps", "1", *_PLAIN_SCORES), few=True)
    yield Row(TRL, "RM = TRL's RewardTrainer", Run("rm", few=True), ByHand("trl", begun, "rm", begun=True))
    for algorithm in ("grpo", "rloo"):
        run = Run("rl", ("--rl_algorithm", algorithm), few=True)
        what = f"RL, {algorithm.upper()} = TRL's {algorithm.upper()}Trainer, answers drawn with the same seed"
        yield Row(TRL, what, run, ByHand("trl", run, algorithm))
