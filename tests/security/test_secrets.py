"""Each way a secret gets in, against each way something gets out."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hftune import errors, secrets, visible
from hftune.arguments import entry, stages
from hftune.arguments.names.translate import Entry
from hftune.arguments.raw_arguments import given_in_file, given_on_command_line
from hftune.arguments.stages import stage_parser
from hftune.checkpoints.manifest import write_manifest
from hftune.cli import dispatch
from hftune.distributed.ds_config import read_ds_config
from hftune.distributed.ds_setup import remove_secrets
from hftune.errors import ArgumentError
from hftune.logging import get_logger, notice, notices
from hftune.publishing.folder import write_page
from hftune.secrets import to_copy
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import steps_of
from hftune.tools.reporting.page import write_pages
from tests.spokes import spokes

SECRET = "Zq7/hush+v3ry=quiet"
Way = Callable[[Path, pytest.MonkeyPatch], object]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("COMET_API_KEY", raising=False)
    monkeypatch.setattr("sys.argv", ["hftune"])
    secrets.forget()
    yield
    secrets.forget()
    monkeypatch.delenv("COMET_API_KEY", raising=False)


def _flags(*argv: str) -> Way:
    return lambda folder, patch: given_on_command_line(list(argv))


def _file(name: str, text: str, read: Callable[[str], object]) -> Way:
    def way(folder: Path, patch: pytest.MonkeyPatch) -> None:
        (folder / name).write_text(text)
        read(str(folder / name))

    return way


def _variable(name: str, value: str = SECRET) -> Way:
    return lambda folder, patch: patch.setenv(name, value)


def _refused_flags(*argv: str) -> Way:
    def way(folder: Path, patch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ArgumentError) as refused:
            given_on_command_line(list(argv))
        assert SECRET not in refused.value.render()

    return way


PIPELINE = "model: base\noutput_dir: out\nstages:\n  {}\n"


def read_pipeline(file: str) -> None:
    steps_of(read_spec(file))


def _saved(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "token").write_text(SECRET + "\n")
    patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))


def _typed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sys.argv", ["run_sft.py", "--hub-token", SECRET])


WAYS_IN: dict[str, Way] = {
    "flag": _flags("--hub-token", SECRET),
    "one dash": _refused_flags("-hub_token", SECRET),
    "one dash, equals": _refused_flags("--max_steps", "1", f"-hub_token={SECRET}"),
    "connection string": _flags("--run_name", f"AccountName=me;AccountKey={SECRET};End=x"),
    "handed on": _flags("--export", f"ALL,OPENAI_KEY={SECRET}"),
    "equals, twice": _flags("--hub_token", "first-token-1", f"--hub_token={SECRET}"),
    "other tool": _flags("--wandb_api_key", SECRET),
    "inline config": _flags("--deepspeed", json.dumps({"comet": {"api_key": SECRET}})),
    "url flag": _flags("--train_file_dir", f"s3://me:{quote(SECRET, safe='')}@host/data"),
    "typed": _typed,
    "yaml list": _file("a.yaml", f"hub_token: [{SECRET}]\n", given_in_file),
    "yaml deep": _file("a.yaml", f"a: {{b: [{{api_key: {SECRET}}}]}}\n", given_in_file),
    "deepspeed list": _file("ds.json", json.dumps({"a": [{"api_keys": ["b", SECRET]}]}), read_ds_config),
    "deepspeed URL": _file("ds.json", json.dumps({"a": f"s3://me:{quote(SECRET, safe='')}@h"}), read_ds_config),
    "deepspeed dict": lambda folder, patch: remove_secrets({"wandb": {"api_key": SECRET}}),
    "pipeline": _file("p.yaml", PIPELINE.format(f"sft: {{hub_token: '{SECRET}'}}"), read_pipeline),
    "pipeline's variables": _file("p.yaml", PIPELINE.format(f"sft: {{env: {{DB_PASS: '{SECRET}'}}}}"), read_pipeline),
    "pipeline's answers": _file(
        "p.yaml", PIPELINE.format("sft: {}") + f"answers: {{hub_token: '{SECRET}'}}\n", read_pipeline
    ),
    "variable": _variable("AWS_SECRET_ACCESS_KEY"),
    "quoted URL": _variable("SOME_URL", f"postgres://me:{quote(SECRET, safe='')}@db/x"),
    "connection": _variable("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=me;AccountKey={SECRET};End=x"),
    "JSON": _variable("GOOGLE_JSON", json.dumps({"private_key": SECRET})),
    "saved": _saved,
}


def _manifest(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    deep = {"command": ["x", text], "arguments": {"a": {"b": [Path(text)]}}, "notices": [text], text: 1}
    return write_manifest(folder / "out", deep).read_text()


def _notice(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    notice(f"said {text} {folder}")
    return "\n".join(notices())


def _logged(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("hftune.x", logging.ERROR, "f", 1, "a %s %r", (text, [text]), sys.exc_info())
    get_logger()
    own = [handler for handler in logging.getLogger("hftune").handlers if type(handler).__module__ == "hftune.logging"]
    return "\n".join(handler.format(record) for handler in own)  # pytest has one there, too


def _refused(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    def refuse() -> None:
        raise ArgumentError(f"invalid value: {text!r}", place=f"--x {text}", fix=f"not {text}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", lambda code: None)
        errors.run_script(refuse)
    return capture.readouterr().err


def _traceback(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "excepthook", sys.__excepthook__)
        visible.hide_in_tracebacks()
        try:
            raise KeyError(text)
        except KeyError as error:
            sys.excepthook(KeyError, error, error.__traceback__)
    return capture.readouterr().err


def _thread(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    def fail() -> None:
        raise KeyError(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", threading.__excepthook__)
        visible.hide_in_tracebacks()
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    told = capture.readouterr().err
    assert "Exception in thread" in told and "KeyError" in told
    return told


def _lines_of_a_report(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    """Of a manifest that knows nothing of secrets."""
    (folder / "old").mkdir()
    manifest = {"command": ["run_sft.py", "--hub-token", "ab12", "--run_name", text], "stage": "sft"}
    (folder / "old" / "hftune.json").write_text(json.dumps(manifest))
    (page, *_) = write_pages(folder / "old")
    assert "ab12" not in Path(page).read_text() and "run_sft.py" in Path(page).read_text()
    return Path(page).read_text()


def _command(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    return to_copy({"A": text}, ["python", "run.py", "--name", text, f"--b={text}"])


def _page(text: str, folder: Path, capture: pytest.CaptureFixture[str]) -> str:
    write_page(folder / "report.md", f"# {text}\n")
    return (folder / "report.md").read_text()


WAYS_OUT = (
    *(_manifest, _notice, _logged, _refused, _traceback, _thread),
    *(_lines_of_a_report, _command, _page),
)


def holds(content: bytes, secret: str = SECRET) -> bool:
    """Whether any spelling of the secret is in there."""
    return any(form.encode() in content for form in secrets.spellings(secret) if len(form) >= secrets.SHORTEST)


@pytest.mark.parametrize(("way", "out"), spokes(WAYS_IN, WAYS_OUT))
def test_it_comes_in_and_never_gets_out(
    way: str, out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    WAYS_IN[way](tmp_path, monkeypatch)
    told = out(SECRET, tmp_path, capsys) + capsys.readouterr().err
    assert secrets.MASK in told and not holds(told.encode())


@pytest.mark.parametrize("out", WAYS_OUT, ids=lambda out: out.__name__.lstrip("_"))
def test_what_nobody_knows_is_told(out: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the test above would hold for a way that tells nothing."""
    told = out("no-secret-at-all", tmp_path, capsys)
    assert "no-secret-at-all" in told


