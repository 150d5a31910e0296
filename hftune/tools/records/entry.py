"""`hftune preview` and `hftune tokenize`: the records of a script, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.arguments.scripts import take_script
from hftune.on_demand import on_demand
from hftune.visible import say

ENCODERS = {
    "pt": "hftune.data.tokenizing.texts:TextEncoder",
    "sft": "hftune.data.tokenizing.chats:ChatEncoder",
    "rm": "hftune.data.preferences.reward_encoder:RewardEncoder",
    "dpo": "hftune.data.preferences.pairs:PairEncoder",
    "rl": "hftune.data.preferences.prompts:PromptEncoder",
}
"""What each script makes of its records."""


def preview(argv: list[str]) -> None:
    """Samples and counts of what a script would train on."""
    encoder, data_args, training_args = _encoder(argv, "preview")
    from hftune.data.preview import preview as show
    from hftune.data.preview import recognised
    from hftune.data.splits import load_splits

    data, samples = load_splits(encoder, data_args, training_args), data_args.preview or 3
    files = [Path(file) for file in data.about["train"]["files"]]
    if not data_args.columns and all(file.is_file() for file in files):
        stage, _ = take_script(argv, "preview")
        say("\n".join(recognised(files, f"run_{stage}.py", samples)))
    accumulated = training_args.train_batch_size * training_args.gradient_accumulation_steps
    show(data, encoder.tokenizer, samples, rows_per_step=accumulated)


def tokenize(argv: list[str]) -> None:
    """The records of a script as token ids in a folder, which the script takes with `--tokenized_dir`."""
    encoder, data_args, training_args = _encoder(argv, "tokenize")
    from hftune.checkpoints import manifest as manifests
    from hftune.data.corpus.sources import join
    from hftune.data.corpus.tokenized_folder import save_tokenised
    from hftune.data.packing.rows import packings
    from hftune.data.splits import encoders_of, load_sources
    from hftune.errors import raise_together
    from hftune.publishing.folder import published_folder
    from hftune.publishing.ownership import output_problems
    from hftune.secrets import command_without_secrets

    folder, overwrite = training_args.output_dir, training_args.overwrite_output_dir
    raise_together(output_problems(folder, overwrite=overwrite, inputs=[]))  # before hours of tokenising
    encoders = encoders_of(encoder, packings(training_args, encoder.row_length) if encoder.row_length else {})
    sources = load_sources(encoders, data_args, training_args.seed)
    with published_folder(folder, overwrite=overwrite) as aside:
        save_tokenised(aside, {name: join(parts) for name, parts in sources.items()}, encoders)
        manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "tokenize"}
        manifest["command"] = command_without_secrets(["hftune", "tokenize", *argv])
        manifests.finish_manifest(aside, manifest | {"status": manifests.COMPLETE})
    say(f"tokenised records in {folder}; train on them with --tokenized_dir {folder}")


def _encoder(argv: list[str], command: str) -> tuple[Any, Any, Any]:
    """The encoder of the script that `argv` names, its data arguments and its training arguments."""
    stage, argv = take_script(argv, command)
    from hftune.arguments.entry import parse_arguments

    model_args, data_args, _, training_args = parse_arguments(stage, argv)

    from hftune.errors import raise_together
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.preflight.checks import check_data_flags, check_model_folder

    raise_together([*check_model_folder(model_args), *check_data_flags(data_args, training_args)])
    encoder = on_demand(ENCODERS[stage])
    return encoder.from_arguments(load_tokenizer(model_args, training_args), training_args), data_args, training_args
