"""A chain of adapters in a chat answers as its sum, and a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.arguments.asking import ChatArguments
from hftune.checkpoints.manifest import write_manifest
from hftune.cli import dispatch
from hftune.errors import UserError
from hftune.inference.loading import load_talker
from hftune.weight_files import fingerprint

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two adapters on the tiny model; the second says in its manifest that it was trained on the first."""
    folder, found = tmp_path_factory.mktemp("chain"), []
    for number in range(2):
        torch.manual_seed(number)
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, target_modules=["q_proj", "down_proj"])
        get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config).save_pretrained(folder / str(number))
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder / str(number))
        found.append(str(folder / str(number)))
    base = {"name": str(tiny_model), "fingerprint": fingerprint(tiny_model)}
    write_manifest(folder / "0", {"stage": "sft", "base": {**base, "adapters": []}})
    parents = [{"folder": found[0], "fingerprint": fingerprint(found[0])}]
    write_manifest(folder / "1", {"stage": "dpo", "base": {**base, "adapters": found[:1]}, "parents": parents})
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


def test_a_chain_is_the_sum(tiny_model: Path, adapters: list[str]) -> None:
    args = ChatArguments()
    wanted = AutoModelForCausalLM.from_pretrained(tiny_model)
    for folder in adapters:
        wanted = PeftModel.from_pretrained(wanted, folder).merge_and_unload()
    found = load_talker(str(tiny_model), args, adapters=adapters)
    assert found.name == adapters[-1]
    torch.testing.assert_close(logits(found.model), logits(wanted), atol=1e-5, rtol=1e-5)
    for again in (
        load_talker(str(tiny_model), args, adapters=adapters[1:]),
        load_talker(adapters[1], args),
        load_talker(adapters[0], args, adapters=adapters[1:]),
    ):
        torch.testing.assert_close(logits(again.model), logits(found.model))


def test_a_wrong_chain_is_refused(tiny_model: Path, adapters: list[str]) -> None:
    with pytest.raises(UserError, match="was trained on"):
        load_talker(str(tiny_model), ChatArguments(), adapters=adapters[::-1])
    with pytest.raises(UserError, match="--adapter"):
        dispatch(["chat", str(tiny_model), "--adapter", str(tiny_model)])
