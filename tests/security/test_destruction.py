"""What a command must not remove: the same attempts on every command that makes a folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.manifest import finish_manifest
from hftune.cli import dispatch
from hftune.digests import digest
from hftune.errors import ArgumentError, UserError
from hftune.merging.merge import merge_adapter
from hftune.tools.consolidating import ConsolidateArguments, consolidate
from hftune.tools.export import gguf
from hftune.tools.export.arguments import GgufArguments, OllamaArguments, ServingArguments
from hftune.tools.export.run import export
from tests.converter import stand_in
from tests.spokes import spokes
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


@pytest.fixture(autouse=True)
def _converter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(stand_in(tmp_path_factory.mktemp("converter")))
    monkeypatch.setattr(gguf, "converter_folder", lambda args: folder)


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
READ_BY = {"consolidate": ("checkpoint",), "merge": ("adapter", "base"), "tokenize": ()}


@pytest.mark.parametrize(
    ("command", "place", "overwrite"),
    [
        *spokes(COMMANDS, PLACES, [True, False]),
        *itertools.product([*COMMANDS][1:], ("the model", "the checkpoint", "the adapter"), [True]),
    ],
)
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


READING = {
    "evaluate": ("evaluate {base} --eval_tasks loss --validation_file_dir {data}", "base data"),
    "evaluate an adapter": ("evaluate {adapter} --eval_tasks loss --validation_file_dir {data}", "adapter base"),
    "evaluate with rewards": (
        "evaluate {base} --eval_tasks reward --reward_model_path {other} --validation_file_dir {data}",
        "other",
    ),
    "compare": ("evaluate {base} --eval_tasks loss --validation_file_dir {data} --against {other}", "other"),
    "sample": ("sample {base} --train_file_dir {data} --reward_funcs length", "base data"),
    "sample with rewards": ("sample {base} --train_file_dir {data} --reward_model_path {other}", "other"),
    "teach": (
        "teach --model_name_or_path {base} --teacher_model_name_or_path {other} --train_file_dir {data} --use_cpu",
        "base other data",
    ),
    "data check": ("data check {data}", "data"),
    "tokenize": ("tokenize run_sft --model_name_or_path {base} --train_file_dir {data} --use_cpu", "base data"),
    "export": ("export gguf --model_name_or_path {base}", "base"),
}


@pytest.mark.parametrize("command", READING)
def test_no_finished_result_is_replaced_by_what_reads_it(
    command: str, inputs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its manifest allows it to be replaced, and the flag asks for that; under any of its names."""
    data, other = tmp_path / "all" / "data", tmp_path / "all" / "other"
    data.mkdir()
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (data / "a.jsonl").write_text(json.dumps(record) + "\n")
    shutil.copytree(inputs["base"], other)
    places = {"base": inputs["base"], "adapter": inputs["adapter"], "data": data, "other": other}
    for place in places.values():
        finish_manifest(place, {"status": "complete", "base": {"name": str(inputs["base"])}})
    words, read = READING[command]
    argv = words.format(**places).split()
    before = everything(tmp_path / "all")
    for name in read.split():
        link = tmp_path / "link"
        link.symlink_to(places[name])
        for output in (places[name], link, tmp_path / "all" / ".." / places[name].relative_to(tmp_path)):
            with pytest.raises(UserError, match="is read"):
                dispatch([*argv, "--output_dir", str(output), "--overwrite_output_dir"])
        link.unlink()
    assert everything(tmp_path / "all") == before
