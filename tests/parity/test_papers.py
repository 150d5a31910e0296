"""Runs of the scripts against losses as the papers write them, in plain loops; and the page that shows the figures.

HFTUNE_PARITY_PAGE=1 python -m pytest tests/parity/test_papers.py -m ""      writes the tables of docs/parity.md anew
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hftune.checkpoints.manifest import describe_machine
from hftune.tools.doctor.tiny import STEPS, Figures, make_data, make_model
from hftune.tools.doctor.training import ROUNDING, Outcome, Trainings, compared, rows
from tests.architectures import few_quick
from tests.conftest import ROOT, Finished
from tests.parity import plain
from tests.parity.stages import DATA, run_stage

PAGE = ROOT / "docs" / "parity.md"
BEGIN, END = "<!-- parity -->\n", "<!-- end -->"
RECORDS = 8
"""All of them in each step, so that their order does not matter."""
QUARTERS = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4")
Loss = Callable[[Path, Sequence[dict[str, Any]], str], Figures]
PAIRS = {
    **{"sigmoid": "DPO", "hinge": "SLiC", "ipo": "IPO", "simpo": "SimPO", "cpo": "CPO", "orpo": "ORPO"},
    **{"apo_zero": "APO-zero", "apo_down": "APO-down", "sppo_hard": "SPPO", "nca_pair": "NCA"},
}
SMOOTH = ("--label_smoothing", "0.1", "--loss_type")
PAPERS: dict[str, tuple[str, tuple[str, ...], Loss, str]] = {
    "PT: mean over all tokens": ("pt", ("--packing", "False", "--block_size", "256"), plain.likelihood, ""),
    "SFT: mean over the answers' tokens": ("sft", (), plain.likelihood, ""),
    "SFT: the same, 4 x 2 accumulated": ("sft", QUARTERS, plain.likelihood, ""),
    "RM: Bradley-Terry": ("rm", (), plain.rewards, ""),
    **{f"{title} (`{loss}`)": ("dpo", ("--loss_type", loss), plain.preferences, loss) for loss, title in PAIRS.items()},
    "KTO of pairs (`kto`)": ("dpo", ("--loss_type", "kto"), plain.kahneman_tversky, ""),
    # With another reference: where both models are one, its penalty has a kink, and rounding chooses the side.
    "DPO-Positive (`dpop`), another reference": (
        *("dpo", ("--loss_type", "dpop", "--ref_model", "{teacher}"), plain.preferences, "dpop:{teacher}"),
    ),
    "cDPO": ("dpo", (*SMOOTH, "sigmoid"), plain.preferences, "smoothed"),
    "robust DPO": ("dpo", (*SMOOTH, "robust"), plain.preferences, "robust"),
    **{
        f"distillation: {kind}": ("distill", ("--beta", beta), plain.distillation, f"{kind}:{{teacher}}")
        for kind, beta in zip(plain.DIVERGENCES, ("0", "1", "0.5"), strict=True)
    },
}
AT_ONCE = ("SFT: mean over the answers' tokens", "RM: Bradley-Terry", "DPO (`sigmoid`)", "distillation: forward")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and records."""
    folder = tmp_path_factory.mktemp("papers")
    for name in ("llama", "teacher"):
        make_model(name, folder / name)
    make_data(folder / "data", RECORDS)
    return folder


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, list[Outcome]]]:
    """Outcomes by heading; the page is written with them where that is asked for."""
    found: dict[str, list[Outcome]] = {"Losses by the papers, in a plain loop": [], "`hftune doctor --train`": []}
    yield found
    if os.environ.get("HFTUNE_PARITY_PAGE"):
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n".join([before + BEGIN.rstrip(), *tables(found), END]) + rest.partition(END)[2]
        PAGE.write_text(text, encoding="utf-8")


def tables(found: dict[str, list[Outcome]]) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"Measured on {describe_machine()['processor']}, float32."
    for title, outcomes in found.items():
        yield from ("", f"### {title}", "", "| | found | expected | apart | allowed |", "|---|---:|---:|---:|---:|")
        for one in outcomes:
            yield f"| {one.what} | {one.found:.7g} | {one.wanted:.7g} | {one.apart:.1e} | {one.allowed:.0e} |"


@pytest.mark.parametrize("what", few_quick([*PAPERS], AT_ONCE))
def test_by_the_paper(
    what: str, home: Path, page: dict[str, list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, flags, by_hand, asked = PAPERS[what]

    def train(name: str, *more: str, steps: int = STEPS) -> Any:
        common = ("--per_device_train_batch_size", str(RECORDS), "--learning_rate", "1e-3", "--max_grad_norm", "1.0")
        common += ("--weight_decay", "0", "--warmup_steps", "0", "--use_cpu", "True")
        return run_stage(
            stage, home / "llama", home / "data", tmp_path / name, *common, *more, monkeypatch=monkeypatch, steps=steps
        )

    own = {"dpo": ("--beta", "0.1"), "distill": ("--distill_mode", "offline", *TEACHER)}.get(stage, ())
    given = [str(home / "teacher") if word == "{teacher}" else word for word in (*own, *flags)]
    start = home / "llama"
    if stage == "rm":
        train("begun", "--learning_rate", "0", "--normalize_scores", "False", steps=1)
        start = tmp_path / "begun"  # with the head that this run and the other one have drawn
    history = train("run", *given).state.log_history
    found = {name: [float(step[name]) for step in history if "loss" in step] for name in ("loss", "grad_norm")}
    records = [json.loads(line) for line in (home / "data" / DATA[stage] / "train.jsonl").read_text().splitlines()]
    wanted = by_hand(start, records, asked.replace("{teacher}", str(home / "teacher")))
    outcome = compared(what, found, wanted, ROUNDING)
    page["Losses by the papers, in a plain loop"].append(outcome)
    assert outcome.holds, outcome


TEACHER = ("--teacher_model_name_or_path", "{teacher}")


@pytest.mark.slow
def test_doctors_rows(page: dict[str, list[Outcome]], run: Callable[..., Finished], tmp_path: Path) -> None:
    """What `hftune doctor --train` compares, started without a launcher's seconds."""

    def start(stage: str, words: Sequence[str], processes: int, log: Path) -> int:
        launcher = "python" if processes == 1 else f"torchrun --nproc_per_node {processes}"
        done = run(f"run_{stage}.py", *words, launcher=launcher, warm=True)
        log.write_text(done.output, encoding="utf-8")
        return done.code

    trainings = Trainings(tmp_path, 0, start)
    outcomes = [trainings.outcome(row) for row in rows(2)]
    page["`hftune doctor --train`"] += outcomes
    assert [one for one in outcomes if not one.holds] == []
