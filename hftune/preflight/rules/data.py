"""Rules about the data of a run; each yields the problems that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.arguments.data import DataArguments
from hftune.arguments.training import PTArguments, SFTArguments, StageArguments
from hftune.data.columns import parse_columns
from hftune.data.files import find_files
from hftune.data.hub import may_exist
from hftune.data.specs import parse_sources, path_exists
from hftune.errors import ArgumentError, UserError
from hftune.path_hints import path_hint
from hftune.preflight.facts import Facts
from hftune.preflight.rules import Clashes, clashes, raised


def check_data(facts: Facts) -> Iterator[UserError]:
    """Problems of the data: where records come from, and how they are used."""
    yield from check_data_flags(facts.data_args, facts.training_args)
    yield from check_tokenized(facts.data_args, facts.training_args)
    yield from check_streaming(facts.data_args, facts.training_args)
    yield from check_turn_weights(facts.training_args)
    # A number or a word, of which argparse makes a text: no range is looked at.
    multiple = getattr(facts.training_args, "pad_to_multiple_of", None)
    if multiple is not None and multiple < 1:
        yield ArgumentError(
            "no length is a multiple of that",
            place=f"--pad_to_multiple_of {multiple}",
            fix="give a number from 1, or auto",
        )


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
    # A tokenised folder may hold a split of its own, which is not known before it is opened.
    held_out = data_args.validation_file_dir or data_args.validation_split_percentage > 0 or data_args.tokenized
    # A run without training is there to evaluate, whatever the strategy says.
    evaluates = training_args.eval_strategy != "no" or not training_args.do_train
    if evaluates and not held_out:
        yield ArgumentError(
            "evaluation was asked for, but no records are held out",
            place="--eval_strategy" if training_args.do_train else "--do_eval or --do_train False",
            fix="give --validation_file_dir, or --validation_split_percentage 5",
        )


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


def check_turn_weights(training_args: StageArguments) -> Iterator[UserError]:
    """Problems of `--turn_weights` with packed rows, or with a loss that is no sum over tokens."""
    args: Any = training_args
    if getattr(args, "turn_weights", False):
        others: Clashes = {
            "--packing": (args.packing or args.eval_packing, "packed rows do not carry them; --padding_free does"),
            f"--loss_type {args.loss_type}": (args.loss_type != "nll", "it is no plain sum over tokens, as nll is"),
        }
        yield from clashes("--turn_weights", others)


def check_streaming(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of options that a stream cannot have: it has no length, no weights, and holds out no records."""
    if not data_args.streaming:
        return
    if not isinstance(training_args, (PTArguments, SFTArguments)):
        yield ArgumentError("only text and conversations are streamed", place="--streaming", fix="leave it out")
    if training_args.max_steps <= 0:
        yield ArgumentError("a stream has no length", place="--streaming", fix="say how long to train: --max_steps")
    known = "it needs the records to be known before training; held-out records come from --validation_file_dir"
    names = ("tokenized_dir", "dummy_data", "train_dataset_prob", "num_samples_each_epoch")
    # Stages without packing have no strategy; `wrapped` alone needs no look at later records.
    strategy = getattr(training_args, "packing_strategy", "wrapped")
    others: Clashes = {
        **{f"--{name}": (getattr(data_args, name), known) for name in names},
        "--max_train_samples": (data_args.max_train_samples > 0, known),
        "--validation_split_percentage": (data_args.validation_split_percentage > 0, known),
        "--train_sampling_strategy": (
            training_args.train_sampling_strategy != "random",
            "a stream has an order of its own",
        ),
        f"--packing_strategy {strategy}": (
            getattr(training_args, "packing", False) and strategy != "wrapped",
            "it looks at all records to find those that fit together; wrapped or --padding_free does not",
        ),
    }
    yield from clashes("--streaming", others)


def check_tokenized(data_args: DataArguments, training_args: StageArguments) -> Iterator[UserError]:
    """Problems of options next to tokenised folders; only pre-training mixes several."""
    if not data_args.tokenized:
        return
    held_out = "held-out records are tokenised, too: give it to `hftune tokenize`"
    others: Clashes = {
        f"--{name}": (getattr(data_args, name), held_out)
        for name in ("validation_file_dir", "validation_split_percentage")
    }
    # Pre-training reads blocks by an endless loader; the other stages read folders as they read files.
    if isinstance(training_args, PTArguments):
        others |= _of_blocks(data_args, training_args)
    yield from clashes("--tokenized_dir", others)
    for name in ("datasets", "weights", "validation_tokenized_dir"):
        if getattr(data_args, name) and not isinstance(training_args, PTArguments):
            yield ArgumentError(
                "mixing tokenised folders is for pre-training",
                place=f"--{name}",
                fix="give the files with --train_file_dir a,b --train_dataset_prob 2,1, or use run_pt.py",
            )


def _of_blocks(data_args: DataArguments, args: PTArguments) -> Clashes:
    """What does not go with blocks of tokenised documents."""
    # With either of them accelerate hands out parts of batches, where hftune's loader gives each rank documents of its
    # own.
    shards = "it shards batches in another way, and documents would come twice"
    whole = "they are used whole; give --max_steps or --num_samples_each_epoch, or tokenise fewer"
    return {
        "--packing False": (not args.packing, "tokenised documents are joined into blocks, and do not see each other"),
        **{f"--{name}": (getattr(data_args, name) > 0, whole) for name in ("max_train_samples", "max_eval_samples")},
        **{
            f"--accelerator_config {name}": (getattr(args.accelerator_config, name, False), shards)
            for name in ("split_batches", "dispatch_batches")
        },
        "--auto_find_batch_size": (args.auto_find_batch_size, "their position is counted in batches of one size"),
        "--train_sampling_strategy": (
            args.train_sampling_strategy != "random",
            "blocks are all of one length, in an order of their own; --shuffle_buffer 0 keeps the order of the files",
        ),
    }
