"""The report: what it says, and that it needs nothing else."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from hftune.checkpoints.manifest import COMPLETE, write_manifest
from hftune.errors import ManifestError
from hftune.tools.reporting import stages
from hftune.tools.reporting.page import spark, write_pages
from hftune.tools.reporting.stages import read_stages
from hftune.tools.reporting.svg import chart
from tests.unit.tools.reporting.files import Tags

NASTY = "<script>alert(1)</script> & | ```"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """sft and dpo upon it, with everything that a report can show, and the words that could break it."""
    for name, parent in (("sft", "base"), ("dpo", f"{tmp_path}/sft")):
        folder = tmp_path / name
        folder.mkdir()
        lines = [{"began": True, "step": 0, "time": 100.0, "tokens": None}]
        for step in range(1, 31):
            logged = {"loss": 3 / step, "grad_norm": 1.0, "learning_rate": 1e-3, "kl": 0.1 * step, "reward": step - 9.0}
            logged |= {"step": step, "max_steps": 30, "time": 100.0 + 2 * step, "tokens": 64 * step, "memory_gb": 1.5}
            logged["tokens_per_second"] = 32.0
            lines.append(logged)
        text = "".join(json.dumps(line) + "\n" for line in lines) + '{"loss": 1, "st'  # killed while it wrote
        (folder / "progress.jsonl").write_text(text)
        (folder / "samples.json").write_text(json.dumps([[["user: " + NASTY, False], ["answer " * 40, True]]]))
        (folder / "answers.json").write_text(
            json.dumps({"questions": ["Who are you? " + NASTY], "answers": {"base": ["x" * 300], "after": ["Tuner"]}})
        )
        if name == "dpo":
            turns = [{"role": "user", "content": "How much?"}]
            rows = [
                {"step": step, "mode": "train", "prompt": turns, "rewards": {"rm": step}} for step in (1, 1, 1, 5, 9)
            ]
            text = "".join(json.dumps({**row, "completion": f"said {row['step']}"}) + "\n" for row in rows)
            (folder / "completions.jsonl").write_text(text)
        about = {"train": {"files": ["a.jsonl"], "rows": 9, "used": 7, "dropped": {"no answer": 2}, "truncated": 1}}
        manifest = {
            "stage": name,
            "status": COMPLETE,
            "command": [f"run_{name}.py", "--local_rank=0", "--train_file_dir", "a folder"],
            "arguments": {"training": {"learning_rate": 1e-3}, "adapter": {}},
            "base": {"name": parent},
            "data": about,
            "metrics": {"eval_loss": 1.25},
            "notices": [NASTY],
            "teachers": [{"name": "teacher " + NASTY, "fingerprint": ""}],
        }
        write_manifest(folder, manifest)
    (tmp_path / "previous" / "sft").mkdir(parents=True)
    (tmp_path / "previous" / "sft" / "hftune.json").write_text("{}")
    return tmp_path


def test_the_page_is_whole_and_alone(pipeline: Path) -> None:
    html, markdown = (file.read_text() for file in write_pages(pipeline))
    tags = Tags(html)
    loads = [value for name, value in tags.attributes if name in ("src", "href") and value[:1] != "#"]
    assert tags.open == [] and loads == ["data:,"] and "script" not in tags.tags
    assert "url(" not in html and "@import" not in html
    titles = (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Reward",
        "KL to the reference",
        "Tokens per second",
        "Peak memory",
    )
    for said in (*titles, "2 no answer", "no answer", "Who are you?", "eval_loss", "run_dpo.py --train_file_dir"):
        assert said in html and said in markdown, said
    assert html.index('id="s0"><h2>sft') < html.index('id="s1"><h2>dpo'), "what builds on another comes after it"
    assert html.count("said 1") == 2 and "said 9" in html and "said 5" not in html and "How much?" in markdown
    assert "<dt>step 9<small>rm 9</small></dt>" in html and "rm 9" in markdown
    assert "<mark>answer" in html and "«answer" in markdown
    assert "--local_rank" not in html and "previous" not in html
    assert "taught by <code>teacher" in html and "taught by `" in markdown


def test_speed_is_what_the_run_logged(pipeline: Path) -> None:
    """An evaluation counts for nothing, and no time between two starts."""
    (stage, _) = read_stages(pipeline)
    assert stage.curves["Tokens per second"]["tokens/s"] == ([*range(1, 31)], [32.0] * 30)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("samples.json", "[7]"),
        ("samples.json", '[[["user", false, 1]]]'),
        ("completions.jsonl", '{"mode": "train"}\n'),
        ("answers.json", '{"questions": 1, "answers": [2]}'),
        ("hftune.json", '{"stage": "sft", "status": "complete", "command": [0.5]}'),
    ],
)
def test_files_of_another_shape_are_one_message(pipeline: Path, name: str, text: str) -> None:
    """It ended in a traceback; the old pages stay."""
    write_pages(pipeline)
    old = (pipeline / "report.html").read_bytes()
    (pipeline / "sft" / name).write_text(text)
    with pytest.raises(ManifestError, match=r"have another shape than those that hftune writes \(\w+Error: \S"):
        write_pages(pipeline)
    assert (pipeline / "report.html").read_bytes() == old


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no hftune\.json"):
        write_pages(tmp_path)
    with pytest.raises(ManifestError, match="no folder"):
        write_pages(tmp_path / "none")


def test_charts_of_odd_values() -> None:
    assert "nothing finite" in chart({"loss": ([1, 2], [math.nan, math.inf])}, "Loss")
    assert "nan" not in chart({"loss": ([1, 2, 3], [1.0, math.nan, 2.0])}, "Loss")
    flat = chart({"a": ([5], [0.0])}, "One")
    assert "<circle" in flat and "inf" not in flat and flat.count("<text") == 2
    assert spark(([1, 2, 3], [0.0, math.nan, 1.0])) == "▁x█"


def test_a_chart_is_to_scale() -> None:
    """The picture is 360 wide and 210 high; its figures stand at the left and below."""
    drawn = chart({"a": ([0, 50, 100], [1.0, 3.0, 2.0]), "b": ([], []), "c": ([0], [1.0])}, "Two")
    assert '<path class="line c0" d="M66.0 184.0L201.0 12.0L336.0 98.0"/>' in drawn, "largest above, smallest below"
    assert re.findall("<text.*?>(.*?)<", drawn) == ["1.0000", "2.0000", "3.0000", "0", "100"]
    assert "a: 3.0000 at step 50" in drawn and re.findall('<i class="(c.)"></i>(.)', drawn) == [
        ("c0", "a"),
        ("c2", "c"),
    ]
    assert chart({"a": ([*range(200)], [1.0] * 200)}, "Many").count("<circle") == 1


def test_capabilities_are_one_table(pipeline: Path) -> None:
    for name, value in (("base", 3.0), ("sft", 2.5)):
        folder = pipeline / f"{name}-evaluated"
        folder.mkdir()
        figures = {
            "loss": {"value": value, "low": value - 0.25, "high": value + 0.25, "records": 9, "perplexity": 12.25}
        }
        (folder / "evaluation.json").write_text(json.dumps({"models": {f"out/{name}": figures}, "against": None}))
        write_manifest(folder, {"stage": "evaluate", "status": COMPLETE, "parents": [{"folder": str(folder)[:-10]}]})
    page, text = (file.read_text() for file in write_pages(pipeline))
    assert text.count("## Capabilities") == page.count("<h3>Capabilities</h3>") == 1
    assert re.search(r"\| base +\| 3.0000 \[2.7500, 3.2500\], perplexity 12.25 \|", text)
    assert "evaluated" not in re.sub("from <code>.*?</code>", "", page), "no part of the page is an evaluation's alone"


def test_runs_that_are_not_shown_are_said(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read_stages(pipeline)) == 2 and not capsys.readouterr().out
    monkeypatch.setattr(stages, "MOST_RUNS", 1)
    assert len(read_stages(pipeline)) == 1 and "only the first 1 runs are shown" in capsys.readouterr().out
