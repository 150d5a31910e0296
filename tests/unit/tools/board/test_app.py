"""`hftune board`: its words and its address, who may ask, and that what runs say stays text."""

from __future__ import annotations

import _thread
import base64
import hashlib
import html
import http.client
import json
import os
import re
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hftune.checkpoints.manifest import COMPLETE, INTERRUPTED
from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.board import app
from hftune.tools.board.app import HEADERS, Board, serve
from hftune.tools.board.pages import number
from hftune.tools.listening import bound
from tests.unit.tools.reporting.files import Tags, log_line, write_run

TOKEN = "token-of-the-test-0123456789"
HOST = "127.0.0.1:8765"


@dataclass
class Said:
    status: int
    text: str

    @property
    def said(self) -> str:
        """Its words, without tags."""
        return html.unescape(re.sub(r"<[^>]*>", " ", self.text))


def ask(board: Board, path: str, *, token: str = TOKEN, host: str = HOST) -> Said:
    """What the board answers."""
    status, text = board.answer(f"/{token}/{path}", host)
    return Said(status, text)


NASTY = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> \"'& {0} \x1b[2J"
PAGES = ("", "compare")


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two runs, one of which was made from the other."""
    folder = tmp_path / "outputs"
    write_run(folder / "pt", 30, COMPLETE, metrics={"eval_loss": 1.5})
    write_run(folder / "sft", 10, base={"name": str(folder / "pt")}, notices=["a notice"])
    return folder


@pytest.fixture
def board(outputs: Path) -> Board:
    return Board([outputs], TOKEN)


def place(board: Board, name: str) -> str:
    return number(board.pages._runs.tops[0] / name)


# --- who may ask ------------------------------------------------------------------------------------------------------


def test_nothing_without_the_token(board: Board) -> None:
    for page in (*PAGES, f"run/{place(board, 'sft')}"):
        assert ask(board, page).status == 200, page
        for token in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "%2e%2e", "é"):
            answer = ask(board, page, token=token)
            assert answer.status == 404 and "sft" not in answer.text, (page, token)


def test_asked_for_by_another_name(board: Board) -> None:
    for host in ("evil.invalid:8765", "", "127.0.0.1.evil.invalid", "[::1"):
        answer = ask(board, "", host=host)
        assert answer.status == 403 and "sft" not in answer.text, host
    for host in ("localhost:9000", "[::1]:8765"):  # a tunnel may have another port
        assert ask(board, "", host=host).status == 200, host


def test_over_the_network(board: Board, outputs: Path) -> None:
    """It only reads, and every page has the headers."""
    before, found = sorted(outputs.rglob("*")), []

    def asked(method: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()

    def ready() -> None:
        found.extend(asked("GET", path) for path in (f"/{TOKEN}/", f"/{TOKEN}/compare", "/", f"/{TOKEN}/run/none"))
        found.append(asked("GET", f"/{TOKEN}/", Host="evil.invalid"))
        for method in ("POST", "PUT", "DELETE"):
            assert asked(method, f"/{TOKEN}/")[0] == 501
        _thread.interrupt_main()

    with closing(bound("127.0.0.1", 0)) as listening, pytest.raises(KeyboardInterrupt):
        # Requests are taken by this thread, which is interrupted at last.
        serve(board, listening, threading.Thread(target=ready).start)
    assert [status for status, *_ in found] == [200, 200, 404, 404, 403]
    for _, headers, text in found:
        assert {name: headers.get(name.lower()) for name in HEADERS} == HEADERS, text
        assert not any(name.startswith("access-control") for name in headers) and "python" not in headers["server"]
        assert headers["content-type"].startswith("text/html" if text.startswith("<!DOCTYPE") else "text/plain")
    assert sorted(outputs.rglob("*")) == before


def test_the_policy_lets_the_pages_own_style_in_and_nothing_else(board: Board) -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    style = ask(board, "").text.split("<style>")[1].split("</style>")[0]
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy


# --- what is read -----------------------------------------------------------------------------------------------------


def test_no_path_is_taken_from_an_address(board: Board, outputs: Path) -> None:
    write_run(outputs.parent / "secret", 5)
    (outputs / "link").symlink_to(outputs.parent / "secret")
    for path in ("../../secret", "..%2f..%2fsecret"):
        assert ask(board, f"run/{path}").status == 404
    hidden = number(outputs.parent / "secret")
    assert ask(board, f"run/{hidden}").status == 404
    assert "step 5" not in ask(board, f"compare?run={hidden}&run={place(board, 'sft')}").text
    assert "secret" not in ask(board, "").text and "/link" not in ask(board, "").text


def test_a_file_that_leads_out_is_not_read(board: Board, outputs: Path) -> None:
    secret = outputs.parent / "secret.json"
    secret.write_text(json.dumps({"questions": ["the secret"], "answers": {"a": ["b"]}}))
    (outputs / "sft" / "answers.json").symlink_to(secret)
    page = ask(board, f"run/{place(board, 'sft')}")
    assert page.status == 200 and "the secret" not in page.text and "is a link out of" in page.said


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_first_page(board: Board) -> None:
    page = ask(board, "")
    assert "step 10/30, loss 0.3, 50 tokens/s, 40 s left" in page.said and "running" in page.said
    assert page.text.index(">sft</a>") < page.text.index(">pt</a>"), "what was written last comes first"
    assert page.text.count("<svg") == 2 and '<progress value="10" max="30">' in page.text
    assert '<meta http-equiv="refresh"' in page.text and "<script" not in page.text
    assert "http://" not in page.text and "https://" not in page.text


def test_runs_are_chosen_in_a_form(board: Board) -> None:
    one, other = place(board, "sft"), place(board, "pt")
    assert 'href="compare"' in ask(board, "").text
    page = ask(board, f"compare?run={one}").text
    assert f'value="{one}" checked>' in page and f'value="{other}">' in page and '<form action="compare">' in page
    assert "Choose two runs" in page and "<svg" not in page and "refresh" not in page, "a choice would be lost"


def test_a_run(board: Board, outputs: Path) -> None:
    (outputs / "sft" / "samples.json").write_text(json.dumps([[["user: Hi", False], ["Hello", True]]]))
    asked = {"questions": ["Who?"], "answers": {"base": ["nobody"], "sft": ["Tuner"]}}
    (outputs / "sft" / "answers.json").write_text(json.dumps(asked))
    (outputs / "sft" / "checkpoint-10").mkdir()
    (outputs / "sft" / "checkpoint-10" / "hftune_checkpoint.json").write_text("{}")
    page = ask(board, f"run/{place(board, 'sft')}")
    for text in ("<mark>Hello</mark>", "Tuner", "nobody", "a notice", "run_sft.py", "Checkpoints: 10"):
        assert text in page.text, text
    assert f"from <code>{outputs / 'pt'}</code>" in page.text


def test_why_a_run_stopped(board: Board, outputs: Path) -> None:
    write_run(outputs / "sft", 3, INTERRUPTED)
    (outputs / "sft" / "run.log").write_text("out of memory\n")
    assert "out of memory" in ask(board, f"run/{place(board, 'sft')}").said


def test_compared(board: Board, outputs: Path) -> None:
    rates = {"sft": 5e-4, "pt": 1e-3}
    for name, rate in rates.items():
        given = {"learning_rate": rate, "seed": 1, "output_dir": name, **({"packing": True} if name == "sft" else {})}
        found = {"training": given, "adapter": {"lora_r": [rate]}}
        write_run(outputs / name, 10, arguments=found, metrics={"eval_loss": 1.25} if name == "sft" else {})
    with (outputs / "pt" / "progress.jsonl").open("a") as stream:
        stream.write(log_line(11, 0, kl=1.0))
    os.utime(outputs / "sft" / "progress.jsonl", (time.time() + 9,) * 2)  # it comes first
    page = ask(board, f"compare?run={place(board, 'sft')}&run={place(board, 'pt')}&run=none")
    loss = page.text.split("<figcaption>Loss, training</figcaption>")[1].split("</figure>")[0]
    assert loss.count('<path class="line') == 2 and "pt</span>" in loss and "sft</span>" in loss
    table = page.said.split("Arguments that differ")[1]
    assert "learning_rate" in table and "lora_r" in table
    assert not [name for name in ("seed", "output_dir", "packing") if name in table], "alike, or of one of them alone"
    # A run has its colour, also where it is alone.
    colour = re.search(r'<i class="(c\d)"></i>pt</span>', loss)
    alone = page.text.split("<figcaption>KL to the reference</figcaption>")[1].split("</figure>")[0]
    assert colour and f'class="line {colour[1]}"' in alone
    assert "eval_loss" in table


def test_nothing_that_runs_say_becomes_part_of_a_page(tmp_path: Path) -> None:
    """Names, logs, arguments and metrics; what a report shows as well is tried in tests/security/test_pages.py."""
    folder = tmp_path / "o" / ("sft<img src=x onerror=alert(1)>" + "\"'&{0}")
    about = {"base": {"name": NASTY}, "notices": [NASTY], "command": [NASTY], "metrics": {NASTY: 1.0}}
    about |= {"arguments": {"training": {NASTY: NASTY, "learning_rate": NASTY}}}
    write_run(folder, 5, INTERRUPTED, **about)
    write_run(tmp_path / "o" / "other", 5)
    (folder / "run.log").write_text(NASTY + "\n")
    board = Board([tmp_path / "o"], TOKEN)
    ids = [place(board, name) for name in (folder.name, "other")]
    for page in ("", f"run/{ids[0]}", f"compare?run={ids[0]}&run={ids[1]}"):
        answer = ask(board, page)
        found = Tags(answer.text)
        assert answer.status == 200 and not {"img", "script"} & {*found.tags}, (page, answer.text)
        assert not [name for name, _ in found.attributes if name.startswith(("on", "style"))]
        assert "\x1b" not in answer.text
    text = ask(board, f"run/{ids[0]}").text
    assert "alert(1)" in text and "{0}" in text, "it is shown, as text"


@pytest.mark.parametrize("wrong", [{"base": "text"}, {"arguments": {"training": 1}}, {"status": ["x"]}], ids=str)
def test_manifests_of_another_shape(board: Board, outputs: Path, wrong: dict) -> None:
    write_run(outputs / "sft", 10, **wrong)
    for page in ("", f"run/{place(board, 'sft')}", f"compare?run={place(board, 'sft')}&run={place(board, 'pt')}"):
        answer = ask(board, page)
        assert answer.status == 200 and ("compare" in page or "step 10/30" in answer.said), answer.said[:500]


@pytest.mark.parametrize("name", ["samples.json", "answers.json", "completions.jsonl"])
def test_files_of_another_shape(board: Board, outputs: Path, name: str) -> None:
    for text in ('{"step": {}, "questions": 1}', "{"):
        (outputs / "sft" / name).write_text(text + "\n")
        answer = ask(board, f"run/{place(board, 'sft')}")
        assert answer.status == 200 and "step 10/30" in answer.said


def test_a_file_that_is_too_large(board: Board, outputs: Path) -> None:
    with (outputs / "sft" / "answers.json").open("wb") as stream:
        os.truncate(stream.fileno(), 1 << 30)
    assert "has at most 16.0 MiB" in ask(board, f"run/{place(board, 'sft')}").said


def test_nothing_has_begun(tmp_path: Path) -> None:
    page = ask(Board([tmp_path], TOKEN), "")
    assert page.status == 200 and "No run has begun" in page.said


def test_what_nobody_foresaw_is_no_traceback(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(board.pages, "_read", broken)
    answer = ask(board, "")
    assert answer.status == 500 and "the inside" not in answer.text


def test_the_address_has_a_token_and_is_this_machine_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def serve(board: Any, listening: Any, ready: Any) -> None:
        found.append((board, listening.getsockname()))
        ready()

    monkeypatch.setattr(app, "serve", serve)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        dispatch(["board", "--port", "0"])
    first, second = re.findall(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/ ", capsys.readouterr().out)
    assert first[1] != second[1], "another one each time"
    assert [address for _, address in found] == [("127.0.0.1", int(first[0])), ("127.0.0.1", int(second[0]))]


def test_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["board", "--help"])
    assert "hftune board [FOLDER ...]" in capsys.readouterr().out
    for argv, match in (
        ([str(tmp_path / "none")], "there is no"),
        (["run.yaml"], "starts no pipelines"),
        (["--port", "x"], "a number from 0 to 65535, not"),
        (["--port=99999"], "a number from 0 to 65535, not"),
        (["--host", "0.0.0.0"], "unrecognized arguments: --host"),
    ):
        with pytest.raises(ArgumentError, match=match):
            dispatch(["board", *argv])
