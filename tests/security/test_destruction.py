"""What a command must not remove: the same attempts on every command that makes a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.arguments.merging import MergeArguments
from hftune.cli import dispatch
from hftune.digests import digest
from hftune.errors import ArgumentError, UserError
from hftune.merging.merge import merge_adapter
from hftune.tools.consolidating.run import ConsolidateArguments, consolidate
from hftune.tools.export.arguments import GgufArguments, OllamaArguments, ServingArguments
from hftune.tools.export.run import export
from hftune.tools.vocabulary.arguments import VocabArguments
from hftune.tools.vocabulary.command import run as vocab
from tests.unit.checkpoints.zero_files import write as write_zero
from tests.unit.merging.models import make_adapter

Make = Callable[[Path, str, bool], object]


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What is read, below one folder."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(tiny_model, folder / "models" / "base")
    run = folder / "run"
    for step in (1, 2, 3):
        checkpoint = write_zero(folder / f"step{step}", 2, 2)
        run.mkdir(exist_ok=True)
        checkpoint.rename(run / f"checkpoint-{step}")
    adapter = make_adapter(folder / "models" / "base", folder / "adapters" / "a", target_modules=["q_proj"])
    return {"base": folder / "models" / "base", "checkpoint": run / "checkpoint-3", "adapter": adapter}


@pytest.fixture
def inputs(made: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """A copy of them, which an attempt may destroy."""
    top = next(iter(made.values())).parents[1]
    shutil.copytree(top, tmp_path / "all" / "inputs")
    return {name: tmp_path / "all" / "inputs" / path.relative_to(top) for name, path in made.items()}


def _export(arguments: type) -> Callable[[dict[str, Path], str, bool], object]:
    def run(inputs: dict[str, Path], out: str, overwrite: bool) -> object:
        asked = {"model_name_or_path": str(inputs["base"]), "output_dir": out, "overwrite_output_dir": overwrite}
        return export(arguments(**asked, verify=False))

    return run


def _consolidate(inputs: dict[str, Path], out: str, overwrite: bool) -> object:
    asked = {"checkpoint": str(inputs["checkpoint"]), "output_dir": out, "overwrite_output_dir": overwrite}
    return consolidate(ConsolidateArguments(**asked))


def _merge(inputs: dict[str, Path], out: str, overwrite: bool) -> object:
    asked = {"peft_model_path": str(inputs["adapter"]), "base_model_name_or_path": str(inputs["base"])}
    return merge_adapter(MergeArguments(**asked, output_dir=out, overwrite_output_dir=overwrite, verify="false"))


def _vocab(inputs: dict[str, Path], out: str, overwrite: bool) -> object:
    asked = {"model_name_or_path": str(inputs["base"]), "add_tokens": "<new>", "tokenizer_only": True}
    return vocab("add", VocabArguments(**asked, output_dir=out, overwrite_output_dir=overwrite))


def _tokenize(inputs: dict[str, Path], out: str, overwrite: bool) -> object:
    data = inputs["base"].parents[1] / "data" / "a.jsonl"
    data.parent.mkdir(exist_ok=True)
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 3)
    flags = ["--model_name_or_path", str(inputs["base"]), "--train_file_dir", str(data.parent), "--output_dir", out]
    flags += ["--use_cpu", "True", "--overwrite_output_dir", str(overwrite)]
    return dispatch(["tokenize", "run_sft", *flags])


COMMANDS = {
    "export vllm": _export(ServingArguments),
    "export gguf": _export(GgufArguments),
    "export ollama": _export(OllamaArguments),
    "consolidate": _consolidate,
    "merge": _merge,
    "vocab": _vocab,
    "tokenize": _tokenize,
}


def everything(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, links as what they say."""
    files = (file for file in sorted(folder.rglob("*")) if not file.is_dir() or file.is_symlink())
    return {str(f.relative_to(folder)): os.readlink(f) if f.is_symlink() else digest(f) for f in files}


PLACES = {
    "a folder with a thesis": "mine",
    "the folder above": "..",
    "here": ".",
    "two above": "../..",
    "the model": "{base}",
    "above the model": "{base}/..",
    "the run of the checkpoint": "{checkpoint}/..",
    "the checkpoint": "{checkpoint}",
    "the adapter": "{adapter}",
    "above the adapter": "{adapter}/..",
    "a link to the thesis": "link",
    "a model of somebody else": "other",
    "a folder of a run": "run",
    "a file": "mine/thesis",
    "below a file": "mine/thesis/out",
}
READ_BY = {"consolidate": ("checkpoint",), "merge": ("adapter", "base"), "vocab": ("base",), "tokenize": ()}


@pytest.mark.parametrize("overwrite", [False, True], ids=["", "overwrite"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_of_the_users_is_removed(
    command: str, place: str, overwrite: bool, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "all" / "work" / "here"
    (here / "mine").mkdir(parents=True)
    (here / "mine" / "thesis").write_text("years of work")
    (here / "link").symlink_to("mine")
    shutil.copytree(inputs["base"], here / "other")
    (here / "run" / "checkpoint-1").mkdir(parents=True)
    (here / "run" / "hftune.json").write_text('{"status": "complete", "files": {}}')
    (here / "run" / "checkpoint-1" / "optimizer.pt").write_text("hours")
    monkeypatch.chdir(here)
    out = PLACES[place].format(**inputs)
    if command == "tokenize":
        _tokenize(inputs, str(tmp_path / "elsewhere"), False)
    before = everything(tmp_path / "all")
    with pytest.raises(UserError) as said:
        COMMANDS[command](inputs, out, overwrite)
    assert everything(tmp_path / "all") == before, said.value
    assert said.value.place and said.value.fix


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_of_ours_is_replaced_where_that_was_said(
    command: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    COMMANDS[command](inputs, str(out), False)
    first = everything(out)
    with pytest.raises(ArgumentError, match="finished result"):
        COMMANDS[command](inputs, str(out), False)
    assert everything(out) == first
    COMMANDS[command](inputs, str(out), True)
    changed = {name for name, found in everything(out).items() if first.get(name) != found}
    assert changed <= {"hftune.json", "train/state.json"} and everything(out).keys() == first.keys()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["all", "out"]
