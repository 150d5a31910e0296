"""Rules about the data of a run; each yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator

from hftune.arguments.data import DataArguments
from hftune.arguments.training import StageArguments
from hftune.data.columns import parse_columns
from hftune.data.files import find_files
from hftune.data.hub import may_exist
from hftune.data.specs import parse_sources, path_exists
from hftune.errors import ArgumentError, UserError
from hftune.path_hints import path_hint
from hftune.preflight.facts import Facts
from hftune.preflight.rules import raised, refused


def check_data(facts: Facts) -> Iterator[UserError]:
    """Problems of the data: where records come from, and how they are used."""
    yield from check_data_flags(facts.data_args, facts.training_args)
    yield from refused("data", facts)


def check_data_flags(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of data that is not named, not there, or missing for evaluation."""
    kinds = ("train_file_dir", "dataset_name", "dummy_data", "tokenized_dir")
    given = [name for name in kinds if getattr(data_args, name) is not None]
    given = given or (["datasets"] if data_args.tokenized else [])
    if len(given) != 1:
        cause = f"{len(given)} kinds of training data at once" if given else "no training data was named"
        flags = ", ".join(f"--{name}" for name in given) or "--train_file_dir"
        named = "add --train_file_dir with a file or folder of records, or a Hub name"
        if not training_args.do_train:
            named += (
                ", which is read and not trained; or hftune evaluate MODEL --eval_tasks loss --validation_file_dir DATA"
            )
        fix = "keep one of them" if given else named
        yield ArgumentError(cause, place=flags, fix=fix)
    yield from check_sources(data_args)
    yield from refused("held out", data_args, training_args)


def check_sources(data_args: DataArguments) -> Iterator[UserError]:
    """Problems of sources that are neither a path nor a possible Hub name, and of malformed weights and columns."""
    weights = {"train_file_dir": data_args.train_dataset_prob, "validation_file_dir": None}
    for name, weight in weights.items():
        flag, text = f"--{name}", getattr(data_args, name)
        try:
            specs = parse_sources(text, weight, flag=flag) if text is not None else []
        except ArgumentError as problem:
            yield problem
            continue
        for spec in specs:
            # OWNER/NAME may be on the Hub: only what cannot be a name there must be a path.
            if not may_exist(spec.path):
                cause = f"there is no file or folder {spec.path}"
                yield ArgumentError(cause, place=flag, fix=path_hint(spec.path, "a file or a folder of records"))
            elif path_exists(spec.path):
                yield from raised(find_files, spec.path, flag, say=False)
    yield from raised(parse_columns, data_args.columns)
