"""`hftune board` in a real browser, phone and desk: curves grow, runs compare, a pipeline starts and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hftune.constants import INTERRUPTED_EXIT_CODE
from tests.browser import Page, browser, chromium
from tests.conftest import ROOT
from tests.unit.tools.watching.files import log_line, write_run

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium here")
PHONE, DESK = 360, 1280
DOTS = "document.querySelectorAll('svg circle').length"


@contextmanager
def board(folder: Path, log: Path) -> Iterator[str]:
    """A board as a user starts it; gives its address."""
    command = [sys.executable, "-m", "hftune.cli", "board", str(folder), "--port", "0"]
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, stdout=stream)
    try:
        end = time.monotonic() + 60
        while not (found := re.search(r"http://\S+/", log.read_text())):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == INTERRUPTED_EXIT_CODE


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def test_curves_grow_and_runs_compare(tab: Page, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    write_run(outputs / "a", 12, arguments={"training": {"learning_rate": 1e-3, "seed": 1}})
    write_run(outputs / "b", 5, arguments={"training": {"learning_rate": 5e-4, "seed": 1}})
    asked = {"questions": ["Who are you? " + "long " * 60], "answers": {"base": ["x" * 300], "b": ["Tuner"]}}
    (outputs / "b" / "answers.json").write_text(json.dumps(asked))
    with board(outputs, tmp_path / "board.log") as address:
        for steps, width in ((5, PHONE), (8, DESK)):
            tab.resize(width)
            tab.open(address)
            assert tab.value("innerWidth") == width and tab.too_wide() == []
            tab.value("[...document.querySelectorAll('a')].find(one => one.textContent === 'b').click()")
            tab.wait(f"document.body.innerText.includes('step {steps}/30')")
            tab.value("document.querySelector('details') && (document.querySelector('details').open = true)")
            before = tab.value(DOTS)
            with (outputs / "b" / "progress.jsonl").open("a") as stream:
                stream.write("".join(log_line(step, time.time() - 20) for step in range(steps + 1, steps + 4)))
            tab.wait(f"{DOTS} > {before}")
            tab.wait(f"document.body.innerText.includes('step {steps + 3}/30')")
            assert tab.too_wide() == [] and "Tuner" in tab.text()
            # Ticked ones stay ticked while the page changes.
            tab.open(address)
            tab.value("document.querySelectorAll('input[name=run]').forEach(one => one.click())")
            with (outputs / "a" / "progress.jsonl").open("a") as stream:
                stream.write(log_line(12 + steps, time.time() - 20))
            tab.wait(f"document.body.innerText.includes('step {12 + steps}/30')")
            assert tab.value("document.querySelectorAll('input[name=run]:checked').length") == 2
            tab.click("form[action=compare] button")
            tab.wait("document.body.innerText.includes('Arguments that differ')")
            lines = tab.value("document.querySelector('figure').querySelectorAll('path.line').length")
            assert lines == 2 and "learning_rate" in tab.text() and "seed" not in tab.text()
            assert tab.too_wide() == []
        assert tab.complaints == []
        # Without scripts the first page says the same.
        tab.scripts(False)
        tab.open(address)
        tab.scripts(True)
        assert "step 11/30" in tab.text() and tab.value("document.querySelectorAll('svg').length") == 2
        tab.leave()


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_pipeline_starts_and_stops(tab: Page, tiny_model: Path, tiny_data: Path, tmp_path: Path, width: int) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    tab.resize(width)
    with board(outputs, tmp_path / "board.log") as address:
        tab.open(address)
        tab.click("a[href$=new]")
        tab.wait("document.querySelector('input[value=sft]')")
        tab.click("input[value=sft]")
        tab.click("form button")
        tab.wait("document.querySelector('[name=\"sft.learning_rate\"]')", 90)
        assert tab.too_wide() == []
        tab.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert tab.too_wide() == []
        # The search leaves what it finds.
        tab.value("""(() => { const one = document.querySelector('[data-filter]'); one.value = 'warmup';
            one.dispatchEvent(new Event('input')); })()""")
        hidden = "document.querySelector('[name=\"sft.{}\"]').closest('label').hidden"
        assert tab.value(hidden.format("weight_decay")) and not tab.value(hidden.format("warmup_steps"))
        values = {"name": "tiny", "model": str(tiny_model), "sft.train_file_dir": f"{tiny_data}/sft"}
        values |= {"sft.max_steps": "500", "sft.per_device_train_batch_size": "2", "sft.logging_steps": "1"}
        for name, value in values.items():
            tab.fill(f'[name="{name}"]', value)
        tab.click("button[value=run]")
        tab.wait("document.body.innerText.includes('hftune pipeline') || location.pathname.includes('/pipeline/')")
        tab.wait("/step [1-9][0-9]*\\/500/.test(document.body.innerText)", 180)
        assert tab.too_wide() == [] and "running" in tab.text()
        tab.click("button[value=stop]")
        tab.wait("document.body.innerText.includes('a checkpoint is saved')", 90)
        assert [*(outputs / "tiny" / "sft").glob("checkpoint-*")]
        assert json.loads((outputs / "tiny" / "sft" / "hftune.json").read_text())["status"] == "interrupted"
        tab.open(address)
        assert "stopped" in tab.text() and tab.too_wide() == []
        assert tab.complaints == []
        tab.leave()
