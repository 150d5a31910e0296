"""What data, model folders and file names say reaches the terminal as text: no escape sequence is obeyed."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hftune import visible
from hftune.checkpoints.manifest import COMPLETE, write_manifest
from hftune.cli import dispatch
from hftune.data.preview import coloured, describe_example, preview
from hftune.data.splits import Splits
from hftune.distributed import watchdog
from hftune.distributed.verdicts import Verdict
from hftune.errors import ArgumentError, DataError, UserError, shown
from hftune.logging import get_logger
from hftune.tools.doctor.findings import Finding, render, to_json
from hftune.tools.pipeline import runner
from hftune.tools.pipeline import spec as names
from hftune.tools.pipeline.spec import read_spec
from hftune.tools.pipeline.steps import steps_of
from hftune.tools.reporting.tables import answer_cards, render_cards, reward_section
from hftune.visible import as_json, say
from tests.conftest import tiny_tokenizer

ROOT = Path(__file__).parents[2]

ATTACKS = {
    "clear the screen": "\x1b[2J\x1b[H",
    "colours": "\x1b[31mred\x1b[0m",
    "hide": "\x1b[8mhidden",
    "the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "the clipboard by ST": "\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "the title": "\x1b]0;title\x07",
    "a link": "\x1b]8;;http://evil.invalid\x1b\\text\x1b]8;;\x1b\\",
    "a file by iTerm": "\x1b]1337;File=name=eA==:AAAA\x07",
    "device control": '\x1bP$q"p\x1b\\',
    "an answer typed back": "\x1b[c\x1b[6n\x1b[21t",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d52;c;eA==\x9c",
    "back over it": "safe\x08\x08\x08\x08evil",
    "over the line": "error\rall is well",
    "a bell": "\x07",
    "a form feed": "\x0c",
    "a vertical tab": "a\x0bb",
    "delete": "\x7f",
    "a zero byte": "a\x00b",
    "shift out": "\x0e",
    "right to left": "\u202egpj.exe",
    "isolates": "\u2066\u2067x\u2069",
    "marks": "\u200f\u200e\u061c",
    "line separators": "a\u2028b\u2029c",
    "a byte order mark": "\ufeffx",
    "annotations": "\ufff9a\ufffab\ufffb",
    "half a character": "\ud83d",
    "unseen letters": "".join(chr(0xE0000 + ord(letter)) for letter in "ignore this"),
}
HARM = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
ATTACK = "|".join(ATTACKS.values())
"""All at once: what is hidden is spelt out at one place, and each way to the terminal must go through it."""


def harmless(text: str) -> bool:
    return not HARM.search(text) and not any(0xE0000 <= ord(letter) <= 0xE007F for letter in text)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_what_is_printed(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not harmless(attack)
    say(f"before {attack} behind")
    text = capsys.readouterr().out
    assert harmless(text) and text.startswith("before ") and text.endswith(" behind\n") and "\\" in text


@pytest.mark.parametrize("text", ["plain", "two\nlines", "a\ttab", "天气🙂", "👩‍👩‍👧", "مرحبا", "נקודה", "é", "\\x1b"])
def test_texts_of_all_languages_stay(text: str) -> None:
    assert visible.visible(text) == text


def test_errors() -> None:
    made = [
        UserError(f"a {ATTACK}", place=f"file{ATTACK}:3", fix=f"do {ATTACK}"),
        DataError(f"a {ATTACK}").at(f"{ATTACK}:1"),
        ArgumentError(shown(ATTACK)),
    ]
    assert all(harmless(error.render()) and harmless(str(error)) for error in made)
    assert harmless(shown("x" * 500 + ATTACK))


def test_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, stream = get_logger(), io.StringIO()
    (handler,) = [one for one in logging.getLogger("hftune").handlers if isinstance(one, logging.StreamHandler)][:1]
    monkeypatch.setattr(handler, "stream", stream)
    logger.warning("dropped %s", ATTACK)
    try:
        raise ValueError(ATTACK)
    except ValueError:
        logger.exception("with a trace")
    assert harmless(stream.getvalue()) and "dropped" in stream.getvalue()


def test_json_means_the_same_and_hides_nothing() -> None:
    text = as_json({"name": ATTACK, ATTACK: [ATTACK]}, indent=2)
    assert harmless(text) and json.loads(text) == {"name": ATTACK, ATTACK: [ATTACK]}


def test_lineage_answers_and_the_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = ATTACK.encode("utf-8", "replace").decode()
    data = {"train": {"files": [f"{quoted}.jsonl"], "rows": 3, "used": 3}}
    manifest = {"stage": f"sft{quoted}", "kind": quoted, "status": COMPLETE, "base": {"name": f"base{quoted}"}}
    settings = {"training": {"learning_rate": quoted, "seed": quoted}}
    write_manifest(tmp_path, {**manifest, "data": data, "arguments": settings, "metrics": {}, "parents": []})
    for words in (["lineage", str(tmp_path)], ["lineage", str(tmp_path), "--json"]):
        with suppress(SystemExit):
            dispatch(words)
    found = {"questions": [ATTACK], "answers": {f"m{ATTACK}": [f"a {ATTACK}"]}, "max_new_tokens": ATTACK}
    found |= {"rewards": {f"m{ATTACK}": [1.0]}, "reward_model": f"rm{ATTACK}"}
    rewards = reward_section(found)
    assert rewards is not None
    say(rewards.render() + render_cards(answer_cards(found)))
    say(render([Finding("GPU", ATTACK, fix=ATTACK)]))
    say(to_json([Finding("GPU", ATTACK, fix=ATTACK)]))
    assert harmless(capsys.readouterr().out)


def console() -> Console:
    """Without colours of its own: every escape in it is another's."""
    return Console(file=io.StringIO(), highlight=False, soft_wrap=True, color_system=None, width=5000)


