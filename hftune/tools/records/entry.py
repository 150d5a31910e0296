"""`hftune preview` and `hftune tokenize`: the records of a script, without training; which format each is, and why."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from hftune.arguments.stage_table import base_stage, take_script
from hftune.data.files import Row, chunks
from hftune.data.formats import (
    FORMATS,
    PROMPTS,
    Format,
    filled,
    first_fit,
    is_labelled,
    pair_format,
    script_for,
)
from hftune.visible import say


def preview(argv: list[str]) -> None:
    """Samples and counts of what a script would train on."""
    encoder, arguments = _encoder(argv, "preview")
    data_args, training_args = arguments.data, arguments.training
    from hftune.data.preview import preview as show
    from hftune.data.splits import load_splits

    data, samples = load_splits(encoder, data_args, training_args), data_args.preview or 3
    files = [Path(file) for file in data.about["train"]["files"]]
    # With --columns the format is given, and records of the Hub have no file to show.
    if not data_args.columns and all(file.is_file() for file in files):
        stage, _ = take_script(argv, "preview")
        rows = (row for chunk in chunks(files) for row in chunk.rows() if isinstance(row, Row))
        for row in islice(rows, samples):
            say(f"{row.origin}: {describe_format(row.value, f'run_{base_stage(stage)}.py')}")
    accumulated = training_args.train_batch_size * training_args.gradient_accumulation_steps
    show(data, encoder.tokenizer, samples, rows_per_step=accumulated)


def tokenize(argv: list[str]) -> None:
    """The records of a script as token ids in a folder, which the script takes with `--tokenized_dir`."""
    encoder, arguments = _encoder(argv, "tokenize")
    data_args, training_args = arguments.data, arguments.training
    from hftune.checkpoints import manifest as manifests
    from hftune.checkpoints.inputs import inputs_of
    from hftune.data.packing import packing_by_split
    from hftune.data.sources import concatenated
    from hftune.data.splits import encoders_by_split, load_sources
    from hftune.data.tokenized_folder import save_tokenised
    from hftune.errors import raise_together
    from hftune.publishing.folder import published_folder
    from hftune.publishing.places import check_place
    from hftune.secrets import command_without_secrets

    folder, overwrite = training_args.output_dir, training_args.overwrite_output_dir
    # Before hours of tokenising, which would be lost.
    inputs = inputs_of(*arguments)
    raise_together(check_place(folder, inputs, overwrite=overwrite))
    packing = packing_by_split(training_args, encoder.row_length) if encoder.row_length else {}
    encoders = encoders_by_split(encoder, packing)
    with published_folder(folder, overwrite=overwrite, inputs=inputs) as aside:
        sources = load_sources(encoders, data_args, training_args.seed)
        save_tokenised(aside, {name: concatenated(found) for name, found in sources.items()}, encoders)
        manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "tokenize"}
        manifest["command"] = command_without_secrets(["hftune", "tokenize", *argv])
        manifests.finish_manifest(aside, manifest | {"status": manifests.COMPLETE})
    say(f"tokenised records in {folder}; train on them with --tokenized_dir {folder}")


def _encoder(argv: list[str], command: str) -> tuple[Any, Any]:
    """The encoder of the script that `argv` names, and its arguments."""
    stage, argv = take_script(argv, command)
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments(stage, argv)
    model_args, data_args, adapter_args, training_args = arguments

    # After parsing: a wrong command is refused before seconds of imports.
    from hftune.data.splits import make_encoder
    from hftune.errors import raise_together
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.preflight.facts import take_template_arguments
    from hftune.preflight.model_folder import check_model_folder
    from hftune.preflight.rules.data import check_data_flags

    raise_together([*check_model_folder(model_args), *check_data_flags(data_args, training_args)])
    if base_stage(stage) != "pt":
        take_template_arguments(model_args, adapter_args, training_args)
    encoder = make_encoder(stage, load_tokenizer(model_args, training_args), training_args, data_args)
    return encoder, arguments


def describe_format(value: dict[str, Any], script: str) -> str:
    """A line on one record: its format in `script`, the columns that decided, and what else of it is used.

    Args:
        script: A key of `formats.FORMATS`, such as "run_sft.py"; run_rm.py is read like run_dpo.py.
    """
    # Both train on pairs, read by the same formats.
    script = "run_dpo.py" if script == "run_rm.py" else script
    found = _recognised(value, script)
    if found is None:
        home = script_for(value)
        return f"no format that {script} reads" + (f"; it looks like data for {home}" if home else "")
    extras = [key for key in ("system", "system_prompt", "history", "tools", "functions") if filled(value, key)]
    # As `read_question` reads it.
    if "instruction" in found.keys and filled(value, "input"):
        extras.append("input")
    used = f", with {', '.join(extras)}" if extras else ""
    columns = " and ".join(f'"{key}"' for key in found.keys)
    left = sorted(set(value) - set(found.keys) - set(extras))
    unused = f"; not used: {', '.join(left[:8])}{', ...' if len(left) > 8 else ''}" if left else ""
    if script == "run_rl.py":
        unused = f"; for the reward functions: {', '.join(left[:8])}" if left else ""
    return f"{found.name}, because it has {columns}{used}{unused}"


def _recognised(value: dict[str, Any], script: str) -> Format | None:
    """The format by which the record is read, tried in the same order as the readers try them."""
    pair = pair_format(value)
    if script == "run_dpo.py":
        asked = first_fit(value, PROMPTS)
        # A prompt in a column of its own; otherwise both answers begin with it.
        if pair and asked and not set(asked.keys) & set(pair.keys):
            return Format(f"{pair.name} after {asked.name}", (*asked.keys, *pair.keys))
        return pair
    if script == "run_rl.py":
        return first_fit(value, PROMPTS)
    # Pairs and labelled answers are other scripts' data: read as a conversation, the rejected answer would be trained,
    # too.
    if pair or (script == "run_sft.py" and is_labelled(value)):
        return None
    return first_fit(value, FORMATS[script])
