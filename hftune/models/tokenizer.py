"""The tokenizer, its pad token and its chat template."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hftune.arguments import ModelArguments, StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.added_tokens import add_named_tokens
from hftune.models.configs import first_line, source
from hftune.models.pretrained import pretrained


def load_tokenizer(model_args: ModelArguments, training_args: StageArguments) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or the one named, with added tokens, a pad token and the chat template asked for.

    Raises:
        ArgumentError: There is no tokenizer, or the template or the pad token asked for does not exist.
    """
    tokenizer = load_plain_tokenizer(model_args, training_args, model_args.tokenizer_name_or_path)
    add_named_tokens(tokenizer, model_args)
    if model_args.chat_template:
        tokenizer.chat_template = read_chat_template(model_args.chat_template)
    _choose_pad_token(tokenizer, training_args.pad_token)
    return tokenizer


def load_plain_tokenizer(
    model_args: ModelArguments, training_args: StageArguments, named: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer in `named`, else the model's own, as it lies there."""
    name = str(named or model_args.model_name_or_path)
    try:
        return pretrained(
            AutoTokenizer,
            name,
            trust_remote_code=training_args.trust_remote_code,
            **source(model_args, name),
        )
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"no tokenizer could be loaded from {name}: {first_line(error)}",
            place="--tokenizer_name_or_path" if named else "--model_name_or_path",
            fix="name a folder or Hub name that has one with --tokenizer_name_or_path",
        ) from error


def read_chat_template(value: str) -> str:
    """A Jinja template from a file, or one that TRL ships, by name."""
    if Path(value).is_file():
        return Path(value).read_text(encoding="utf-8")
    import trl

    folder = Path(trl.__file__).parent / "chat_templates"
    shipped = {file.stem: file for file in sorted(folder.glob("*.jinja"))}
    if value in shipped:
        return shipped[value].read_text(encoding="utf-8")
    raise ArgumentError(
        f"there is no chat template {value!r}",
        place="--chat_template",
        fix="give a Jinja file or one of: " + ", ".join(shipped),
    )


def _choose_pad_token(tokenizer: PreTrainedTokenizerBase, asked: str | None) -> None:
    if asked is not None:
        if asked not in tokenizer.get_vocab():
            raise ArgumentError(
                f"{asked!r} is not in the tokenizer's vocabulary",
                place="--pad_token",
                fix="name a token that is, or leave the flag out",
            )
        tokenizer.pad_token = asked
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        notice(f"the tokenizer has no pad token; its end of text {tokenizer.eos_token!r} is used (padding is masked)")
