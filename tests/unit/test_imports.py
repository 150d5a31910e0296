"""What a run does not need is not imported, and is found again by a run that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import without_launcher

pytestmark = pytest.mark.long

TRAIN = """
import gc, runpy, sys
sys.argv = ["run_sft.py", *{flags!r}]
runpy.run_path("run_sft.py", run_name="__main__")
assert gc.isenabled() and gc.get_freeze_count() > 100_000, "garbage is looked for again, not in modules"
watched = {{"bitsandbytes", "deepspeed", "evaluate", "torch._inductor.compile_fx", "torchao"}}
print("IMPORTED", *sorted(watched & {{*sys.modules}}))
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("flags", "imported"), [([], ""), (["--load_in_4bit"], "bitsandbytes torch._inductor.compile_fx")]
)
def test_a_run_imports_what_it_uses(
    flags: list[str], imported: str, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    given = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")]
    given += ["--output_dir", str(tmp_path / "out"), "--use_peft", "--max_steps", "1", "--use_cpu", "True"]
    given += ["--report_to", "none", "--save_strategy", "no", *flags]
    code = TRAIN.format(flags=given)
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=without_launcher(os.environ), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.splitlines()[-1].strip() == f"IMPORTED {imported}".strip()


HIDE = """
from hftune.imports import without_quantisers
with without_quantisers():
    from peft.import_utils import is_torchao_available as peft_asks
    from transformers.utils import is_bitsandbytes_available, is_torchao_available
    assert not (peft_asks() or is_torchao_available() or is_bitsandbytes_available())
assert peft_asks() and is_torchao_available() and is_bitsandbytes_available()
"""


def test_what_was_hidden_is_found_again() -> None:
    pytest.importorskip("torchao")
    subprocess.run([sys.executable, "-c", HIDE], cwd=ROOT, env=without_launcher(os.environ), check=True)
