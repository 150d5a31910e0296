"""`hftune explain`: what becomes of a name, and the nearest one where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hftune.arguments.defaults.table import OWN
from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.explaining.explain import RUN_KINDS, default_rows, documented_names, explain


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lora_rank", ["alias of lora_r", "MedicalGPT"]),
        ("max_seq_len", ["max_length (run_sft run_rm run_dpo)", "block_size (run_pt)"]),
        ("pipeline_parallel_degree", ["refused", "ZeRO-3"]),
        ("learning_rate", ["works", "run_dpo.py"]),
        ("on_bad_record", ["hftune: error: stop at a record"]),
    ],
)
def test_explain(name: str, parts: list[str]) -> None:
    for part in parts:
        assert part in explain(name)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["explain", "tuner_type", "--lora-rank", "split_token_weight"])
    shown = capsys.readouterr().out
    assert "alias of use_peft" in shown and "alias of lora_r" in shown
    assert "removed: a teacher has the student's tokenizer" in shown
    for words, match in ((["lora_rnk"], "did you mean --lora_rank"), ([], "needs a name")):
        with pytest.raises(ArgumentError, match=match):
            dispatch(["explain", *words])


def test_all_names_are_explained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then any name is answered without the libraries that know all arguments."""
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    dispatch(["explain", "lora_rank"])
    code = "import sys; from hftune.cli import dispatch; dispatch(['explain', 'vf_coef', '--reward-funcs'])"
    code += "; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "in run_rl.py" in shown and explain("reward_funcs") in shown and shown.endswith("False\n")


def test_every_row_is_reached() -> None:
    """A row that later ones hide from everybody is an error of the table."""
    every = [one for runs in RUN_KINDS.values() for one in runs.values()]
    shown = {
        (one.value, one.because)
        for stage in RUN_KINDS
        for name in documented_names(stage)
        for one in default_rows(stage, name)
    }
    for row in OWN:
        assert any(row.fits(one) for one in every) or row.held_out
        assert row.because in {because for _, because in shown}


def test_explain_tells_defaults_with_reasons() -> None:
    text = explain("learning_rate")
    assert "run_dpo.py, run_rl.py: LoRA: 5e-05 (an adapter" in text
    assert "run_rl.py: full: 1e-06" in text
    assert "--defaults medicalgpt: pt 5e-05" in text
    assert "  default:" in explain("lora_rank")  # of what it is an alias of
    assert "twice the rank" in explain("lora_alpha")
