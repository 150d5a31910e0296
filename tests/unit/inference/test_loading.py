"""What talks: which folders do, and which tokens end what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, GenerationConfig

from hftune.arguments.asking import AskArguments, ChatArguments
from hftune.checkpoints.manifest import write_manifest
from hftune.inference.loading import check_talkers, load_talker
from hftune.inference.prompts import ends_of
from hftune.logging import notices
from hftune.weight_files import fingerprint
from tests.conftest import tiny_tokenizer


def test_the_end_of_a_turn_joins_the_end_of_text() -> None:
    tokenizer = tiny_tokenizer()
    pad, ends_turn = tokenizer.convert_tokens_to_ids(["<|pad|>", "<|im_end|>"])
    assert ends_of(tokenizer, GenerationConfig(eos_token_id=pad)) == [pad, ends_turn]
    assert any("'<|im_end|>' ends an answer" in said for said in notices())
    assert ends_of(tokenizer, GenerationConfig(eos_token_id=[ends_turn, pad])) == [ends_turn, pad]
    tokenizer.chat_template = None
    assert ends_of(tokenizer, GenerationConfig()) == [ends_turn], "its tokenizer's end of text"


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base that knows the end of texts only, an adapter on it whose template ends turns, a reward model."""
    folder = tmp_path_factory.mktemp("talking")
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.generation_config.eos_token_id = 0
    model.generation_config.temperature = 0.7
    model.generation_config.do_sample = True
    model.save_pretrained(folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(3)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    adapted.save_pretrained(folder / "adapter")
    AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1).save_pretrained(folder / "reward")
    for name in ("base", "adapter", "reward"):
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in ("base", "adapter", "reward")}


def test_an_adapter_is_folded_in_and_ends_turns(folders: dict[str, Path]) -> None:
    talker = load_talker(str(folders["adapter"]), AskArguments())
    ends_turn = talker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert talker.ends == [0, ends_turn] == talker.model.generation_config.eos_token_id
    # What the model was saved with stays known; a call that says nothing samples nothing.
    assert talker.sampling.temperature == 0.7 and talker.model.generation_config.temperature is None
    base: Any = AutoModelForCausalLM.from_pretrained(folders["base"])
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not talker.model.training
    assert not torch.equal(talker.model.get_parameter(name), base.get_parameter(name))


def test_what_does_not_talk_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    def said(folder: Path) -> list[str]:
        return [str(error) for error in check_talkers([str(folder)], "--adapter", trust_remote_code=False)]

    assert said(folders["base"]) == said(folders["adapter"]) == said(tmp_path / "absent") == []
    assert "there is no model in" in said(tmp_path)[0]
    (reward,) = said(folders["reward"])
    assert "is a reward model and says nothing" in reward and "--adapter" in reward and "hftune score" in reward


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
    wanted = AutoModelForCausalLM.from_pretrained(tiny_model)
    for folder in adapters:
        wanted = PeftModel.from_pretrained(wanted, folder).merge_and_unload()
    found = load_talker(adapters[-1], ChatArguments())
    assert found.name == adapters[-1]
    torch.testing.assert_close(logits(found.model), logits(wanted), atol=1e-5, rtol=1e-5)
