"""What lies beside the weights: config, generation config, tokenizer with its chat template. Copied, not rebuilt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hftune.checkpoints.manifest import text_fingerprint
from hftune.checkpoints.reward_scale import FIELD
from hftune.constants import STEP_LABELS
from hftune.errors import ArgumentError, raise_together
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained, reporting_damage
from hftune.opening.folders import copy_file, copy_folder, unsafe_entries
from hftune.opening.json_file import read_json

if TYPE_CHECKING:
    from hftune.models.vocabulary.growth import Growth

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""All that a tokenizer may consist of; a folder has some."""
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def tokenizer_folder(asked: str | None, adapters: list[Path], base: Path) -> Path:
    """Where the merged model's tokenizer is: the folder asked for, the last adapter's own, or the base's.

    Raises:
        ArgumentError: No tokenizer in the folder asked for.
    """
    if asked:
        folder = Path(asked)
        if not folder.is_dir():
            from hftune.merging.bases import from_hub

            folder = from_hub(asked, None, flag="--tokenizer_path", patterns=list(TOKENIZER_FILES))
        if not _has_tokenizer(folder):
            raise ArgumentError(f"there is no tokenizer in {asked}", place="--tokenizer_path", fix="give its folder")
        raise_together(unsafe_entries(folder))
        return folder
    return next((folder for folder in reversed(adapters) if _has_tokenizer(folder)), base)


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()


def copy_tokenizer(source: Path, target: Path) -> None:
    """All files of a tokenizer, its chat template included."""
    found = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    for file in found:
        copy_file(file, target / file.name, within=source)
    if (source / "additional_chat_templates").is_dir():
        name = "additional_chat_templates"
        copy_folder(source / name, target / name, within=source)
    if not found and not _has_tokenizer(target):
        notice(f"there is no tokenizer in {source}, so the merged model has none")


def copy_others(base: Path, target: Path, *, generates: bool) -> None:
    """Generation and processor configs, and the code of a model that comes with its own."""
    names = [*_PROCESSOR_FILES, *(["generation_config.json"] if generates else [])]
    config = base / "config.json"
    own_code = config.is_file() and "auto_map" in read_json(config, finite=False)
    files = [base / name for name in names if (base / name).is_file() and not (target / name).is_file()]
    for file in [*files, *(sorted(base.glob("*.py")) if own_code else [])]:
        copy_file(file, target / file.name, within=base)


def suppress_padding(folder: Path, growth: Growth) -> None:
    """Rows behind the last token are not sampled; training says the same of what it saves (`models.vocabulary`)."""
    file, last = folder / "generation_config.json", max([growth.base_tokens - 1, *growth.ids])
    if last + 1 < growth.rows and file.is_file():
        config = read_json(file, finite=False) | {"suppress_tokens": [*range(last + 1, growth.rows)]}
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def describe_tokenizer(folder: Path) -> dict[str, Any] | None:
    """Fingerprints and size as a stage's manifest has them; None without tokenizer.json."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    with reporting_damage(folder / "tokenizer.json"):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {
        "fingerprint": text_fingerprint(tokenizer.to_str()),
        "template_fingerprint": text_fingerprint(chat_template(folder)),
        "tokens": tokenizer.get_vocab_size(with_added_tokens=True),
    }


def chat_template(folder: Path) -> str:
    """The chat template that transformers would read; empty where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    file = folder / "tokenizer_config.json"
    template = read_json(file, finite=False).get("chat_template") if file.is_file() else None
    return template if isinstance(template, str) else ""


def merged_config(
    config: dict[str, Any],
    *,
    dtype: str | None,
    vocab_size: int | None,
    tied: bool | None,
    scores: int | None,
    head: str = "score",
    pad_token_id: int | None,
    reward_scale: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The base's config with what merging changes.

    Args:
        config: config.json of the base.
        dtype: Of all weights, as torch names it; None: as it was.
        vocab_size: Rows of grown embeddings.
        tied: False where embeddings and head have come apart.
        scores: Labels of a reward model; None: a causal LM.
        head: What they score: score (a conversation) or steps.
        pad_token_id: A score is read at the last token that is not this one.
        reward_scale: Of the merged scores; None: not known. One of the base is another model's.
    """
    merged = {name: value for name, value in config.items() if name not in ("quantization_config", FIELD)}
    if reward_scale is not None:
        merged[FIELD] = reward_scale
    texts = [merged]
    if isinstance(merged.get("text_config"), dict):
        merged["text_config"] = dict(merged["text_config"])
        texts.append(merged["text_config"])
    for part in texts:
        if dtype is not None:
            part["torch_dtype" if "torch_dtype" in part else "dtype"] = dtype
        if tied is not None:
            part["tie_word_embeddings"] = tied
        if vocab_size is not None and ("vocab_size" in part or len(texts) == 1):
            part["vocab_size"] = vocab_size
    if scores is not None:
        texts[-1]["pad_token_id"] = pad_token_id
        merged["architectures"] = [_classifier(merged, head)]
        names = STEP_LABELS if head == "steps" else [f"LABEL_{label}" for label in range(scores)]
        merged["id2label"] = {str(label): name for label, name in enumerate(names)}
        merged["label2id"] = {name: label for label, name in enumerate(names)}
    return merged


def _classifier(config: dict[str, Any], head: str) -> str:
    from transformers.models.auto import modeling_auto

    kind = "TOKEN" if head == "steps" else "SEQUENCE"
    found = getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES").get(config["model_type"])
    return found if isinstance(found, str) else found[0]


def pad_token_id(folder: Path, *, trust_remote_code: bool = False) -> int | None:
    """The tokenizer's pad token as an id: what is in tokenizer_config.json, looked up in tokenizer.json."""
    file = folder / "tokenizer_config.json"
    pad = read_json(file, finite=False).get("pad_token") if file.is_file() else None
    if pad is None:
        return None
    from transformers import AutoTokenizer

    return pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code).pad_token_id
