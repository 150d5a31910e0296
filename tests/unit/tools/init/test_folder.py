"""The folders that `hftune init` writes: complete, with paths that hold there, and never over what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.tools.init import folder as writing
from hftune.tools.init.folder import KINDS, command_of, files_of, write_folder
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import steps_of
from tests.spokes import spokes


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders for which the demo's model would have been fetched."""
    seen: list[Path] = []
    monkeypatch.setattr(writing, "prepare_base", lambda folder: seen.append(folder) or "somewhere")
    monkeypatch.setattr(writing, "_processes", lambda: 3)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_folder_names_is_in_it(
    kind: str, base: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DEMO_MODEL", "DEMO_OUTPUT", "DEMO_PROCESSES"):
        monkeypatch.setenv(name, "not of this folder")
    monkeypatch.chdir(tmp_path)
    write_folder(kind, Path("new/folder"))
    monkeypatch.chdir("new/folder")
    text = Path(f"{kind}.yaml").read_text()
    schema = f".hftune/{'sft' if kind == 'sft' else 'pipeline'}.schema.json"
    assert text.startswith(f"# yaml-language-server: $schema={schema}\n# {command_of(kind)}\n")
    assert "examples" not in text
    # By the schema alone, as an editor does: in any folder, without a network.
    found = Draft202012Validator(json.loads(Path(schema).read_text()))
    assert [*found.iter_errors(yaml.safe_load(text))] == [] and not found.is_valid({"learning_rat": 1})
    if kind == "sft":
        groups = parse_arguments("sft", ["--config", "sft.yaml"])
        paths = [groups.data.train_file_dir]
    else:
        steps = steps_of(read_spec(f"{kind}.yaml"))
        paths = [value for step in steps for name in step.arguments if "file" in name for value in step.arguments[name]]
    assert paths and all(Path(str(path)).is_dir() and any(Path(str(path)).iterdir()) for path in paths)
    readme = Path("README.md").read_text()
    assert command_of(kind) in readme and not re.search(r"\{\{|\{\w+\}", readme.replace("{NAME}", ""))
    for record in re.findall(r"^\{.*\}$", readme, re.MULTILINE):
        json.loads(record)


@pytest.mark.parametrize("kind", ["sft", "pipeline"])
def test_what_a_user_fills_has_no_rate_length_or_evaluation_data_of_the_demo(kind: str) -> None:
    files = files_of(kind, "M")
    text = files[f"{kind}.yaml"]
    assert "learning_rate:" not in text and "validation_split_percentage: 5" in text
    assert "max_length: 1024" in text and "max_length: 256" not in text
    assert not [path for path in files if "_eval" in path]


def test_a_folder_for_conversations_trains_as_the_defaults_say(
    base: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder("sft", Path("."))
    args = parse_arguments("sft", ["--config", "sft.yaml"]).training
    assert (args.learning_rate, args.num_train_epochs, args.max_length, args.eval_strategy) == (2e-4, 3, 1024, "steps")


def test_the_demo_brings_its_model_and_knows_its_devices(
    base: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder("demo", tmp_path / "my demo")
    demo = yaml.safe_load((tmp_path / "my demo" / "demo.yaml").read_text())
    assert base == [tmp_path / "my demo" / "base" / "SmolLM2-135M-Instruct"]
    assert demo["model"] == "base/SmolLM2-135M-Instruct" and demo["launcher"] == {"deepspeed": {"num_gpus": 3}}
    assert demo["output_dir"] == "outputs/demo"
    assert f"cd '{tmp_path}/my demo' && hftune pipeline run demo.yaml" in capsys.readouterr().out


def test_a_model_of_ones_own(base: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("M").mkdir()
    write_folder("demo", Path("a"), "M")
    write_folder("sft", Path("b"), "org/name: of a \"strange' kind")
    write_folder("pipeline", Path("c"))
    assert base == [], "nothing is fetched"
    assert yaml.safe_load(Path("a/demo.yaml").read_text())["model"] == str(tmp_path / "M")
    assert yaml.safe_load(Path("b/sft.yaml").read_text())["model_name_or_path"] == "org/name: of a \"strange' kind"
    assert yaml.safe_load(Path("c/pipeline.yaml").read_text())["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("there", "as_link"), spokes(["README.md", "data/sft/chat.jsonl", "data", "data/sft"], [False, True])
)
def test_nothing_is_replaced(there: str, as_link: bool, base: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "new" / there
    mine.parent.mkdir(parents=True)
    mine.symlink_to("nowhere") if as_link else mine.write_text("mine")
    with pytest.raises(ArgumentError, match="would be replaced: nothing was written"):
        write_folder("sft", tmp_path / "new")
    assert [path for path in (tmp_path / "new").rglob("*") if not path.is_dir()] == [mine]
    assert as_link or mine.read_text() == "mine"


@pytest.mark.parametrize("place", ["x" * 300, "link/a/b", "file"])
def test_a_place_where_nothing_can_be_written(
    place: str, base: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("link")
    Path("file").write_text("mine")
    with pytest.raises(ArgumentError, match="FOLDER"):
        write_folder("demo", Path(place))
    assert base == [], "nothing is fetched"


@pytest.mark.parametrize("name", [".hftune", "data"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(ArgumentError, match="would be replaced: nothing was written"):
        write_folder("sft", tmp_path / "new")
    assert [*(tmp_path / "theirs").iterdir()] == []
