"""What a manifest says of a run: each field from a made-up run whose values are known."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import library_versions, text_fingerprint, write_manifest
from hftune.trainers.run_manifest import describe_result, describe_run
from hftune.weight_files import fingerprint

ABOUT = {"train": {"rows": 3, "trained_tokens": 100}}


@pytest.fixture
def trainer(tiny_model: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    return SimpleNamespace(model=model, processing_class=AutoTokenizer.from_pretrained(tiny_model))


def facts(base: Path, **adapter: Any) -> Any:
    """Of an SFT run of a base, with these arguments of the adapter."""
    given: dict[str, Any] = {"folded_adapters": [], "adapter_chain": [], "quantised": False}
    training = {"ds_resolved": {"zero_optimization": {"stage": 2}}, "learning_rate": 0.5}
    return SimpleNamespace(
        stage="sft",
        model_args=SimpleNamespace(model_name_or_path=str(base), rope_scaling=None),
        data_args=SimpleNamespace(packing=True),
        adapter_args=SimpleNamespace(**given | adapter),
        training_args=SimpleNamespace(**training, to_dict=lambda: training),
    )


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/run_sft.py", "--packing", "--hub_token", "hf_secretsecretsecret"])


def test_full_training(trainer: Any, tiny_model: Path) -> None:
    found = describe_run(facts(tiny_model), trainer, SimpleNamespace(about=ABOUT))
    parameters = trainer.model.num_parameters()
    template = trainer.processing_class.chat_template or ""
    assert found["stage"] == "sft" and found["status"] == "running" and found["kind"] == "full"
    assert found["command"][:2] == ["run_sft.py", "--packing"] and "secretsecret" not in str(found)
    assert found["base"] == {"name": str(tiny_model), "fingerprint": fingerprint(str(tiny_model))}
    assert found["parents"] == [] and found["head"] == "causal_lm" and found["data"] is ABOUT and found["metrics"] == {}
    assert found["tokenizer"] == {
        "fingerprint": text_fingerprint(trainer.processing_class.backend_tokenizer.to_str()),
        "template_fingerprint": text_fingerprint(template),
        "tokens": len(trainer.processing_class),
        "chat_template_kwargs": {},
    }
    assert found["parameters"] == {"all": parameters, "trained": parameters}
    assert found["quantisation"] is None and found["rope"] is None
    assert found["deepspeed"] == {"zero_optimization": {"stage": 2}} and found["world_size"] == 1
    assert found["arguments"]["training"] == {"learning_rate": 0.5}  # DeepSpeed's config stands by itself
    assert found["arguments"]["data"] == {"packing": True} and found["arguments"]["adapter"]["quantised"] is False
    assert found["arguments"]["model"]["model_name_or_path"] == str(tiny_model)
    assert found["versions"] == library_versions() and found["hftune"] == library_versions().get("hftune")


def test_an_adapter_upon_others(trainer: Any, tiny_model: Path, tmp_path: Path) -> None:
    for name in ("below", "folded"):
        (tmp_path / name).mkdir()
        write_manifest(str(tmp_path / name), {"stage": "sft", "status": "complete"})
    trainer.model = get_peft_model(trainer.model, LoraConfig(r=2, target_modules=["q_proj"]))
    below, folded, nobody = (str(tmp_path / name) for name in ("below", "folded", "without a manifest"))
    asked = facts(tiny_model, adapter_chain=[below, nobody], folded_adapters=[folded, below])
    found = describe_run(asked, trainer, SimpleNamespace(about=ABOUT))
    assert found["kind"] == "adapter" and found["base"]["adapters"] == [folded, below]
    # Each once, the chain first; a folder that says nothing of itself is no parent.
    assert [parent["folder"] for parent in found["parents"]] == [below, folded]
    assert found["parents"][0]["fingerprint"] == fingerprint(below)
    trained = sum(one.numel() for one in trainer.model.parameters() if one.requires_grad)
    assert 0 < found["parameters"]["trained"] == trained < found["parameters"]["all"]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(4, {"bits": 4, "type": "nf4", "nested": True}), (8, {"bits": 8, "type": "int8", "nested": False})],
)
def test_quantised_with_stretched_positions(
    trainer: Any, tiny_model: Path, bits: int, expected: dict[str, Any]
) -> None:
    options = {"load_in_4bit": bits == 4, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    asked = facts(tiny_model, quantised=True, **options)
    asked.model_args.rope_scaling = "yarn"
    found = describe_run(asked, trainer, SimpleNamespace(about=ABOUT))
    assert found["quantisation"] == expected
    config = trainer.model.config
    assert found["rope"] == {
        "rope_parameters": config.rope_parameters,
        "max_position_embeddings": config.max_position_embeddings,
    }


@pytest.mark.parametrize(("counted", "expected"), [(None, 150), (7, 7), (0, 0)])
def test_the_end(counted: int | None, expected: int) -> None:
    trainer: Any = SimpleNamespace(
        count_trained_tokens=lambda: counted,
        figures=lambda: {"steps": "of a feature", "more": 1},
        state=SimpleNamespace(epoch=1.5, global_step=9),
        totals=SimpleNamespace(seconds=lambda: 1.234),
    )
    found = describe_result(time.time() - 100, trainer, SimpleNamespace(about=ABOUT))  # type: ignore[arg-type]
    assert found["trained_tokens"] == expected and found["steps"] == 9 and found["more"] == 1
    assert 100 <= found["wall_seconds"] < 110 and found["train_seconds"] == 1.23 and isinstance(found["notices"], list)
