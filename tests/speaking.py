"""A tiny random model with tokens, and adapters on it that say one thing, whatever they are asked.

The base answers each prompt otherwise, as random models do. A speaking adapter, plain LoRA, takes out all that the
layers do, so that the next token depends on the last one alone, and has the head say a text piece by piece.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import trl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM

from tests.conftest import tiny_config, tiny_tokenizer

CALL = ("<tool_call>", '\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n', "</tool_call>")
THOUGHT = ("<think>", "\nTwo and three.\n", "</think>", "\n\nFive.")
WIDTH = 64


def speaking_models(folder: Path) -> dict[str, Path]:
    """Folders of a base with Qwen3's template, of the adapters `calls` and `thinks`, and of a reward model."""
    tokenizer: Any = tiny_tokenizer()
    tokenizer.add_tokens([*CALL, *THOUGHT])
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "max_position_embeddings": 2048}
    model: Any = LlamaForCausalLM(tiny_config(tokenizer, **sizes, tie_word_embeddings=False))
    folders = {name: folder / name for name in ("base", "calls", "thinks", "judge")}
    model.save_pretrained(folders["base"])
    reward: Any = AutoModelForSequenceClassification.from_pretrained(folders["base"], num_labels=1)
    reward.score.weight.data.normal_()
    reward.save_pretrained(folders["judge"])
    for name, said in (("calls", CALL), ("thinks", THOUGHT)):
        _save_speaker(folders["base"], folders[name], tokenizer, said)
    for one in folders.values():
        tokenizer.save_pretrained(one)
    return folders


def _save_speaker(base: Path, folder: Path, tokenizer: Any, said: tuple[str, ...]) -> None:
    targets = ["o_proj", "down_proj", "lm_head"]
    lora = LoraConfig(task_type="CAUSAL_LM", r=WIDTH, lora_alpha=WIDTH, target_modules=targets)
    adapted: Any = get_peft_model(LlamaForCausalLM.from_pretrained(base), lora)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    # Of a prompt the last token is the line break behind "assistant".
    after = [tokenizer("\n").input_ids[-1], *tokenizer.convert_tokens_to_ids(list(said))]
    with torch.no_grad():
        table = adapted.get_input_embeddings().weight
        wanted = torch.zeros(len(tokenizer), WIDTH)
        for last, following in zip(after, [*after[1:], tokenizer.eos_token_id], strict=True):
            wanted[following] += 10 * table[last]
        for name, module in adapted.named_modules():
            if not hasattr(module, "lora_A"):
                continue
            change = wanted - module.weight if name.endswith("lm_head") else -module.weight
            # A change of rank 64 at most, as one of its sides is 64.
            down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
            if change.shape[1] == WIDTH:
                down.copy_(torch.eye(WIDTH))
                up.copy_(change)
            else:
                down.copy_(change)
                up.copy_(torch.eye(WIDTH))
    adapted.save_pretrained(folder)
    # What peft writes of paths differs by version; the base is the one that stands next to it.
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(base)}))
