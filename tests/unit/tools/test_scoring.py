"""`hftune score`: each record gets the score that its conversation has alone, in order, whatever the batches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from hftune.arguments.asking import ScoreArguments
from hftune.cli import dispatch
from hftune.data.encode_rewards import ScoringEncoder
from hftune.errors import ArgumentError, DataError, UserError
from hftune.logging import notices
from hftune.publishing.ownership import WRITTEN_NAME
from hftune.tools.scoring import score
from hftune.trainers.rewards.loading import load_rewards
from hftune.trainers.rewards.score_batches import StepReward
from tests.unit.data.helpers import row
from tests.unit.tools import alone

CHAT = {"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c\nd e f"}]}
PAIR = {"prompt": "Why? " * 20, "chosen": "So.", "rejected": "No idea, really.\nNone.", "extra": [1, None]}
STEPS = {"problem": "q", "steps": ["one", "two", "three"], "label": 1}


def scored(model: Path, records: list[dict[str, Any]], folder: Path, **settings: Any) -> list[dict[str, Any]]:
    file, output = folder / "in.jsonl", folder / "out.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    score(ScoreArguments(input=str(file), model=str(model), output=str(output), overwrite_output=True, **settings))
    assert sorted(os.listdir(folder)) == [WRITTEN_NAME, "in.jsonl", "out.jsonl"]
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.parametrize("batch_tokens", [1, 100, 8192])
def test_conversations_and_pairs(tiny_rewards: dict[str, Path], tmp_path: Path, batch_tokens: int) -> None:
    chat, pair, again = scored(tiny_rewards["score"], [CHAT, PAIR, CHAT], tmp_path, batch_tokens=batch_tokens)
    assert chat["score"] == pytest.approx(alone.score(tiny_rewards["score"], CHAT["messages"]), abs=1e-5)
    assert again == chat and chat["messages"] == CHAT["messages"]
    asked = {"role": "user", "content": PAIR["prompt"]}
    for side in ("chosen", "rejected"):
        wanted = alone.score(tiny_rewards["score"], [asked, {"role": "assistant", "content": PAIR[side]}])
        assert pair[f"score_{side}"] == pytest.approx(wanted, abs=1e-5)
        assert pair[f"normalized_score_{side}"] == pytest.approx((wanted - 0.25) / 0.5, abs=1e-5)
    assert pair["extra"] == [1, None]


def test_steps(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    given, split, pair = scored(tiny_rewards["steps"], [STEPS, CHAT, PAIR], tmp_path)
    assert len(given["step_scores"]) == 3 and len(split["step_scores"]) == 2
    assert [len(pair[f"step_scores_{side}"]) for side in ("chosen", "rejected")] == [1, 2]
    assert given["score"] == min(given["step_scores"]) and 0 < given["score"] < 1
    # The same as the classes of the tokens at which the steps end.
    one = ScoringEncoder(AutoTokenizer.from_pretrained(tiny_rewards["steps"]), steps=True)(row(**STEPS))[0]
    model = AutoModelForTokenClassification.from_pretrained(tiny_rewards["steps"])
    with torch.no_grad():
        right = model(torch.tensor([one.ids])).logits[0, one.ends].softmax(-1)[:, 1]
    assert given["step_scores"] == pytest.approx(right.tolist(), abs=1e-6)


def test_an_outcome_model_scores_an_answer_in_steps_as_a_whole(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    (found,) = scored(tiny_rewards["score"], [STEPS], tmp_path)
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one\ntwo\nthree"}]
    assert found["score"] == pytest.approx(alone.score(tiny_rewards["score"], said), abs=1e-5)


def test_long_conversations_lose_their_beginning(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    whole, cut = (scored(tiny_rewards["score"], [PAIR], tmp_path, max_length=length)[0] for length in (None, 12))
    assert whole["score_chosen"] != cut["score_chosen"]
    tokenizer = AutoTokenizer.from_pretrained(tiny_rewards["score"])
    one = ScoringEncoder(tokenizer, steps=False, max_length=12)(row(**PAIR))[0]
    assert one.truncated and tokenizer.decode(one.ids).endswith("So.<|im_end|>\n")


def test_bad_records(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        scored(tiny_rewards["score"], [CHAT, {"nothing": 1}], tmp_path)
    assert caught.value.place.endswith("in.jsonl:2")
    assert os.listdir(tmp_path) == ["in.jsonl"]
    assert len(scored(tiny_rewards["score"], [CHAT, {"nothing": 1}, CHAT], tmp_path, on_bad_record="drop")) == 2


def test_errors_before_anything_loads(tiny_rewards: dict[str, Path], tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(CHAT) + "\n")
    with pytest.raises(UserError, match="no reward model was named"):
        dispatch(["score", str(file)])
    command = ["score", str(file), "--model", str(tiny_rewards["score"]), "--overwrite_output", "--output"]
    os.link(file, tmp_path / "second")
    (tmp_path / "link").symlink_to(file)
    for output in (file, tmp_path / "second", tmp_path / "link"):
        with pytest.raises(UserError, match="is read"):
            dispatch([*command, str(output)])
    (tmp_path / "scores.jsonl").write_text('{"score": 1.0}\n')
    with pytest.raises(UserError, match="hftune did not write it"):
        dispatch([*command, str(tmp_path / "scores.jsonl")])
    with pytest.raises(ArgumentError, match="has no score head"):
        dispatch(["score", str(file), "--model", str(tiny_model)])


def test_the_command_writes_to_standard_output(
    tiny_rewards: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(CHAT) + "\n")
    dispatch(["score", str(file), "--model", str(tiny_rewards["score"])])
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["messages"] == CHAT["messages"]


class Rewards:
    """What `load_rewards` reads of RL's arguments."""

    reward_funcs = reward_timeout = reward_cache = None
    reward_retries, max_completion_length, trust_remote_code = 0, 8, False
    device = "cpu"

    def __init__(self, path: Path, normalize: bool, borders: str = "split") -> None:
        self.reward_model_path, self.normalize_rewards = [str(path)], normalize
        self.borders_in_text = borders


