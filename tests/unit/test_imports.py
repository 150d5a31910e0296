"""What a run does not need is not imported, and is found again by a run that does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hftune.import_cache import installation
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


LOOK = """
import builtins, sys
from pathlib import Path
from hftune.import_cache import look_once
look_once()
opened, usual = [], builtins.open
builtins.open = lambda file, *more, **named: (opened.append(str(file)), usual(file, *more, **named))[1]
import transformers
from transformers import AutoModelForCausalLM
builtins.open = usual
read = sum("/transformers/models/" in file and file.endswith(".py") for file in opened)
from transformers.utils import import_utils
models = Path(transformers.__file__).parent / "models"
kept, searched = (search(models) for search in (import_utils.create_import_structure_from_path,
                                                import_utils.create_import_structure_from_path.__wrapped__))
assert kept == searched, "what was kept is not what is there"
print(read)
"""


def test_transformers_files_are_read_once_an_installation(tmp_path: Path) -> None:
    environment = without_launcher(os.environ) | {"HFTUNE_CACHE": str(tmp_path)}

    def read() -> int:
        done = subprocess.run([sys.executable, "-c", LOOK], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return int(done.stdout)

    first = read()
    assert first > 1000
    assert read() < first / 10
    (kept,) = (tmp_path / "imports").glob("*.marshal")
    kept.write_bytes(kept.read_bytes()[:1000])
    assert read() == first, "a damaged file is made anew"
    assert read() < first / 10


def test_a_file_that_is_edited_in_place_is_another_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "edited_models-1.0.dist-info"
    model = tmp_path / "edited_models" / "models" / "llama" / "llama.py"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: edited_models\nVersion: 1.0\n")
    model.parent.mkdir(parents=True)
    model.write_text("class Llama: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    models = model.parents[1]
    before = installation("edited_models", models)
    assert before is not None and installation("edited_models", models) == before
    model.write_text("class Alpaca: ...\n")
    os.utime(model, (time.time() + 2, time.time() + 2))
    assert installation("edited_models", models) != before
    about.joinpath("direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    assert installation("edited_models", models) is None, "sources in the making are not kept at all"


DISTRIBUTIONS = """
import importlib.metadata, json
asked = importlib.metadata.packages_distributions
calls = []
importlib.metadata.packages_distributions = lambda: (calls.append(1), asked())[1]
from hftune.import_cache import look_once
look_once()
found = [importlib.metadata.packages_distributions() for _ in range(2)]
assert found[0] == found[1] == asked()
print(len(calls))
"""


def test_packages_are_looked_for_once_until_one_is_installed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    environment = without_launcher(os.environ) | {"HFTUNE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(site)}

    def searches() -> int:
        command = [sys.executable, "-c", DISTRIBUTIONS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return int(done.stdout)

    assert [searches(), searches()] == [1, 0]
    about = site / "fresh-1.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fresh\nVersion: 1.0\n")
    about.joinpath("top_level.txt").write_text("fresh\n")
    os.utime(site, (time.time() + 2, time.time() + 2))
    assert [searches(), searches()] == [1, 0]
