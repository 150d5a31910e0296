"""A student of a server learns what it learns of the same teacher itself, in any number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.cli import dispatch
from tests.answering import Answer, server

KEY = "key-of-the-teacher-0123456789"


def teaching(folder: Path) -> Callable[[str, Any], Answer]:
    """What vLLM's server says of a model's log-probabilities."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def answer(path: str, body: Any) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "teacher"}]}
        ids = body["prompt"] if isinstance(body["prompt"], list) else tokenizer(body["prompt"]).input_ids
        log_probs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        values, tops = log_probs.topk(min(body["prompt_logprobs"], log_probs.shape[1]))
        said: list[Any] = [None]
        for place, token in enumerate(ids[1:]):
            likely = zip(tops[place].tolist(), values[place].tolist(), strict=True)
            entries = {token: float(log_probs[place, token]), **dict(likely)}
            said.append({str(one): {"logprob": value} for one, value in entries.items()})
        return 200, {"choices": [{"text": "", "prompt_logprobs": said, "prompt_token_ids": ids}]}

    return answer


@pytest.mark.slow
def test_a_student_learns_from_a_server_as_from_the_teacher(
    run: Callable,
    tiny_model: Path,
    tiny_teacher: Path,
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HFTUNE_TEACHER_API_KEY", KEY)
    with server(teaching(tiny_teacher)) as asked:
        gone = _compare(run, tiny_model, tiny_teacher, tiny_data, tmp_path, asked.url)
        assert all(headers["Authorization"] == f"Bearer {KEY}" for _, _, headers in asked.requests)
    ended = run(*gone, "--output_dir", str(tmp_path / "gone"), warm=True)
    assert ended.code == 2 and "does not answer" in ended.output and "Traceback" not in ended.output


def _compare(
    run: Callable, tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path, url: str
) -> list[str]:
    """Train with the teacher and with its server; a command that asks the server."""
    given = ["--model_name_or_path", tiny_model, "--train_file_dir", tiny_data / "sft", "--max_length", 64, "--use_cpu"]
    words = [str(word) for word in given]
    stored = str(tmp_path / "targets")
    source = ["--teacher_model_name_or_path", str(tiny_teacher)]
    dispatch(["teach", *words, *source, "--top_k", "5", "--output_dir", stored])
    asking = ["--teacher_server_url", url, "--teacher_top_k", "5"]
    again = str(tmp_path / "again")
    dispatch(["teach", *words, *asking, "--output_dir", again])
    words += ["--max_steps", "3", "--logging_steps", "1", "--beta", "0.5", "--learning_rate", "1e-3"]
    words += ["--gradient_accumulation_steps", "2", "--save_strategy", "no"]

    def losses(name: str, *more: str, processes: int = 1) -> list[float]:
        folder = tmp_path / name
        batch = ("--per_device_train_batch_size", str(4 // processes), "--output_dir", str(folder))
        launcher = {"launcher": f"torchrun --nproc_per_node {processes}"} if processes > 1 else {"warm": True}
        run("run_distill.py", *words, *batch, *more, **launcher).check()
        text = (folder / "hftune.json").read_text()
        assert KEY not in text
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        if asking[0] in more:
            assert json.loads(text)["teachers"] == [{"name": url.removeprefix("http://"), "fingerprint": None}]
        return [entry["loss"] for entry in history if "loss" in entry]

    offline = ("--distill_mode", "offline")
    wanted = losses("stored", *offline, "--teacher_targets", stored)
    assert len(wanted) == 3
    for file in sorted(Path(stored).glob("targets-*.safetensors")):
        mine, theirs = load_file(file), load_file(Path(again) / file.name)
        torch.testing.assert_close(theirs["log_probs"], mine["log_probs"], rtol=0, atol=1e-5)
        assert (theirs["ids"] == mine["ids"]).float().mean() > 0.95  # near ties may change places
    alone = losses("alone", *offline, *asking)
    assert alone == pytest.approx(wanted, abs=1e-5)
    assert losses("two", *offline, *asking, processes=2) == pytest.approx(alone, abs=1e-4)
    drawn = ("--max_completion_length", "8")
    # With all of the vocabulary: the same as the teacher itself, on the student's own answers.
    own = losses("drawn", *drawn, *asking[:2], "--teacher_top_k", "100000")
    assert own == pytest.approx(losses("loaded", *drawn, *source), abs=1e-5)
    return ["run_distill.py", *words, *offline, *asking]
