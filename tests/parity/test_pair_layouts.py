"""Pairs padded, side by side, and with one prompt for both answers: the same losses and gradients."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import Splits
from hftune.losses.preference import LOSSES
from hftune.models.adapters.preparation import add_adapter
from hftune.models.attention.segments import SEGMENTS
from hftune.models.kernels.heads import add_answer_head
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.preflight.facts import resolve
from hftune.trainers.dpo import DPOTrainer
from hftune.trainers.preference.batches import PairCollator
from hftune.trainers.preference.loss import forward_answers, likelihoods
from tests.parity.shared_models import cells
from tests.parity.test_packing import CONFIGS, tiny

LENGTHS = [(7, 5, 3), (1, 2, 6), (4, 1, 1), (9, 4, 8)]
"""Tokens of prompts, chosen and rejected answers; one of a single token each."""

LAYOUTS = {
    "padded": {"flat": False},
    "side by side": {"flat": True},
    "shared": {"flat": True, "shared": True},
}
NOT_OF_THE_MODEL = ("answer_lengths", "num_tokens", "chosen_total", "paired", "kl", "ref_kl_logps")


def records(vocabulary: int = 97) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)

    def ids(number: int) -> list[int]:
        return torch.randint(3, vocabulary, (number,), generator=generator).tolist()

    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return [
        {
            **{name: ids(length) for name, length in zip(names, lengths, strict=True)},
            "margin": 0.5 + place,
            "ref_chosen_logps": -3.0 * lengths[1] - place,
            "ref_rejected_logps": -4.0 * lengths[2],
            "ref_kl_logps": -3.5 * lengths[0],
            "kl_ids": ids(lengths[0]),
        }
        for place, lengths in enumerate(LENGTHS)
    ]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], where: Any) -> None:
    assert found.keys() == expected.keys() and expected
    for name, gradient in found.items():
        off = (gradient - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1)
        assert off <= 1e-5, (where, name, float(off))


@pytest.mark.parametrize(("name", "head"), [*product(CONFIGS, ["trained"]), ("llama", "frozen"), ("gemma2", "frozen")])
def test_every_architecture(name: str, head: str) -> None:
    """Log-probabilities and gradients of all answers, against eager attention on padded rows."""
    expected: Any = None
    for attention, layout in [("eager", "padded"), *((SEGMENTS, layout) for layout in LAYOUTS)]:
        model = tiny(name, attention)
        if head == "frozen":
            model.get_output_embeddings().requires_grad_(False)
        add_answer_head(model)
        batch = PairCollator(0, **LAYOUTS[layout])(records())
        inputs = {key: batch[key] for key in batch if key not in NOT_OF_THE_MODEL and "ref" not in key}
        inputs.pop("differences")
        log_probs = model(**inputs).log_probs
        (log_probs * torch.linspace(-1, 1, len(log_probs))).sum().backward()
        if expected is None:
            expected = log_probs.detach(), gradients(model)
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
            flat = logits.flatten(0, 1).log_softmax(-1)[batch["answer_at"]]
            torch.testing.assert_close(flat.gather(1, batch["answer_ids"][:, None])[:, 0], log_probs)
        torch.testing.assert_close(log_probs.detach(), expected[0], atol=1e-5, rtol=0)
        assert_same(gradients(model), expected[1], layout)


def trainer_of(layout: str, method: str, model: Path, out: Path) -> DPOTrainer:
    flags = {
        "padded": ["--padding_free", "False"], "side by side": ["--shared_prompts", "False"], "shared": [],
        "asked for": ["--padding_free", "True"], "recomputed": ["--gradient_checkpointing", "True"],
    }[layout]  # fmt: skip
    common = ["--use_cpu", "True", "--report_to", "none", "--use_weighting", "False", "--ld_alpha", "0.5"]
    common += [] if layout == "recomputed" else ["--gradient_checkpointing", "False"]
    adapter = ["--use_peft", "--lora_r", "4"] if method == "lora" else []
    argv = ["--model_name_or_path", str(model), "--output_dir", str(out), *common, *flags, *adapter]
    model_args, _, adapter_args, args = resolve("dpo", parse_arguments("dpo", argv)).arguments
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = add_adapter(load_causal_lm(model_args, adapter_args, args, tokenizer), adapter_args, args)
    if method == "lora":  # no adapter of zeros
        torch.manual_seed(1)
        for name, parameter in loaded.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    data = Dataset.from_list(records(250))
    return DPOTrainer(loaded, args, tokenizer, Splits(data, None), starts_as_base=True)


@pytest.mark.parametrize(
    ("method", "every"), cells(product(["full", "lora"], [False, True]), [("lora", False), ("full", False)])
)
def test_every_loss(method: str, every: bool, tiny_model: Path, tmp_path: Path) -> None:
    """Values and gradients of each loss alone, then of several with weights; or of a few."""
    layouts = ("padded", "side by side", "asked for", "shared", "recomputed")
    trainers = {layout: trainer_of(layout, method, tiny_model, tmp_path / layout) for layout in layouts}
    for names in [*([name] for name in (LOSSES if every else ("ipo", "kto"))), ["sigmoid", "sft", "ipo"]]:
        expected: Any = None
        for layout, trainer in trainers.items():
            trainer.args.loss_type, trainer.args.label_smoothing, trainer.args.offset_alpha = names, 0.1, 0.7
            trainer.reference_policy.kind = "precomputed" if trainer.args.needs_reference else "none"
            trainer.model.train().zero_grad()
            loss = trainer.compute_loss(trainer.model, trainer.data_collator(records(250)))
            loss.backward()
            found = float(loss.detach()), gradients(trainer.model)
            expected = expected or found
            assert found[0] == pytest.approx(expected[0], abs=1e-5, rel=1e-5), (names, layout)
            assert_same(found[1], expected[1], (names, layout))


def test_weighted_pairs(tiny_model: Path, tmp_path: Path) -> None:
    """WPO's factors are the same in all layouts, and are no constant."""
    found = []
    for layout in ("padded", "shared"):
        trainer = trainer_of(layout, "full", tiny_model, tmp_path / layout)
        trainer.args.use_weighting, trainer.reference_policy.kind = True, "precomputed"
        batch = trainer.data_collator(records(250))
        outputs = forward_answers(trainer.model, batch)
        found.append(likelihoods(outputs, batch))
    torch.testing.assert_close(*found)
    assert found[0].std() > 0 and not found[0].requires_grad
