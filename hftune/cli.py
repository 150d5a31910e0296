"""The `hftune` command: what goes with the scripts, before and after a run.

hftune {stages}|merge ...      a stage, with the arguments of its script: --nproc 2 for two processes
hftune init demo|sft|pipeline [FOLDER]      a folder to start from: data, YAML, what to do
hftune preview run_sft --model_name_or_path MODEL --train_file_dir DIR      what would be trained, in colour
hftune tokenize run_sft --model_name_or_path MODEL --train_file_dir DIR --output_dir TOKENISED
hftune data check FILE [--against EVAL] --output_dir OUT      duplicates, leaks, secrets, damage
hftune plan run_sft --model_name_or_path MODEL --gpus 8xH200      memory by part, the least change that fits, steps
hftune explain NAME             what an argument does, also under the names of other tools
hftune export gguf|ollama|vllm|hub --model_name_or_path MODEL --output_dir OUT      for other tools
hftune launch deepspeed|torchrun|python ...      a command under its launcher, quietly; Ctrl-C saves a checkpoint
hftune pipeline run|plan|check PIPELINE.yaml      all stages from one file; resumes after anything
hftune lineage FOLDER      from the base to this model: data, arguments, merges, and whether it all still holds
hftune report FOLDER      curves, counts, answers and commands of a stage or a pipeline on one page
hftune watch FOLDER [--once]      how the runs of a folder do: steps, curves, time left
hftune board [FOLDER ...]      a local page in the browser: live curves, samples, comparison
hftune ask --models BASE outputs/sft-merged --questions "Who are you?"      the same questions to several models
hftune serve outputs/sft-merged [--adapter NAME=FOLDER]      a server as OpenAI's, for what was trained
hftune chat outputs/sft-merged      a conversation in the terminal, saved as a record
hftune score FILE --model outputs/rm [--output SCORED.jsonl]      conversations through a reward model
hftune evaluate outputs/sft --eval_tasks loss math --validation_file_dir DATA --against BASE --output_dir OUT
hftune sample outputs/sft --train_file_dir PROMPTS --reward_model_path outputs/rm --keep pairs --output_dir OUT
hftune teach --teacher_model_name_or_path TEACHER --model_name_or_path STUDENT --train_file_dir DIR --output_dir OUT
hftune consolidate --checkpoint outputs/sft/checkpoint-100 --output_dir OUT      whole weights from ZeRO's shards
hftune schema sft|...|pipeline      JSON Schema of a YAML file, for editors and agents
hftune completion bash|zsh|fish      a script that completes commands, arguments and their values
hftune doctor      what this machine has for a run, and what is wrong with it
hftune --version      the version
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from hftune import __version__
from hftune.arguments.stage_table import STAGES, stage_of
from hftune.errors import ArgumentError, did_you_mean, run_tool
from hftune.logging import quiet_libraries
from hftune.on_demand import on_demand
from hftune.visible import TYPED, say


class Command(NamedTuple):
    """A subcommand; what is named as "module:name" is imported when it is asked for.

    Args:
        run: Takes the words behind it.
        arguments: What holds its arguments, for completion: a class, one for each word behind it, or a stage.
        first: Of one that loads models, and is given its class of arguments as well: what its first words are.
    """

    run: str
    arguments: str = ""
    first: str = ""


COMMANDS = {
    "merge": Command("hftune.tools.pipeline.starting:merge", "hftune.arguments.merging:MergeArguments"),
    "init": Command("hftune.tools.init.folder:init"),
    "preview": Command("hftune.tools.records.entry:preview"),
    "tokenize": Command("hftune.tools.records.entry:tokenize"),
    "plan": Command("hftune.tools.planning.entry:plan"),
    "data": Command("hftune.tools.checking.entry:data", "hftune.tools.checking.entry:COMMANDS"),
    "export": Command("hftune.tools.export.run:main", "hftune.tools.export.run:FORMATS"),
    "teach": Command("hftune.tools.teaching:teach", "distill"),
    "evaluate": Command(
        "hftune.tools.evaluating.run:evaluate", "hftune.arguments.asking:EvaluateArguments", "--models"
    ),
    "sample": Command(
        "hftune.tools.sampling:sample", "hftune.arguments.asking:SampleArguments", "--model_name_or_path"
    ),
    "consolidate": Command("hftune.tools.consolidating:main", "hftune.tools.consolidating:ConsolidateArguments"),
    "ask": Command("hftune.tools.asking:ask", "hftune.arguments.asking:AskArguments", "--models"),
    "chat": Command("hftune.tools.chatting.chat:chat", "hftune.arguments.asking:ChatArguments", "--models"),
    "score": Command("hftune.tools.scoring:score", "hftune.arguments.asking:ScoreArguments", "--input"),
    "serve": Command("hftune.tools.serving.run:serve", "hftune.arguments.asking:ServeArguments", "--model"),
    "explain": Command("hftune.tools.explaining.entry:explain"),
    "launch": Command("hftune.tools.pipeline.starting:launch"),
    "pipeline": Command("hftune.tools.pipeline.command:main"),
    "lineage": Command("hftune.tools.reporting.lineage:main"),
    "report": Command("hftune.tools.reporting.page:main"),
    "watch": Command("hftune.tools.watching:watch"),
    "board": Command("hftune.tools.board.app:board"),
    "schema": Command("hftune.tools.schema.entry:schema"),
    "completion": Command("hftune.cli:completion"),
    "doctor": Command("hftune.tools.doctor.command:main"),
}
REMOVED = {
    "reproduce": "`hftune lineage FOLDER` says whether what made it still holds; its own command runs it again",
    "vocab": "tokens of a list or a file join while a stage runs: --add_tokens FILE, --add_special_tokens, "
    "--pad_vocab_to_multiple_of 64; a larger tokenizer: --tokenizer_name_or_path FOLDER --resize_vocab",
    "parity": "`hftune doctor --train` compares trainings on this machine; docs/parity.md has what papers say",
    "export lora": "mergekit does it: "
    "mergekit-extract-lora --model TUNED --base-model BASE --out-path OUT --max-rank 32",
    "export vllm-lora": "vLLM takes the adapter's own folder (--enable-lora --lora-modules NAME=FOLDER), and "
    "`hftune serve BASE --adapter NAME=FOLDER` starts it so; what vLLM cannot take is merged: `hftune merge`",
    "export quantized": 'transformers does it: `AutoModelForCausalLM.from_pretrained("MODEL", quantization_config='
    'BitsAndBytesConfig(load_in_4bit=True)).save_pretrained("OUT")`; vLLM quantises as it loads',
}
"""Subcommands that there were, or words behind one, and what stands in their place."""
MEANT = {
    **dict.fromkeys(("train", "finetune", "fine-tune", "fit", "lora"), "sft"),
    **dict.fromkeys(("pretrain", "cpt"), "pt"),
    **dict.fromkeys(("reward", "prm"), "rm"),
    **dict.fromkeys(("kto", "orpo", "simpo", "cpo"), "dpo"),
    **dict.fromkeys(("grpo", "ppo", "rloo", "rlhf"), "rl"),
    **dict.fromkeys(("eval", "test"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "generate"), "chat"),
    **dict.fromkeys(("deploy", "api"), "serve"),
    **dict.fromkeys(("quantize", "convert"), "export"),
    **dict.fromkeys(("webui", "web-ui", "ui"), "board"),
}
"""Subcommands of other tools, and what does the same here."""
IN_DOCSTRING = ("preview", "tokenize", "data", "export", "launch", "lineage", "report")
"""Subcommands whose help is their lines at the top of this file; the others have a page of their own."""
START = "hftune.tools.pipeline.starting:start"
"""Takes a stage, whose name is a subcommand as well, and the words behind it."""


def main() -> None:
    """Run the subcommand that the command line names."""
    quiet_libraries()  # before a tool imports any of them
    if sys.argv[1:2] != ["launch"]:  # behind it a script is typed
        os.environ[TYPED] = "1"
    run_tool(lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> None:
    """Run the subcommand that the first word names; the second is, for some, the script whose arguments follow.

    Raises:
        ArgumentError: No such subcommand or script.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(str(__doc__).replace("{stages}", "|".join(STAGES)))
        return
    if argv[0] in ("--version", "-V"):
        say(f"hftune {__version__}")
        return
    if stage := stage_of(argv[0]):
        on_demand(START)(stage, argv[1:])
        return
    for words in (argv[0], " ".join(argv[:2])):
        if words in REMOVED:
            raise ArgumentError(f"`hftune {words}` was removed", fix=REMOVED[words])
    if argv[0] not in COMMANDS:
        names, meant = [*STAGES, *COMMANDS], MEANT.get(argv[0])
        near = f"`hftune {meant}` does that;" if meant else did_you_mean(argv[0], names, written="`hftune {}`")
        fix = f"{near} one of: {', '.join(names)}".strip()
        # A word may be `--hub_token=X`: its value is not repeated.
        raise ArgumentError(f"there is no `hftune {argv[0].partition('=')[0]}`", fix=fix)
    if argv[0] in IN_DOCSTRING and argv[1:2] in (["-h"], ["--help"]):
        lines = str(__doc__).splitlines()
        say("\n".join(line for line in lines if line.startswith(f"hftune {argv[0]} ")))
        return
    command = COMMANDS[argv[0]]
    if command.first:
        _with_models(command, argv[1:])
    else:
        on_demand(command.run)(argv[1:])


def _with_models(command: Command, words: list[str]) -> None:
    """Run a subcommand that loads models: the environment is prepared before transformers is imported."""
    on_demand("hftune.distributed.launch:prepare_environment")()
    argv = [command.first, *words] if words and not words[0].startswith("-") else words
    arguments = on_demand("hftune.arguments.stages:parse_command")(on_demand(command.arguments), argv)
    on_demand(command.run)(arguments, argv)


def completion(argv: list[str]) -> None:
    """`hftune completion`, which is told what there is to complete."""
    on_demand("hftune.tools.completing.entry:completion")(
        argv, {name: each.arguments for name, each in COMMANDS.items()}
    )


if __name__ == "__main__":
    main()