PRINTABLE = ATTACK.replace("\ud83d", "")
"""A tokenizer takes no half of a character."""


def test_preview_and_examples_of_every_kind() -> None:
    tokenizer, out = tiny_tokenizer(), console()
    ids = tokenizer(PRINTABLE + "<|im_end|>").input_ids
    about = {"rows": 1, "used": 0, "truncated": 0, "dropped": {f"{PRINTABLE} [/bold]": 1}}
    splits = Splits([{"input_ids": ids, "labels": [-100, *ids[1:]]}], None, {"train": about})
    preview(splits, tokenizer, 1, rows_per_step=1, console=out)
    assert harmless(out.file.getvalue())  # type: ignore[attr-defined]
    assert "[/bold]" in out.file.getvalue(), "and marks of rich are text"  # type: ignore[attr-defined]
    examples: list[dict[str, Any]] = [
        {"prompt": [{"role": PRINTABLE, "content": PRINTABLE}], "answer": PRINTABLE, PRINTABLE: 1},
        {"prompt_ids": ids, "chosen_ids": ids, "rejected_ids": ids},
        {"input_ids": ids, "labels": ids},
    ]
    assert all(harmless(part.plain) for example in examples for part in describe_example(example, tokenizer))
    assert harmless(coloured(ids, [-100] * len(ids), tokenizer).plain)


def test_what_a_pipeline_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "_PLAIN_SECONDS", 0.0)
    look = runner.watching(tmp_path, ATTACK)
    (tmp_path / "progress.jsonl").write_text(json.dumps({"step": 1, "max_steps": 2, "time": 1.0}) + "\n")
    look()
    said = capsys.readouterr().out
    assert "step 1/2" in said and harmless(said)


def test_the_watchdog_s_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process failed of, which may quote its data."""
    written: list[bytes] = []
    monkeypatch.setattr(watchdog.os, "write", lambda stream, text: written.append(text))
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: None)
    dog: Any = SimpleNamespace(rank=0, host="h", done=Event(), store=None, timeout=9.0)
    watchdog.Watchdog._end(dog, Verdict("failed", [1], {1: {}}, f"ValueError: {ATTACK}"))
    assert written and harmless(b"".join(written).decode())


# --- nobody prints another way ---


def printed(source: str) -> list[int]:
    """Lines that print without `say`."""
    if not any(word in source for word in ("print", "stdout", "stderr")):
        return []  # nothing to parse for
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]


def test_everything_is_printed_by_the_one_function() -> None:
    found = {
        str(file.relative_to(ROOT)): lines
        for file in [*(ROOT / "hftune").rglob("*.py"), *ROOT.glob("*.py")]
        if file != ROOT / "hftune" / "visible.py" and (lines := printed(file.read_text()))
    }
    assert not found


# --- names that become folders ---

NAMES = {
    "above": "..",
    "whole": "/tmp/x",
    "within": "a/b",
    "a dot": ".",
    "a flag": "-rf",
    "nothing": "",
    "a blank": " ",
    "a line": "a\nb",
    "an escape": "a\x1b[2J",
    "home": "~",
    "substitution": "$(id)",
    "a star": "*",
    "too long": "x" * 300,
}


def pipeline(tmp_path: Path, stage: str = "one", matrix: str = "") -> Path:
    file = tmp_path / "p.yaml"
    rest = f"  {json.dumps(stage)}: {{script: sft, train_file_dir: d, learning_rate: '${{lr}}'}}\n"
    file.write_text(f"model: m\noutput_dir: o\nvalues: {{lr: 1}}\n{matrix}stages:\n{rest}", encoding="utf-8")
    return file


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_names_of_stages_combinations_and_values(name: str, tmp_path: Path) -> None:
    for given in ({"stage": name}, {"matrix": f"matrix:\n  {json.dumps(name)}: [1, 2]\n"}):
        with pytest.raises(ArgumentError, match="cannot be the name of a folder") as caught:
            steps_of(read_spec(pipeline(tmp_path, **given)))
        assert "p.yaml:5" in str(caught.value) and harmless(str(caught.value))


@pytest.mark.parametrize("value", NAMES.values(), ids=NAMES.keys())
def test_values_stay_in_the_pipeline_s_folder(value: str, tmp_path: Path) -> None:
    matrix = f"matrix:\n  lr: [{json.dumps(value)}, x]\n"
    steps = steps_of(read_spec(pipeline(tmp_path, matrix=matrix)))
    for step in steps:
        place = os.path.normpath(step.folder)
        assert place.split(os.sep)[0] == "o" and len(place.split(os.sep)) == 3 and harmless(place)


@pytest.mark.parametrize(
    "name", ["sft", "sft-2", "sft_2", "a.b", "_x", "α", "对话", "lr=1", "1e-4", "x" * names.LONGEST]
)
def test_plain_names_stay(name: str, tmp_path: Path) -> None:
    (step,) = steps_of(read_spec(pipeline(tmp_path, stage=name)))
    assert step.folder == Path("o") / name
