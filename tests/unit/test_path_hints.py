"""Paths that are not there: the nearest one, what a folder holds, and what is said of the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from hftune.path_hints import cannot_load, looks_local, missing_folder, nearest_path, not_an_adapter, path_hint


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with outputs/sft-merged/checkpoint-5, outputs/rm and a file."""
    (tmp_path / "outputs" / "sft-merged" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "outputs" / "rm").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("outputs/sft-mergd", "outputs/sft-merged"),
        ("./outputs/sft-mergd", "./outputs/sft-merged"),
        ("output/SFT-merged/checkpoint-5", "outputs/sft-merged/checkpoint-5"),
        ("outputs/sft-merged/checkpoint-7", "outputs/sft-merged/checkpoint-5"),
        ("{here}/outputs/sft-mergd", "{here}/outputs/sft-merged"),
        ("outputs/zzz", ""),
        ("zzz/sft-merged", ""),
    ],
)
def test_the_nearest_path(here: Path, path: str, found: str) -> None:
    assert nearest_path(path.format(here=here)) == found.format(here=here)


def test_what_to_do(here: Path) -> None:
    assert path_hint("outputs/sft-mergd", "a folder") == "did you mean outputs/sft-merged?"
    assert path_hint("outputs/zzz", "a model folder") == "give a model folder; outputs holds rm/, sft-merged/"
    assert path_hint("zzz", "a file") == f"give a file; {here}, where paths begin, holds outputs/"
    assert path_hint("outputs/rm/zzz/y", "a file") == "give a file; outputs/rm holds nothing"
    for number in range(9):
        (here / "outputs" / "rm" / f"file{number}").touch()
    listed = ", ".join(f"file{number}" for number in range(6))
    assert path_hint("outputs/rm/zzz", "a file") == f"give a file; outputs/rm holds {listed}, ..."


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("./a", True),
        ("../a", True),
        ("~/a", True),
        ("/a", True),
        ("a/b/c", True),
        ("owner/name", False),
        ("gpt2", False),
    ],
)
def test_what_can_be_a_path_only(name: str, local: bool) -> None:
    assert looks_local(name) is local


def test_a_file_where_a_folder_is_meant(here: Path) -> None:
    problem = missing_folder("notes.txt", "--model_name_or_path", "a model folder")
    assert problem.cause == "notes.txt is a file, where a folder is read"
    assert problem.fix == "give a model folder, such as its folder: ."
    assert missing_folder("outputs/r", "--x", "a folder").cause == "there is no folder outputs/r"


def test_what_is_no_adapter(here: Path) -> None:
    assert not_an_adapter("outputs/r", "--peft_path").fix == "did you mean outputs/rm?"
    (here / "outputs" / "rm" / "config.json").touch()
    whole = not_an_adapter("outputs/rm", "--peft_path")
    assert "holds a whole model" in whole.cause
    assert whole.fix == "leave --peft_path out, and give it as --model_name_or_path outputs/rm"
    (here / "outputs" / "sft-merged" / "checkpoint-5" / "adapter_config.json").touch()
    assert not_an_adapter("outputs/sft-merged", "--peft_path").fix == "give outputs/sft-merged/checkpoint-5"
    assert "ran with --use_peft" in str(not_an_adapter("outputs", "--peft_path").fix)


def test_names_that_may_be_on_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = OSError("We couldn't connect to 'https://huggingface.co' to load the files\nand more")
    offline = cannot_load("outputs/sft-mergd", connection, "--model_name_or_path", "config", offline=True)
    assert offline.cause.startswith("there is no folder outputs/sft-mergd here")
    assert offline.cause.endswith("the Hub is not asked (HF_HUB_OFFLINE=1 or --offline), and it is not in the cache")
    assert str(offline.fix).startswith("did you mean outputs/sft-merged?; take away HF_HUB_OFFLINE=1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    online = cannot_load("owner/name", connection, "--model_name_or_path", "config")
    assert online.cause.endswith("the Hub does not answer, and it is not in the cache")
    assert "couldn't connect" not in str(online) and "HF_HUB_OFFLINE" not in str(online)
    other = cannot_load("owner/name", OSError("owner/name is private"), "--model_name_or_path", "config")
    assert other.cause.endswith("it cannot be had: owner/name is private")
    local = cannot_load("./outputs/r", connection, "--models", "language model")
    assert (local.cause, local.fix) == ("there is no folder ./outputs/r", "did you mean ./outputs/rm?")
    inside = cannot_load("outputs/rm", OSError("no file named model"), "--model_name_or_path", "model")
    assert inside.cause == "no model could be loaded from outputs/rm: no file named model"


def test_a_link_that_leads_nowhere_is_not_proposed(here: Path) -> None:
    (here / "outputs" / "latest").symlink_to("gone")
    assert nearest_path("outputs/latest") == nearest_path("outputs/lates") == ""
