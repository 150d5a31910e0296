"""Reports and model cards from hostile manifests: no tag, no attribute, no link, no cell, no header of theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hftune.checkpoints.manifest import COMPLETE
from hftune.checkpoints.model_card import model_card
from hftune.constants import MANIFEST_NAME
from hftune.errors import ManifestError
from hftune.tools.reporting.page import write_pages
from hftune.tools.reporting.svg import chart
from hftune.visible import code, markdown
from tests.unit.tools.reporting.files import Tags

ATTACKS = {
    "a script": "<script>alert(1)</script>",
    "out of an attribute": '" onmouseover="alert(1)',
    "out of style": "</style><script>alert(1)</script>",
    "out of pre": "</pre><iframe src=http://evil.invalid></iframe>",
    "a comment": "<!-- x",
    "a Markdown link": "[click](javascript:alert(1))",
    "a reference": "[x][y]",
    "an autolink": "<http://evil.invalid>",
    "a row": "a\n| b | c |",
    "a heading": "a\n\n# b",
    "backticks": "``` x `y` ````",
    "a fence": "\n```\n<script>alert(1)</script>\n```\n",
    "an escaped pipe": "a\\|b",
    "two backslashes": "\\\\<img src=x onerror=alert(1)>",
    "out of code": "`<img src=x onerror=alert(1)>`",
    "front matter": "x\n---\nlicense: other\n",
    "an escape": "\x1b]52;c;eA==\x07\u202egpj.exe\0",
    "half a character, in JSON": "\ud83d<b>",
}
EVERY = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
OURS = set(
    re.findall(
        r"\w+",
        "html head meta link title style body main nav a h1 h2 h3 p div section span code figure figcaption svg path "
        "text circle i table thead tbody tr th td pre mark details summary ul li dl dt dd small",
    )
)


def folder_of(tmp_path: Path, attack: str) -> Path:
    """A stage in which everything that may be a text is the attack."""
    (tmp_path / "progress.jsonl").write_text(
        "".join(json.dumps({"step": n, "time": float(n), "loss": 1.0 / n, "max_steps": 9}) + "\n" for n in range(1, 9))
    )
    (tmp_path / "samples.json").write_text(json.dumps([[[attack, True], [attack, False]]]))
    model, other = f"m{attack}", f"n{attack}"
    answers = {"questions": [attack], "answers": {model: [attack], other: [attack]}, "max_new_tokens": attack}
    answers |= {"rewards": {model: [1.0], other: [attack]}, "reward_model": f"rm{attack}"}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    line = {"step": attack, "prompt": attack, "completion": attack, "rewards": {attack: 1.0}, "mode": "train"}
    (tmp_path / "completions.jsonl").write_text(json.dumps(line) + "\n")
    about = {"files": [f"d/{attack}"], "rows": 3, "used": 2, "dropped": {attack: 1}, "truncated": 1}
    manifest = {
        "stage": "sft",
        "status": attack,
        "kind": attack,
        "command": ["run_sft.py", attack],
        "arguments": {"training": {"learning_rate": attack, "seed": attack, "lr_scheduler_type": attack}},
        "base": {"name": attack},
        "data": {"train": {**about, "tokens": 4, "trained_tokens": 3}},
        "metrics": {"eval_loss": 1.0, attack: 2.0},
        "notices": [attack],
        "verified": {"largest": attack, "mean": attack},
        "versions": {attack: attack},
    }
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    return tmp_path


def outside_fences(text: str) -> str:
    """Markdown without its blocks of code, and without spans of code."""
    kept, fence = [], ""
    for line in text.split("\n"):
        found = re.match("`{3,}", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found:
            fence = found.group()
        else:
            kept.append(line)
    return re.sub(r"(?<!\\)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", "\n".join(kept))


def live(text: str) -> list[str]:
    """Tags, links and pictures in it that no backslash stops."""
    bare = re.sub(r"\\\\", "", outside_fences(text)).replace("<br>", "")
    return re.findall(r"(?<!\\)<[a-zA-Z!/?]|\]\(|\]\[|^\[[^\]]*\]:", bare, re.MULTILINE)


@EVERY
def test_the_report(attack: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, attack)
    if "\ud83d" in attack:
        with pytest.raises(ManifestError, match="surrogates"):
            write_pages(folder)
        return
    page, twin = write_pages(folder)
    text = page.read_text(encoding="utf-8")
    seen = Tags(text)
    assert {*seen.tags} <= OURS
    assert seen.comments == []
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name in ("src", "action", "srcdoc")]
    linked = [value for name, value in seen.attributes if name == "href"]
    assert all(value is not None and value.startswith(("#s", "data:,")) for value in linked)
    assert seen.tags.count("script") == 0 and seen.tags.count("style") == 1 and seen.tags.count("meta") == 3
    page_text, text = text, twin.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page_text + text)
    assert text and not live(text)
    headings = [line for line in outside_fences(text).split("\n") if line.startswith("#")]
    assert not [line for line in headings if line.lstrip("#").strip() == "b"]
    for block in re.findall(r"(?:^\|.*\n?)+", outside_fences(text), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) for line in block.strip().split("\n")}
        assert len(cells) == 1, "every row has as many cells"


@EVERY
def test_the_model_card(attack: str) -> None:
    manifest = {
        "stage": "sft",
        "status": COMPLETE,
        "kind": attack,
        "head": attack,
        "base": {"name": attack},
        "arguments": {"training": {"learning_rate": attack, "seed": attack, "optim": attack}},
        "data": {"train": {"used": 3, "files": [f"d/{attack}", attack]}},
        "metrics": {"eval_loss": 1.0, f"eval_{attack}": 2.0},
        "versions": {attack: attack},
    }
    for name in (attack, "mine"):
        text = model_card(manifest, name, [manifest])
        head, body = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        fields = yaml.safe_load(head)
        assert {*fields} <= {"library_name", "pipeline_tag", "tags", "base_model"}
        assert not live(body) and "\n---" not in body and "license" not in fields
        assert not [line for line in body.split("\n") if line == "# b"]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_names_of_the_hub() -> None:
    for name in ("me/mine", "a.b/c-d_e", "0x/1"):
        assert f"base_model: {name}" in model_card({"stage": "sft", "base": {"name": name}}, "x")
    for name in ("a/b\n---\nx: y", "a/b c", "../x", "/a/b", "-a/b", "a/b/c", "a/<b>", "a\x1b/b", "é/b"):
        assert "base_model" not in model_card({"stage": "sft", "base": {"name": name}}, "x")


def test_between_backticks() -> None:
    for attack in ATTACKS.values():
        text = code(attack)
        fence = re.match("`+", text).group()  # type: ignore[union-attr]
        assert text.endswith(fence) and "\n" not in text
        assert fence not in re.findall("`+", text[len(fence) : -len(fence)])


def test_a_chart_s_words() -> None:
    for attack in ATTACKS.values():
        seen = Tags(chart({attack: ([1, 2], [1.0, 2.0]), "b": ([1], [3.0])}, attack))
        assert {*seen.tags} <= OURS and not [name for name, _ in seen.attributes if name.startswith("on")]


def test_what_is_harmless_reads_as_it_was() -> None:
    for text in ("lora_rank", "a * b", "50 %", "天气", "1 < 2"):
        assert markdown(text).replace("\\", "") == text


def test_the_page_may_load_and_run_nothing(tmp_path: Path) -> None:
    page, _ = write_pages(folder_of(tmp_path, "x"))
    policy: dict[str, Any] = dict(re.findall(r'http-equiv="(.*?)" content="(.*?)"', page.read_text()))
    assert policy["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