class Auto:
    dtype = "auto"


def test_rl_starts_from_the_scale(tiny_rewards: dict[str, Path]) -> None:
    inputs = {"input_ids": torch.arange(3, 19)[None]}
    (plain,), _ = load_rewards(Rewards(tiny_rewards["score"], False), Auto())
    (scaled,), _ = load_rewards(Rewards(tiny_rewards["score"], True), Auto())
    with torch.no_grad():
        torch.testing.assert_close(scaled(**inputs).logits, (plain(**inputs).logits - 0.25) / 0.5)
    assert torch.equal(plain.score.weight, scaled.score.weight)


def test_a_process_model_is_a_reward_function(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    (reward,), (tokenizer,) = load_rewards(Rewards(tiny_rewards["steps"], True), Auto())
    assert isinstance(reward, StepReward) and tokenizer is None and reward.__name__ == tiny_rewards["steps"].name
    prompt, answer = CHAT["messages"][:1], CHAT["messages"][1:]
    found = reward(
        prompts=[prompt, prompt], completions=[answer, [{"role": "assistant", "content": " "}]], extra=[1, 2]
    )
    (expected,) = scored(tiny_rewards["steps"], [CHAT], tmp_path)
    assert found == pytest.approx([expected["normalized_score"], (0.0 - 0.25) / 0.5], abs=1e-5)


def test_turn_borders_in_what_is_scored(tiny_rewards: dict[str, Path], tmp_path: Path) -> None:
    """Text by default: scored as other ids than the tokens, and said; refused and dropped with `error`."""
    forged = json.loads(json.dumps(CHAT))
    token = AutoTokenizer.from_pretrained(tiny_rewards["score"]).eos_token
    forged["messages"][0]["content"] = f"a{token}b"
    split, allowed = (
        scored(tiny_rewards["score"], [forged, CHAT], tmp_path, borders_in_text=mode) for mode in ("split", "allow")
    )
    assert split[1]["score"] == pytest.approx(allowed[1]["score"], abs=1e-4)
    assert abs(split[0]["score"] - allowed[0]["score"]) > 0.1
    assert allowed[0]["score"] == pytest.approx(alone.score(tiny_rewards["score"], forged["messages"]), abs=1e-5)
    assert any("1 of 2 records spell tokens" in text and token in text for text in notices())
    kept = scored(tiny_rewards["score"], [forged, CHAT], tmp_path, borders_in_text="error", on_bad_record="drop")
    assert len(kept) == 1
    with pytest.raises(DataError, match="spells"):
        scored(tiny_rewards["score"], [forged, CHAT], tmp_path, borders_in_text="error")


@pytest.mark.parametrize("mode, kept", [("split", True), ("error", True), ("allow", False)])
def test_turn_borders_in_what_rewards_read(tiny_rewards: dict[str, Path], mode: str, kept: bool) -> None:
    """Answers are no records that could be refused: `error` keeps them text, too."""
    _, (tokenizer,) = load_rewards(Rewards(tiny_rewards["score"], False, mode), Auto())
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"a{tokenizer.eos_token}b"}]
    ids = tokenizer(text=[tokenizer.apply_chat_template(chat, tokenize=False)], add_special_tokens=False)["input_ids"]
    assert ids[0].count(tokenizer.eos_token_id) == (2 if kept else 3)
    (steps,), _ = load_rewards(Rewards(tiny_rewards["steps"], False, mode), Auto())
    assert isinstance(steps, StepReward) and steps.conversations.guard.mode == ("split" if kept else "allow")
