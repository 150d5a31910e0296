"""The `hftune` command: what goes with the scripts, before and after a run.

hftune preview run_sft --model_name_or_path MODEL --train_file_dir DIR      what would be trained, in colour
hftune tokenize run_sft --model_name_or_path MODEL --train_file_dir DIR --output_dir TOKENISED
hftune plan run_sft --model_name_or_path MODEL --gpus 8xH200      memory, the cheapest setting that fits, time
hftune vocab extend --model_name_or_path MODEL --train_file_dir CORPUS --new_tokens 1000 --output_dir OUT
hftune explain NAME      what an argument does, also under the names of other tools
hftune export gguf|ollama|quantized|vllm|lora|hub --model_name_or_path MODEL --output_dir OUT      for other tools
hftune launch deepspeed|torchrun|python ...      a command under its launcher, quietly; Ctrl-C saves a checkpoint
hftune pipeline run|plan|check PIPELINE.yaml      all stages from one file; goes on after anything
hftune lineage FOLDER      from the base to this model: data, arguments, merges, and whether it all still holds
hftune report FOLDER      curves, counts, answers and commands of a stage or a pipeline on one page
hftune ask --models BASE outputs/sft-merged --questions "Who are you?"      the same questions to several models
hftune score FILE --model outputs/rm [--output SCORED.jsonl]      conversations through a reward model
hftune consolidate --checkpoint outputs/sft/checkpoint-100 --output_dir OUT      whole weights from ZeRO's pieces
hftune doctor      what this machine has for a run, and what is wrong with it
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hftune.child_processes import leave_working_folder
from hftune.errors import ArgumentError, did_you_mean, run_tool
from hftune.visible import as_json, say

PLAN = """What a run would need, from the config alone: memory by part, the cheapest setting that fits, time.

hftune plan run_sft --model_name_or_path MODEL --max_length 4096 [all other arguments of the script]

--gpus 8xH200     plan for these devices: {devices},
                  or by memory alone, 4x24GiB. Left out: for those that are here.
--nodes 2         for so many machines alike
--json            one JSON object (bytes, seconds) instead of the table

See docs/planning.md for what is counted and how far it was from what was measured."""

STAGES = ("pt", "sft", "rm", "dpo", "rl")
"""Scripts whose records `preview` and `tokenize` read."""


def main() -> None:
    """Run the subcommand that the command line names."""
    leave_working_folder()
    run_tool(lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> None:
    """The first word is the subcommand, the second for most of them the script whose arguments follow.

    Raises:
        ArgumentError: No such subcommand or script.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(__doc__)
        return
    command = COMMANDS.get(argv[0])
    if command is None:
        fix = f"{did_you_mean(argv[0], COMMANDS, written='`hftune {}`')} one of: {', '.join(COMMANDS)}".strip()
        said = argv[0].partition("=")[0]
        stage = said.removesuffix(".py").removeprefix("run_")
        if stage in STAGES:
            fix = f"a stage is a script: python run_{stage}.py ..., or under a launcher: deepspeed run_{stage}.py ..."
        raise ArgumentError(f"there is no `hftune {said}`", fix=fix)
    command(argv[1:])


def preview(argv: list[str]) -> None:
    """Samples and counts of what a script would train on."""
    encoder, data_args, training_args = _encoder(argv, "preview")
    from hftune.data.preview import preview as show
    from hftune.data.records.recognition import describe_formats
    from hftune.data.splits import load_splits

    data, samples = load_splits(encoder, data_args, training_args), data_args.preview or 3
    files = [Path(file) for file in data.about["train"]["files"]]
    if not data_args.columns and all(file.is_file() for file in files):
        stage, _ = _stage(argv, "preview")
        say("\n".join(describe_formats(files, f"run_{stage}.py", samples)))
    accumulated = training_args.train_batch_size * training_args.gradient_accumulation_steps
    show(data, encoder.tokenizer, samples, rows_per_step=accumulated)


