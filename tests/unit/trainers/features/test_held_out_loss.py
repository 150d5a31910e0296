"""The held-out loss is a mean over tokens, however they are batched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hftune.constants import IGNORE_INDEX
from hftune.trainers.features.token_loss import padded_with_ignored
from tests.unit.data.helpers import pack, to_dataset
from tests.unit.trainers.tiny import trainer_on

pytestmark = pytest.mark.long

LENGTHS = [9, 2, 5, 3, 17]


@pytest.fixture(scope="module")
def data(tiny_model: Path) -> Any:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 250, (length,), generator=generator).tolist() for length in LENGTHS]
    # What the model would say itself: some hits.
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    start = torch.tensor([ids[2][:1]])
    options = {"do_sample": False, "min_new_tokens": LENGTHS[2] - 1, "max_new_tokens": LENGTHS[2] - 1}
    ids[2] = model.generate(start, attention_mask=torch.ones_like(start), **options)[0].tolist()
    labels = [[IGNORE_INDEX, *row[1:]] if number % 2 else row for number, row in enumerate(ids)]
    return to_dataset({"input_ids": ids, "labels": labels})


@pytest.fixture(scope="module")
def by_hand(tiny_model: Path, data: Any) -> tuple[float, float, float]:
    """Means over all targets of -log p, of hits and of entropy, one document at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    values = []
    for row in data:
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            log_p = model(ids).logits[0, :-1].log_softmax(-1)
        target = ids[0, 1:, None]
        hit = (log_p.argmax(-1, keepdim=True) == target).float()
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        values.append(torch.cat([-log_p.gather(1, target), hit, entropy], dim=1))
    loss, accuracy, entropy = torch.cat(values).mean(0).tolist()
    return loss, accuracy, entropy


PADDED = ("--packing", "False", "--padding_free", "False", "--per_device_eval_batch_size", "4")
LAYOUTS = {
    "padded": PADDED,
    "padding_free": ("--packing", "False", "--padding_free", "True", "--per_device_eval_batch_size", "2"),
    "packed": ("--packing", "True", "--per_device_eval_batch_size", "1"),
}


@pytest.mark.parametrize(
    ("stage", "layout"), [("pt", "padded"), ("pt", "packed"), ("sft", "padded"), ("sft", "padding_free")]
)
def test_loss_is_per_token(stage: str, layout: str, data: Any, by_hand: Any, tiny_model: Path, tmp_path: Path) -> None:
    rows = pack(data, 17)[0] if layout == "packed" else data
    trainer = trainer_on(rows, stage, tiny_model, tmp_path, *LAYOUTS[layout])
    metrics = trainer.evaluate()
    # With documents side by side this is transformers' own SDPA on a dense mask.
    loss, accuracy, entropy = by_hand
    assert accuracy > 0
    assert metrics["eval_loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(torch.tensor(metrics["eval_loss"]).exp().item(), rel=1e-5)
    if stage == "sft":
        assert metrics["eval_mean_token_accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert metrics["eval_entropy"] == pytest.approx(entropy, abs=1e-4)
    else:
        assert metrics["eval_token_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged == [metrics["eval_loss"]]
    # TRL was told a white lie about what is packed; it must not last.
    args = trainer.args
    assert (args.packing, bool(args.padding_free)) == (layout == "packed", layout == "padding_free")


@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_no_logits_pile_up(stage: str, data: Any, tiny_model: Path, tmp_path: Path) -> None:
    """LF5419, LF1595: a row of logits is a thousand times the size of its tokens."""
    trainer = trainer_on(data, stage, tiny_model, tmp_path, "--packing", "False", "--per_device_eval_batch_size", "5")
    outputs: list[Any] = []
    whole = trainer.evaluation_loop
    trainer.evaluation_loop = lambda *given, **named: outputs.append(whole(*given, **named)) or outputs[-1]
    trainer.evaluate()
    assert [one.predictions for one in outputs] == [None]


def test_filling_trains_nothing(data: Any) -> None:
    filled = padded_with_ignored(data, 4)
    assert len(filled) == 8 and filled.features == data.features
    assert filled[:5] == data[:]
    assert all(set(row["labels"]) == {IGNORE_INDEX} for row in filled.select([5, 6, 7]))
    assert padded_with_ignored(data, 5) is data


@pytest.mark.parametrize("workers", ["0", "1"])
def test_several_sets_by_name(workers: str, data: Any, by_hand: Any, tiny_model: Path, tmp_path: Path) -> None:
    """Also with workers that stay, of which the Trainer keeps the loader."""
    flags = ["--dataloader_num_workers", workers, "--dataloader_persistent_workers", str(workers == "1")]
    trainer = trainer_on(data, "pt", tiny_model, tmp_path, *PADDED, *flags)
    trainer.compute_metrics = lambda prediction: {"my_loss": 42.0}
    trainer.eval_dataset = {"all": data, "one": data.select([4])}
    metrics = {**trainer.evaluate(), **trainer.evaluate(data.select([4]), metric_key_prefix="alone")}
    assert metrics["eval_all_my_loss"] == 42.0, "a metric of the user's is its own"
    assert set(trainer.eval_dataset) == {"all", "one"} and len(trainer.eval_dataset["one"]) == 1
    assert metrics["eval_all_loss"] == pytest.approx(by_hand[0], abs=1e-5)
    assert metrics["eval_one_loss"] == pytest.approx(metrics["alone_loss"], abs=1e-6)
    assert metrics["eval_one_loss"] != pytest.approx(metrics["eval_all_loss"], abs=1e-3)