def test_a_token_given_twice_is_not_told(tmp_path: Path) -> None:
    for words in (("--hub_token", "ab", "--hub_token", "cd"), ("--hub_token", "first-token-1", "--hub_token", SECRET)):
        stage_parser("sft").translate(list(words))
    said = "\n".join(notices())
    outcome = stage_parser("sft").translated([Entry("hub_token", [word], "a") for word in ("ab", "cd")], 1, 1)
    said += "\n".join(outcome.notices)
    assert said.count("--hub_token was given twice") >= 2 and not {"ab", "cd", "first-token-1", SECRET} & {
        *said.split("'")
    }


@pytest.mark.parametrize(
    ("name", "value"),
    (
        *(("AWS_SECRET_ACCESS_KEY", value) for value in ("k", SECRET)),
        *(("OPENAI_KEY", value) for value in ("k1", SECRET)),
        ("DATABASE_URL", "postgres://me:pw@db/x"),
        ("GITHUB_TOKEN", "x"),
        ("DB_PASSWORD", "12"),
    ),
)
def test_a_pipeline_prints_no_variable_that_is_secret(name: str, value: str) -> None:
    told = to_copy({name: value, "LANG": "C"}, ["python", "run.py", "--a", "b"])
    assert value not in told and told.endswith("LANG=C python run.py --a b")
    assert told.startswith(f"{name}=***") or "me:***@db" in told


@pytest.mark.parametrize(
    "argv",
    (
        ["-hub_token", "ab12"],
        ["--max_steps", "1", "-hf-token", "ab12"],
        ["--hub_token:ab12"],
        ["--hub_token", "x", "ab12"],
        ["--hub_tok=ab12"],
        ["--model_init_kwargs", '{"token": "ab12"'],
        ["--hub_token", "-ab12"],
        ["--hub_token=", "ab12", "x"],
    ),
)
def test_a_refused_flag_is_told_without_its_value(argv: list[str]) -> None:
    """However short, so that it is not searched for."""
    parser = stage_parser("sft")
    with pytest.raises(ArgumentError) as refused:
        parser.parse(argv)
    assert "ab12" not in refused.value.render()


@pytest.mark.parametrize(
    "argv",
    (
        ["pipeline", "check", "p.yaml", "--hub_token", "ab12"],
        ["pipeline", "check", "p.yaml", "-hub_token=ab12"],
        ["doctor", "--hub_token=ab12"],
        ["--hub_token=ab12"],
        ["explain", "tokken=ab12"],
        ["report", "-t=ab12"],
    ),
)
def test_commands_tell_no_value_of_a_flag(argv: list[str]) -> None:
    with pytest.raises(ArgumentError) as refused:
        dispatch(argv)
    assert "ab12" not in refused.value.render()


def test_a_tracker_finds_no_secret_in_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B and others keep `sys.argv`."""
    given = ["--hub_token", "ab12", "--deepspeed", '{"comet":{"api_key":"k"}}', "--run_name", "mine"]
    monkeypatch.setattr(sys, "argv", ["run_sft.py", *given])
    seen = list[list[str]]()
    monkeypatch.setattr(stages, "parse_stage", lambda stage, argv: [seen.append(argv)] * 4)
    entry.parse_arguments("sft")
    assert seen == [given]
    told = ["run_sft.py", "--hub_token", "***", "--deepspeed", '{"comet": {"api_key": "***"}}', "--run_name", "mine"]
    assert sys.argv == told
    entry.parse_arguments("sft", ["--hub_token", "cd34"])
    assert sys.argv == told and seen[1] == ["--hub_token", "cd34"]
