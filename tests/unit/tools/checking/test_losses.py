"""The loss of each record is what the model itself says of its tokens, whatever is batched with it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.checking.losses import Outlying
from tests.unit.tools.checking import made

pytestmark = pytest.mark.long
RNG = random.Random(30)


def checked(model: Path, folder: Path, *words: object) -> tuple[dict[int, float], dict[str, Any]]:
    """The losses by line, and the summary."""
    asked = ["data", "check", *map(str, words), "--model", str(model), "--output_dir", str(folder), "--use_cpu"]
    dispatch([*asked, "--preprocessing_num_workers", "1"])
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return {one["line"]: one["loss"] for one in lines}, json.loads((folder / "summary.json").read_text())


def alone(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> float:
    """Mean of -log p of the answer's tokens, from whole logits: those behind the prompt, with what ends the turn."""
    template = {"tokenize": True, "return_dict": False}
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, **template)
    whole = tokenizer.apply_chat_template(messages, **template)
    assert whole[: len(prompt)] == prompt
    with torch.no_grad():
        log_probs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    end = max(place for place, token in enumerate(whole) if token == tokenizer.eos_token_id) + 1
    return -float(sum(log_probs[at - 1, whole[at]] for at in range(len(prompt), end))) / (end - len(prompt))


def test_losses_are_those_of_the_model(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records: list[Any] = [made.conversation(RNG, words=words) for words in (6, 30, 12)]
    ask, good = made.sentence(RNG, 5), made.sentence(RNG, 9)
    pair = {"prompt": ask, "chosen": good, "rejected": made.sentence(RNG, 9)}
    text = {"text": made.sentence(RNG, 20)}
    data = made.write(tmp_path / "d.jsonl", *records, {"no": 1}, pair, text, {"prompt": ask})
    found, summary = checked(tiny_model, tmp_path / "o", data)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    wanted = {line: alone(model, tokenizer, one["messages"]) for line, one in enumerate(records, start=1)}
    wanted[5] = alone(model, tokenizer, [{"role": "user", "content": ask}, {"role": "assistant", "content": good}])
    ids = torch.tensor([[*tokenizer(text["text"])["input_ids"], tokenizer.eos_token_id]])
    with torch.no_grad():
        wanted[6] = float(model(ids, labels=ids).loss)
    # A prompt has nothing to learn, and what cannot be read has no loss.
    assert found == pytest.approx(wanted, abs=2e-4)
    # One at a time, and with others: the same.
    single, _ = checked(tiny_model, tmp_path / "p", data, "--batch_tokens", "1")
    assert single == pytest.approx(found, abs=1e-4)
    assert summary["median_loss"] == pytest.approx(float(np.median([*wanted.values()])), abs=1e-3)
    (about,) = summary["sources"].values()
    said = [" ".join(turn["content"] for turn in one["messages"]) for one in records]
    assert about["tokens"]["total"] > sum(len(tokenizer(one)["input_ids"]) for one in said)
    worst = max(wanted, key=wanted.__getitem__)
    assert f"the worst is {found[worst]:.3f} of {data}:{worst}" in capsys.readouterr().out
    page = (tmp_path / "o" / "report.html").read_text()
    assert page.index(f"d.jsonl:{worst}</td>") > page.index("Least likely under the model")


def test_losses_belong_to_their_records_behind_ancestors(tiny_model: Path, tmp_path: Path) -> None:
    from hftune.checkpoints.manifest import COMPLETE, write_manifest

    old = made.write(tmp_path / "old.jsonl", *(made.conversation(RNG) for _ in range(3)))
    folder = tmp_path / "m"
    folder.mkdir()
    about = {"train": {"files": [str(old)], "rows": 3, "used": 3}}
    write_manifest(folder, {"stage": "sft", "status": COMPLETE, "data": about})
    other = "\u03b1\u03b2\u03b3" * 6
    odd = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": other}]}
    data = made.write(tmp_path / "d.jsonl", made.conversation(RNG), odd)
    found, _ = checked(tiny_model, tmp_path / "o", data, "--ancestors", folder, "--max_length", "4096")
    assert [*found] == [1, 2]
    page = (tmp_path / "o" / "report.html").read_text()
    table = page[page.index("Least likely") :].partition("</table>")[0]
    assert table.count("d.jsonl:") == 2 and "old.jsonl" not in table


def test_what_is_far_above_the_others() -> None:
    losses = np.array([2.0, 2.1, 1.9, math.nan, 2.2, 1.8, 9.0, 2.0, 5.0])
    found = Outlying(losses)
    # By hand: the median of the eight is 2.05, the distances' median 0.15, so that 2.95 is the limit.
    assert found.median == pytest.approx(2.05) and found.limit == pytest.approx(2.05 + 6 * 0.15)
    assert found.numbers(losses) == [6, 8]
    assert Outlying(np.array([math.nan])).numbers(np.array([math.nan])) == []
    # Where all are nearly equal, small differences are none.
    assert Outlying(np.array([2.0, 2.0, 2.0, 2.2])).numbers(np.array([2.0, 2.0, 2.0, 2.2])) == []


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    data = made.write(tmp_path / "d.jsonl", made.conversation(RNG))
    (tmp_path / "m").mkdir()
    with pytest.raises(ArgumentError, match="there is no model"):
        checked(tmp_path / "m", tmp_path / "o", data)
