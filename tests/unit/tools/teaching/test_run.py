"""`hftune teach` in this process: what it stores is what the teacher says, killed or not, and a run learns from it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from hftune.checkpoints.manifest import read_manifest
from hftune.data.teacher_targets import StoredTargets
from hftune.errors import UserError
from hftune.publishing.folder import make_work
from hftune.tools.teaching import shards, teach
from hftune.tools.teaching.teacher import Teacher
from tests.answering import server
from tests.conftest import tiny_tokenizer
from tests.unit.trainers.distillation.test_teacher_server import answers

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def few_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is flushed to the disk."""
    monkeypatch.setattr(shards, "LEAST_SHARDS", 6)


def teaching(model: Path, data: Path, folder: Path, *more: str) -> list[str]:
    given = {"teacher_model_name_or_path": model, "model_name_or_path": model, "train_file_dir": data / "sft"}
    given |= {"output_dir": folder, "max_length": 64, "per_device_train_batch_size": 3}
    return [*(word for name, value in given.items() for word in (f"--{name}", str(value))), "--use_cpu", *more]


def shards_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


def test_what_is_stored_is_what_the_teacher_says(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    teach(teaching(tiny_model, tiny_data, tmp_path / "top", "--top_k", "5", "--temperature", "2"))
    stored = StoredTargets(tmp_path / "top")
    assert stored.k == 5 and stored.about["shards"] > 1 and stored.about["temperature"] == 2.0
    # Of one record, from the cache of the command, by a plain forward pass.
    from hftune.arguments.entry import parse_arguments
    from hftune.data.splits import load_sources, make_encoder
    from hftune.data.teacher_targets import hashes_of
    from hftune.models.loading.tokenizer import load_tokenizer

    model_args, data_args, _, args = parse_arguments("distill", teaching(tiny_model, tiny_data, tmp_path / "top"))
    encoder = make_encoder("distill", load_tokenizer(model_args, args), args, data_args)
    dataset = load_sources({"train": encoder, "eval": encoder}, data_args, 42)["train"][0].dataset
    model: Any = LlamaForCausalLM.from_pretrained(tiny_model)
    first = stored.places_of(hashes_of(dataset)[0])
    assert (first >= 0).all()
    lost = []
    for number in (0, len(dataset) - 1):
        record = dataset[number]
        labels = torch.tensor(record["labels"])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([record["input_ids"]])).logits[0, :-1]
        wanted = (logits[labels[1:] != -100] / 2).log_softmax(-1).topk(5)
        ids, log_probs = stored.take(torch.arange(len(wanted.values)) + int(first[number]))
        torch.testing.assert_close(log_probs, wanted.values, rtol=0, atol=1e-5)
        assert (ids == wanted.indices).float().mean() > 0.95  # near ties may change places
        lost.append(1 - log_probs.exp().sum(-1))
    described = (read_manifest(tmp_path / "top") or {})["data"]["train"]
    assert described["used"] == len(dataset) and described["files"]
    figures = stored.about["lost_mass"]
    assert 0 < figures["mean"] < figures["p99"] < 1 and abs(figures["mean"] - torch.cat(lost).mean()) < 0.1


def test_a_killed_command_resumes_with_the_same_bytes(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach(teaching(tiny_model, tiny_data, tmp_path / "whole", "--top_k", "3"))
    argv = teaching(tiny_model, tiny_data, tmp_path / "cut", "--top_k", "3")
    done, fill = [], Teacher.fill

    def killed(self: Teacher, shard: Any, dataset: Any, work: Any, number: int, rows: int) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        fill(self, shard, dataset, work, number, rows)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Teacher, "fill", killed)
        teach(argv)
    aside = tmp_path / ".cut.parts"
    assert not (tmp_path / "cut").exists() and len(list(aside.glob("targets-*.safetensors"))) == 2

    def counted(self: Teacher, shard: Any, dataset: Any, work: Any, number: int, rows: int) -> None:
        done.append(number)
        fill(self, shard, dataset, work, number, rows)

    monkeypatch.setattr(Teacher, "fill", counted)
    teach(argv)
    assert done == list(range(len(done)))
    assert shards_of(tmp_path / "cut") == shards_of(tmp_path / "whole")
    assert not aside.exists()
    # What was begun with another setting is begun anew.
    done.clear()
    make_work(aside)
    (aside / "plan.json").write_text("{}")
    (aside / "targets-00000.safetensors").write_bytes(b"{}")
    teach([*argv, "--overwrite_output_dir"])
    assert 0 in done and shards_of(tmp_path / "cut") == shards_of(tmp_path / "whole")


def test_what_cannot_be_taught_is_refused_together(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    argv = teaching(tiny_model, tiny_data, tmp_path, "--packing", "--packing_strategy", "wrapped")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError) as error:
        teach([*argv, "--teacher_targets", str(tiny_data), "--top_k", "-1", "--temperature", "0"])
    said = str(error.value.render())
    for words in (
        "--top_k -1",
        "no tokens of a teacher would be stored",
        "--teacher_targets",
        "reads them whole",
        "did not write",
    ):
        assert words in said


def test_a_teacher_of_other_tokens_is_refused(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    other = tiny_tokenizer()
    other.add_tokens(["world"])
    other.save_pretrained(shutil.copytree(tiny_model, tmp_path / "teacher"))
    argv = teaching(tiny_model, tiny_data, tmp_path / "out")
    argv[1] = str(tmp_path / "teacher")
    with pytest.raises(UserError, match="the teacher has another tokenizer than the student"):
        teach(argv)


def test_what_a_server_says_is_stored(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    few: list[bool] = []

    def change(choice: dict[str, Any]) -> None:
        few.extend(few[:1])
        if len(few) > 2:  # after the probe
            choice["prompt_logprobs"][1:] = [dict([*entry.items()][:2]) for entry in choice["prompt_logprobs"][1:]]

    with server(answers(change)) as asked:
        argv = ["--teacher_server_url", asked.url, "--model_name_or_path", str(tiny_model), "--use_cpu", "--top_k", "3"]
        argv += ["--train_file_dir", str(tiny_data / "sft"), "--max_length", "64", "--per_device_train_batch_size", "3"]
        teach([*argv, "--output_dir", str(tmp_path / "top")])
        stored = StoredTargets(tmp_path / "top")
        ids, log_probs = stored.take(torch.arange(stored.tokens))
        assert stored.k == 3 and (ids == torch.tensor([5, 6, 7])).all() and stored.tokens > 100
        torch.testing.assert_close(log_probs[:, 0].exp(), torch.full((stored.tokens,), 0.5))
        # Each place of a text says another number, as told: none is mixed up with its neighbour.
        assert len({round(float(value), 4) for value in log_probs[:, 2]}) == 7
        assert stored.about["teacher"]["names"] == [asked.url.removeprefix("http://")]
        prompts = [body["prompt"] for path, body, _ in asked.requests if path == "/v1/completions"]
        assert len(prompts) == 2 + stored.about["records"], "a probe of ids and one of text; then each record once"
        few.append(True)
        with pytest.raises(UserError, match="the server gives 2 of 3 tokens"):
            teach([*argv, "--max_length", "60", "--output_dir", str(tmp_path / "less")])
        with pytest.raises(UserError, match="at temperature 1"):
            teach([*argv, "--temperature", "2", "--output_dir", str(tmp_path / "warm")])
