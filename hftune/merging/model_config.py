"""What lies next to the weights: config, generation config, tokenizer with its chat template. Copied, not rebuilt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import text_fingerprint
from hftune.constants import PROCESSOR_FILES, REWARD_SCALE_FIELD, STEP_LABELS, TOKENIZER_FILES, VOICES_FILE
from hftune.logging import notice
from hftune.merging.inputs import Inputs, has_tokenizer
from hftune.models.loading.from_pretrained import pretrained, reporting_damage
from hftune.opening.files import copy_file, copy_folder
from hftune.opening.json_file import read_json

_MORE_TEMPLATES = "additional_chat_templates"


def write_config(inputs: Inputs, folder: Path) -> None:
    """config.json of the merged model: the base's with what merging changes.

    Args:
        inputs: What was merged.
        folder: The merged model's.
    """
    # The scale of a base that was a reward model is another model's.
    merged = {name: value for name, value in inputs.config.items() if name != REWARD_SCALE_FIELD}
    if inputs.reward_scale is not None:
        merged[REWARD_SCALE_FIELD] = inputs.reward_scale
    # A model that sees keeps what its language model needs in a config of its own; readers ask either.
    texts = [merged]
    if isinstance(merged.get("text_config"), dict):
        merged["text_config"] = dict(merged["text_config"])
        texts.append(merged["text_config"])
    for part in texts:
        if inputs.dtype is not None:
            part["torch_dtype" if "torch_dtype" in part else "dtype"] = inputs.dtype
    if inputs.scores is not None:
        _describe_head(merged, texts[-1], inputs, inputs.scores)
    text = json.dumps(merged, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _describe_head(config: dict[str, Any], text_config: dict[str, Any], inputs: Inputs, labels: int) -> None:
    """What plain transformers needs to load a reward model and to name its scores."""
    # A score is read at the last token that is not this one.
    text_config["pad_token_id"] = pad_token_id(inputs.tokenizer, trust_remote_code=inputs.trust_remote_code)
    config["architectures"] = [_classifier(config, inputs.head)]
    steps = inputs.head == "steps"
    names = STEP_LABELS if steps else [f"LABEL_{label}" for label in range(labels)]
    config["id2label"] = {str(label): name for label, name in enumerate(names)}
    config["label2id"] = {name: label for label, name in enumerate(names)}


def _classifier(config: dict[str, Any], head: str) -> str:
    from transformers import AutoConfig

    from hftune.models.classes import reward_class

    # transformers' own class, or one that hftune makes of the decoder.
    found = reward_class(AutoConfig.for_model(config["model_type"]), steps=head == "steps")
    assert found is not None, "it was trained"
    return found.__name__


def copy_tokenizer(source: Path, target: Path) -> None:
    """All files of a tokenizer, its chat template included."""
    found = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    for file in found:
        copy_file(file, target / file.name, within=source)
    if (source / _MORE_TEMPLATES).is_dir():
        copy_folder(source / _MORE_TEMPLATES, target / _MORE_TEMPLATES, within=source)
    if not found and not has_tokenizer(target):
        notice(f"there is no tokenizer in {source}, so the merged model has none")


def copy_other_files(base: Path, target: Path, *, generates: bool) -> None:
    """Generation and processor configs, voices, and the code of a model that comes with its own."""
    patterns = [PROCESSOR_FILES, VOICES_FILE, *(["generation_config.json"] if generates else [])]
    config = base / "config.json"
    own_code = config.is_file() and "auto_map" in read_json(config)
    found = sorted(file for pattern in patterns for file in base.glob(pattern))
    files = [file for file in found if file.is_file() and not (target / file.name).is_file()]
    for file in [*files, *(sorted(base.glob("*.py")) if own_code else [])]:
        copy_file(file, target / file.name, within=base)


def describe_tokenizer(folder: Path) -> dict[str, Any] | None:
    """Fingerprints and size as a stage's manifest has them; None without tokenizer.json."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    with reporting_damage(folder / "tokenizer.json"):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {
        "fingerprint": text_fingerprint(tokenizer.to_str()),
        "template_fingerprint": text_fingerprint(_chat_template(folder)),
        "tokens": tokenizer.get_vocab_size(with_added_tokens=True),
    }


def _chat_template(folder: Path) -> str:
    """The chat template that transformers would read; empty where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = _tokenizer_config(folder).get("chat_template")
    return template if isinstance(template, str) else ""


def pad_token_id(folder: Path, *, trust_remote_code: bool) -> int | None:
    """The tokenizer's pad token as an id; None where it has none."""
    if _tokenizer_config(folder).get("pad_token") is None:
        return None
    from transformers import AutoTokenizer

    return pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code).pad_token_id


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "tokenizer_config.json") if has_tokenizer(folder) else {}
