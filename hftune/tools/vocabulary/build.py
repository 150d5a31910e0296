"""The result folder of `hftune vocab`: a tokenizer, a model of its size, and a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.inputs import inputs_of
from hftune.errors import ArgumentError, raise_together
from hftune.logging import get_logger, notice
from hftune.models.loading.config_sizes import check_config
from hftune.models.loading.from_pretrained import pretrained
from hftune.models.vocabulary.growing import plan_growth
from hftune.models.vocabulary.grown_model import grow
from hftune.models.vocabulary.size import describe_vocabulary, vocabulary_rows
from hftune.publishing.folder import published_folder
from hftune.secrets import without_secrets
from hftune.tools.vocabulary.arguments import VocabArguments
from hftune.tools.vocabulary.model_file import NAME, grow_model_file
from hftune.weight_files import fingerprint

# Files of older tokenizers that say less than tokenizer.json by now.
_STALE = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "spiece.model")


@dataclass
class Result:
    """The tokenizer that a subcommand made.

    `content` is the new `tokenizer.json`, None where the tokenizer is as it was given; `figures` go into the manifest.
    """

    tokenizer: PreTrainedTokenizerBase
    content: dict[str, Any] | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def load_base_tokenizer(args: VocabArguments, *, named: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer that grows: the model's own, or with `named` the one of `--tokenizer_name_or_path` if it is given.

    Raises:
        ArgumentError: There is none.
    """
    name = (args.tokenizer_name_or_path if named else None) or args.model_name_or_path or args.tokenizer_name_or_path
    if not name:
        raise ArgumentError("no model was named", place="--model_name_or_path", fix="give a folder or a Hub name")
    check_config(name)
    flag = "--tokenizer_name_or_path" if name == args.tokenizer_name_or_path else "--model_name_or_path"
    raise_together(check_recorded(name, flag))
    try:
        return pretrained(AutoTokenizer, name, trust_remote_code=args.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"no tokenizer could be loaded from {name}: {str(error).splitlines()[0]}",
            place="--model_name_or_path / --tokenizer_name_or_path",
            fix="name a folder or Hub name that has one",
        ) from error


def with_content(
    tokenizer: PreTrainedTokenizerBase, content: dict[str, Any], folder: Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer whose `tokenizer.json` is `content`, written into `folder` and loaded from there."""
    tokenizer.save_pretrained(folder)
    for name in _STALE:
        (folder / name).unlink(missing_ok=True)
    grow_model_file(tokenizer.name_or_path, content, folder / NAME)
    # After `save_pretrained`, which has written the old one.
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    # Read back: what conversion at loading changes shows here, and not in training.
    grown = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    vocabulary = grown.get_vocab()
    moved = [token for token, number in tokenizer.get_vocab().items() if vocabulary.get(token) != number]
    # A token whose id moves gets another token's embedding: the model would read something else.
    assert not moved, f"ids of {len(moved)} tokens have moved: {moved[:5]}"
    return grown


def write_result(
    args: VocabArguments, command: str, make: Callable[[Path], Result], base: PreTrainedTokenizerBase | None
) -> Path:
    """Write tokenizer, model and manifest; they appear in the output folder together, or not at all.

    Args:
        make: Given the folder that is written to; returns what goes there.
        base: The tokenizer of `--model_name_or_path`, from which its model grows; None: there is no model.

    Raises:
        ArgumentError: No output folder, or one that holds a finished result.
    """
    with published_folder(
        str(args.output_dir or ""), overwrite=args.overwrite_output_dir, inputs=inputs_of(args)
    ) as aside:
        _fill(aside, args, command, make(aside), base)
    return Path(str(args.output_dir))


def _fill(
    folder: Path, args: VocabArguments, command: str, result: Result, base: PreTrainedTokenizerBase | None
) -> None:
    # Otherwise `with_content` has written the tokenizer's files already.
    if result.content is None:
        result.tokenizer.save_pretrained(folder)
    model = None if base is None or args.tokenizer_only else _grown_model(args, base, result.tokenizer)
    if model is not None:
        model.save_pretrained(folder)
    manifests.finish_manifest(folder, _manifest(args, command, result.tokenizer, model, result.figures))


def _grown_model(
    args: VocabArguments, base: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    try:
        model = pretrained(
            # In the checkpoint's own dtype: rows that stay must stay bit for bit.
            AutoModelForCausalLM,
            args.model_name_or_path,
            dtype="auto",
            trust_remote_code=args.trust_remote_code,
        )
    except OSError as error:
        raise ArgumentError(
            f"no model could be loaded from {args.model_name_or_path}: {str(error).splitlines()[0]}",
            place="--model_name_or_path",
            fix="give a model folder, or add --tokenizer_only",
        ) from error
    growth = plan_growth(
        base,
        tokenizer,
        vocabulary_rows(model),
        init=args.init_new_embeddings,
        multiple=args.pad_vocab_to_multiple_of,
        # 0.02 is what most configs have (GPT-2's), for those that do not say.
        std=float(getattr(model.config.get_text_config(), "initializer_range", 0.02)),
    )
    if growth is not None:
        grow(model, growth)
    else:
        notice("the model has rows for all tokens already; its weights are written as they are")
    return model


def _manifest(
    args: VocabArguments,
    command: str,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel | None,
    figures: dict[str, Any],
) -> manifests.Manifest:
    name = args.model_name_or_path
    about = describe_vocabulary(model, manifests.read_manifest(name)) if model is not None else None
    get_logger().info("%s: %s tokens%s", command, len(tokenizer), f", {about['rows']} rows" if about else "")
    return {
        "hftune": manifests.library_versions().get("hftune"),
        "stage": "vocab",
        "status": manifests.COMPLETE,
        "command": ["hftune", "vocab", command],
        "arguments": without_secrets(vars(args)),
        "versions": manifests.library_versions(),
        "base": {"name": name, "fingerprint": fingerprint(name)} if name else None,
        "parents": [{"folder": name, "fingerprint": fingerprint(name)}]
        if name and manifests.read_manifest(name)
        else [],
        "kind": "full" if model is not None else "tokenizer",
        "head": "causal_lm" if model is not None else None,
        "tokenizer": {
            "fingerprint": manifests.text_fingerprint(tokenizer.backend_tokenizer.to_str()),
            "template_fingerprint": manifests.text_fingerprint(tokenizer.chat_template or ""),
            "tokens": len(tokenizer),
        },
        "vocabulary": about,
        "metrics": figures,
    }