def tokenize(argv: list[str]) -> None:
    """The records of a script as token ids in a folder, which the script takes with `--tokenized_dir`."""
    encoder, data_args, training_args = _encoder(argv, "tokenize")
    from hftune.checkpoints import manifest as manifests
    from hftune.data.packing.settings import packing_by_split
    from hftune.data.sources import concatenated
    from hftune.data.splits import encoders_by_split, load_sources
    from hftune.data.tokenized_folder import save_tokenised
    from hftune.errors import raise_together
    from hftune.publishing.folder import published_folder
    from hftune.publishing.ownership import output_problems
    from hftune.secrets import command_without_secrets

    folder, overwrite = training_args.output_dir, training_args.overwrite_output_dir
    raise_together(output_problems(folder, overwrite=overwrite, inputs=[]))  # before hours of tokenising
    encoders = encoders_by_split(
        encoder, packing_by_split(training_args, encoder.row_length) if encoder.row_length else {}
    )
    sources = load_sources(encoders, data_args, training_args.seed)
    with published_folder(folder, overwrite=overwrite) as aside:
        save_tokenised(aside, {name: concatenated(parts) for name, parts in sources.items()}, encoders)
        manifest: manifests.Manifest = {"hftune": manifests.library_versions().get("hftune"), "stage": "tokenize"}
        manifest["command"] = command_without_secrets(["hftune", "tokenize", *argv])
        manifests.finish_manifest(aside, manifest | {"status": manifests.COMPLETE})
    say(f"tokenised records in {folder}; train on them with --tokenized_dir {folder}")


def plan(argv: list[str]) -> None:
    """What a script would need to run."""
    if not argv or {"-h", "--help"} & {*argv}:
        from hftune.preflight.devices import DEVICES

        say(PLAN.format(devices=", ".join(DEVICES)))
        return
    stage, rest = _stage(argv, "plan")
    from hftune.tools.planning.command import plan as show

    show(stage, rest)


def explain(argv: list[str]) -> None:
    """What names mean: hftune's own and those of other tools."""
    if not argv:
        raise ArgumentError("`hftune explain` needs a name", fix="hftune explain lora_rank")
    from hftune.tools.explaining.explain import explain as meaning

    say("\n\n".join(meaning(name.partition("=")[0]) for name in argv))


def export(argv: list[str]) -> None:
    """A finished model in the form that another tool wants."""
    from hftune.arguments.stages import parse_command
    from hftune.tools.export.run import FORMATS
    from hftune.tools.export.run import export as write

    if not argv or argv[0] not in FORMATS:
        raise ArgumentError(
            "`hftune export` needs a format",
            fix=f"hftune export gguf --model_name_or_path MODEL --output_dir OUT; one of: {', '.join(FORMATS)}",
        )
    write(parse_command(FORMATS[argv[0]], argv[1:]))


def consolidate(argv: list[str]) -> None:
    """Whole weights from a DeepSpeed checkpoint."""
    from hftune.arguments.stages import parse_command
    from hftune.checkpoints.consolidate import ConsolidateArguments
    from hftune.checkpoints.consolidate import consolidate as write

    write(parse_command(ConsolidateArguments, argv))


def score(argv: list[str]) -> None:
    """A file of conversations through a reward model."""
    from hftune.arguments.stages import parse_command
    from hftune.distributed import launch
    from hftune.tools.scoring.arguments import ScoreArguments

    launch.prepare_environment()
    from hftune.tools.scoring.run import score as run

    given = ["--input", *argv] if argv and not argv[0].startswith("-") else argv
    run(parse_command(ScoreArguments, given))


def ask(argv: list[str]) -> None:
    """The same questions to one model or several."""
    from hftune.arguments.asking import AskArguments
    from hftune.arguments.stages import parse_command
    from hftune.distributed import launch

    launch.prepare_environment()
    from hftune.tools.reporting.answers import answer_sections
    from hftune.tools.scoring.ask import ask as run

    found = run(parse_command(AskArguments, argv), argv)
    say("\n\n".join(section.render() for section in answer_sections(found, shown=len(found["questions"]))))


