"""Every option of DPO in ERNIEKit's and Megatron-SWIFT's guides, under its own name, down to a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.data.splits import load_splits, make_encoder
from hftune.losses.preference import LOSSES
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import load_causal_lm, load_reference
from hftune.preflight.facts import resolve
from hftune.preflight.rules.preference import check_preferences
from hftune.trainers.dpo import DPOTrainer
from tests.architectures import few_quick

ERNIEKIT = {
    "beta": "0.3", "loss_type": "hinge", "label_smoothing": "0.1", "pref_loss_ratio": "0.5", "sft_loss_ratio": "0.5",
    "offset_alpha": "0.7", "simpo_gamma": "0.9 --loss_type simpo", "dpop_lambda": "9 --loss_type dpop",
    "normalize_logps": "True", "reference_free": "True", "ref_model_update_steps": "1", "max_prompt_len": "4",
    "max_seq_len": "40",
}  # fmt: skip
ERNIEKITS_LOSSES = ("sigmoid", "hinge", "ipo", "kto_pair", "sppo_hard", "nca_pair", "dpop", "or", "simpo")
MEGATRON_SWIFT = {
    "beta": "0.3", "rpo_alpha": "0.5", "reference_free": "True", "label_smoothing": "0.1",
    "f_divergence_type": "js_divergence", "loss_type": "bco_pair", "ref_model": "MODEL", "max_length": "40",
    "desirable_weight": "2 --loss_type kto", "undesirable_weight": "2 --loss_type kto",
}  # fmt: skip
CASES = {
    **{f"ERNIEKit {name}": f"--{name} {value}" for name, value in ERNIEKIT.items()},
    **{f"Megatron-SWIFT {name}": f"--{name} {value}" for name, value in MEGATRON_SWIFT.items()},
}


@pytest.fixture(scope="module")
def scored(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with scores of both answers."""
    import json

    folder = tmp_path_factory.mktemp("scored")
    lines = (tiny_data / "pairs" / "train.jsonl").read_text().splitlines()[:4]
    records = [json.loads(line) | {"chosen_score": 3, "rejected_score": place} for place, line in enumerate(lines[:3])]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def arguments(model: Path, data: Path, out: Path, flags: str) -> tuple[Any, ...]:
    argv = ["--model_name_or_path", str(model), "--train_file_dir", str(data), "--output_dir", str(out)]
    argv += ["--use_cpu", "True", "--report_to", "none", "--gradient_checkpointing", "False", "--save_strategy", "no"]
    argv += ["--use_peft", "--lora_r", "4", "--max_steps", "2", "--logging_steps", "1", "--learning_rate", "1e-3"]
    return parse_arguments("dpo", [*argv, *flags.replace("MODEL", str(model)).split()])


def trained(model: Path, data: Path, out: Path, flags: str) -> dict[str, Any]:
    """Two steps, as run_dpo.py makes them; what the second logged."""
    facts = resolve("dpo", arguments(model, data, out, flags))
    assert list(check_preferences(facts)) == []
    model_args, data_args, adapter_args, args = facts.arguments
    tokenizer = AutoTokenizer.from_pretrained(model)
    splits = load_splits(make_encoder("dpo", tokenizer, args, data_args), data_args, args)
    loaded = add_adapter(load_causal_lm(model_args, adapter_args, args, tokenizer), adapter_args, args)
    reference = load_reference(model_args, adapter_args, args, tokenizer)
    trainer = DPOTrainer(loaded, args, tokenizer, splits, ref_model=reference, starts_as_base=True)
    trainer.train()
    logged: dict[str, Any] = trainer.state.log_history[1]
    return logged


@pytest.fixture(scope="module")
def plain(tiny_model: Path, scored: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tiny_model, scored, tmp_path_factory.mktemp("plain"), "")


QUICK = ("ERNIEKit loss_type", "ERNIEKit offset_alpha", "Megatron-SWIFT rpo_alpha", "Megatron-SWIFT ref_model")


@pytest.mark.parametrize("case", few_quick([*CASES], QUICK))
def test_every_option_reaches_the_loss(
    case: str, tiny_model: Path, scored: Path, tmp_path: Path, plain: dict[str, Any]
) -> None:
    logged = trained(tiny_model, scored, tmp_path, CASES[case])
    assert torch.isfinite(torch.tensor(logged["loss"])) and logged["grad_norm"] > 0
    if "dpop" in CASES[case]:
        return  # its penalty is 0 where chosen answers become more likely, as here
    assert (logged["loss"] == pytest.approx(plain["loss"], abs=1e-6)) == (case == "Megatron-SWIFT ref_model")


def test_each_loss_can_be_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    for name in [*LOSSES, *ERNIEKITS_LOSSES]:
        smoothing = " --label_smoothing 0.1" if name == "exo_pair" else ""
        given = arguments(tiny_model, tmp_path, tmp_path, f"--loss_type {name}{smoothing}")
        assert list(check_preferences(resolve("dpo", given))) == [], name
