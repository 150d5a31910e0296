"""Whether a teacher reads other tokens than the student, and what a run cannot do then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hftune.arguments.data import DataArguments
from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.data.alignment.vocabularies import same_tokenizer
from hftune.data.tokenizing.chats import ChatEncoder
from hftune.data.tokenizing.taught_chats import TaughtChatEncoder
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.loading.tokenizer import has_tokenizer, load_plain_tokenizer
from hftune.preflight.teachers import FLAG, errors_of_teacher, teacher_arguments, teacher_source
from hftune.trainers.distillation.teacher_server import teacher_server


def taught_encoder(
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: DistillArguments,
) -> ChatEncoder:
    """The encoder of SFT; one that also writes what the teacher reads, where its tokenizer is another.

    Raises:
        ArgumentError: Another tokenizer, and what cannot be done with one: packed rows, streams, records tokenised
            ahead, several teachers, a server; or one that cannot be aligned.
    """
    if training_args.teacher_server_url:
        teacher_server(training_args).check(tokenizer)
    found = teacher_tokenizers(model_args, training_args)
    others = {name: one for name, one in found.items() if not same_tokenizer(tokenizer, one)}
    if not others:
        return ChatEncoder.from_arguments(tokenizer, training_args)
    (name, teacher), *_ = others.items()
    _check(name, data_args, training_args)
    encoder = TaughtChatEncoder(tokenizer, teacher, **ChatEncoder.options_of(training_args))
    notice(
        f"{name} has another tokenizer than the student: it reads "
        f"{'the same messages in its own template' if encoder.teacher_finder else 'the text of the student'}, and "
        "learning is from tokens and spans that both write alike"
    )
    return encoder


def teacher_tokenizers(
    model_args: ModelArguments, training_args: DistillArguments
) -> dict[str, PreTrainedTokenizerBase]:
    """The tokenizer of each teacher that has one, by its name; the others are taken to have the student's."""
    found = {name: _tokenizer_of(name, model_args, training_args) for name in training_args.teachers}
    return {name: one for name, one in found.items() if one is not None}


def _tokenizer_of(
    name: str, model_args: ModelArguments, training_args: DistillArguments
) -> PreTrainedTokenizerBase | None:
    """A teacher's tokenizer, with the adapter where it lies there; None where a folder has none."""
    source = teacher_source(name)
    own_args, _ = teacher_arguments(source, model_args, training_args)
    place = next((one for one in reversed(source.adapters) if has_tokenizer(Path(one))), source.base)
    if Path(place).is_dir() and not has_tokenizer(Path(place)):
        notice(f"{place} holds no tokenizer; it is taken to have the student's")
        return None
    with errors_of_teacher(name):
        return load_plain_tokenizer(replace(own_args, model_name_or_path=place), training_args)


def _check(name: str, data_args: DataArguments, training_args: DistillArguments) -> None:
    faults = {
        "--packing": (training_args.packing, "leave it out: --padding_free puts records into one row as well"),
        "--streaming": (data_args.streaming, "leave it out: records are tokenised once and kept in a cache"),
        "--tokenized_dir": (data_args.tokenized_dir, "give the records themselves (--train_file_dir)"),
        FLAG: (len(training_args.teachers) > 1, "name one teacher, or several with the student's tokenizer"),
    }
    for flag, (given, fix) in faults.items():
        if given:
            raise ArgumentError(
                f"{name} has another tokenizer than the student, and its rows cannot be found this way",
                place=flag,
                fix=fix,
            )
