"""The tokenizer, its pad token and its chat template."""

from __future__ import annotations

import difflib
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hftune import chat_templates
from hftune.arguments.model import ModelArguments
from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.config import file_options
from hftune.models.loading.from_pretrained import pretrained
from hftune.on_demand import on_demand
from hftune.path_hints import cannot_load
from hftune.template_arguments import TEMPLATE_FAULTS, give_arguments, readable


def load_tokenizer(model_args: ModelArguments, training_args: StageArguments) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or the one named, with added tokens, a pad token and the chat template asked for.

    Raises:
        ArgumentError: There is no tokenizer, or the template or the pad token asked for does not exist.
    """
    tokenizer = load_plain_tokenizer(model_args, training_args, model_args.tokenizer_name_or_path)
    if model_args.add_tokens is not None or model_args.add_special_tokens is not None:
        on_demand("hftune.models.vocabulary:add_named_tokens")(tokenizer, model_args)
    if model_args.chat_template:
        tokenizer.chat_template = read_chat_template(model_args.chat_template)
        _report_unknown_tokens(tokenizer)
    arguments = training_args.template_arguments
    if arguments and "chat_template_kwargs" not in training_args.given:
        # Of the base's manifest: another --chat_template may not read them.
        arguments = readable(arguments, tokenizer)
    give_arguments(tokenizer, arguments)
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
            **file_options(model_args),
        )
    except (OSError, ValueError) as error:
        flag = "--tokenizer_name_or_path" if named else "--model_name_or_path"
        if Path(name).is_dir() and not has_tokenizer(Path(name)):
            raise _no_tokenizer(Path(name), flag) from error
        raise cannot_load(name, error, flag, "tokenizer", offline=model_args.offline) from error


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file that any tokenizer is read from."""
    kinds = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "special_tokens_map.json")
    return any(True for kind in kinds for _ in folder.glob(kind))


def _no_tokenizer(folder: Path, flag: str) -> ArgumentError:
    above = folder.resolve().parent
    where = str(above) if has_tokenizer(above) else "the folder or Hub name of the model that its weights began as"
    return ArgumentError(
        f"{folder} holds no tokenizer (no tokenizer.json, tokenizer.model or vocabulary)",
        place=flag,
        fix=f"add --tokenizer_name_or_path with {where}",
    )


def read_chat_template(value: str) -> str:
    """A Jinja template from a file, or one that TRL or hftune ships, by name."""
    if Path(value).is_file():
        return Path(value).read_text(encoding="utf-8")
    names = chat_templates.shipped()
    if value in names:
        return chat_templates.text_of(value)
    # TRL's templates for training differ from the plain ones by marks around what is trained.
    near = [name for name in names if name.startswith(value.lower()) and not name.endswith("_training")]
    near = near or difflib.get_close_matches(value.lower(), names, n=1)
    listed = ", ".join(dict.fromkeys([*near[:4], "chatml", *chat_templates.GENERAL]))
    raise ArgumentError(
        f"there is no file and no chat template {value!r}",
        place="--chat_template",
        fix=(f"did you mean {near[0]}? " if near else "")
        + f"give one of {listed}; or the path of a .jinja file; left out, the model's own is used",
    )


def _report_unknown_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Say which tokens of the template this tokenizer does not have, as in a template of another model."""
    # They are spelt with several tokens, so that no single one ends a turn.
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        text = str(tokenizer.apply_chat_template(said, tokenize=False))
    except TEMPLATE_FAULTS:  # reported with the first record
        return
    unknown = sorted(chat_templates.tokens_of(text) - tokenizer.get_vocab().keys())
    if unknown:
        notice(
            f"the chat template writes {', '.join(unknown)}, which are no tokens of this tokenizer and are spelt in "
            f"pieces: another template fits it better, or add them with --add_special_tokens '{','.join(unknown)}'"
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
    # Labels are masked by position, not by id, so that the end of a text may serve.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        notice(f"the tokenizer has no pad token; its end of text {tokenizer.eos_token!r} is used (padding is masked)")