def _encoder(argv: list[str], command: str) -> tuple[Any, Any, Any]:
    """The encoder of the script that `argv` names, its data arguments and its training arguments."""
    stage, argv = _stage(argv, command)
    from hftune.arguments.entry import parse_arguments

    model_args, data_args, _, training_args = parse_arguments(stage, argv)

    from hftune.data.encoders import make_encoder
    from hftune.errors import raise_together
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.preflight.checks import check_data_flags, check_model_folder

    raise_together([*check_model_folder(model_args), *check_data_flags(data_args, training_args)])
    encoder = make_encoder(stage, load_tokenizer(model_args, training_args), training_args, data_args)
    return encoder, data_args, training_args


def _stage(argv: list[str], command: str) -> tuple[str, list[str]]:
    """`run_sft.py`, `run_sft` or `sft`, and the arguments behind it."""
    stage = argv[0].removesuffix(".py").removeprefix("run_") if argv else ""
    if stage not in STAGES:
        scripts = ", ".join(f"run_{name}" for name in STAGES)
        raise ArgumentError(
            f"`hftune {command}` needs the script whose arguments follow",
            fix=f"hftune {command} run_sft ...; {scripts}",
        )
    return stage, argv[1:]


def vocab(argv: list[str]) -> None:
    """Tokens and rows before training: add, extend, train, merge, resize."""
    from hftune.distributed import launch

    launch.prepare_environment()
    from hftune.tools.vocabulary import command

    name, rest = (argv[0], argv[1:]) if argv else ("help", [])
    if name in ("-h", "--help", "help"):
        say(command.__doc__)
        return
    if name not in command.COMMANDS:
        near = did_you_mean(name, command.COMMANDS, written="`hftune vocab {}`")
        fix = f"{near} one of: {', '.join(command.COMMANDS)}".strip()
        raise ArgumentError(f"there is no `hftune vocab {name}`", fix=fix)
    from hftune.tools.vocabulary.arguments import parse_vocab_arguments

    command.run(name, parse_vocab_arguments(rest))


def pipeline(argv: list[str]) -> None:
    """All stages from one file."""
    from hftune.tools.pipeline.command import main as run

    run(argv)


def launch(argv: list[str]) -> None:
    """A script under its launcher, without what launchers say and with the exit code of the processes."""
    from hftune.tools.pipeline.launching import launch as run

    run(argv)


def lineage(argv: list[str]) -> None:
    """The chain from base to a model."""
    from hftune.tools.reporting.lineage import draw, trace

    folders = [word for word in argv if not word.startswith("-")]
    strangers = [word for word in argv if word.startswith("-") and word != "--json"]
    if len(folders) != 1 or strangers:
        raise ArgumentError("`hftune lineage` needs one folder", fix="hftune lineage outputs/sft-merged [--json]")
    origin = trace(folders[0])
    say(as_json(origin.to_dict(), indent=2) if "--json" in argv else draw(origin))
    if origin.all_faults():
        raise SystemExit(1)


def report(argv: list[str]) -> None:
    """Curves, counts, answers and commands on one page."""
    from hftune.tools.reporting.page import write_pages

    if len(argv) != 1 or argv[0].startswith("-"):
        raise ArgumentError("`hftune report` needs one folder", fix="hftune report outputs/lora")
    say("\n".join(str(file) for file in write_pages(argv[0])))


def doctor(argv: list[str]) -> None:
    """Libraries, GPUs, folders, and whether processes reach each other."""
    from hftune.tools.doctor.command import main as run

    run(argv)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "preview": preview,
    "tokenize": tokenize,
    "plan": plan,
    "vocab": vocab,
    "export": export,
    "consolidate": consolidate,
    "ask": ask,
    "score": score,
    "explain": explain,
    "launch": launch,
    "pipeline": pipeline,
    "lineage": lineage,
    "report": report,
    "doctor": doctor,
}

if __name__ == "__main__":
    main()
