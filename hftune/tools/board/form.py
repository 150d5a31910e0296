"""The form of a new pipeline, made from the argument classes of its stages, and the file that it becomes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.secret_names import says_secret
from hftune.secrets import command_without_secrets, redacted
from hftune.tools.board.found import Found
from hftune.tools.board.layout import page
from hftune.tools.board.pipelines import Pipeline, content_of
from hftune.visible import html

Fields = Mapping[str, Sequence[str]]
LAUNCHERS = {"python": "", "deepspeed": "num_gpus", "torchrun": "nproc_per_node"}
"""And the option that says how many processes."""
_OFTEN = (
    *("train_file_dir", "dataset_name", "validation_file_dir", "max_train_samples", "max_length", "block_size"),
    *("max_prompt_length", "max_completion_length", "num_generations", "reward_funcs", "reward_model_path", "beta"),
    *("teacher_model_name_or_path", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "gradient_checkpointing", "use_peft", "qlora", "lora_r", "lora_alpha"),
    *("deepspeed", "bf16", "packing", "logging_steps", "save_steps", "eval_strategy", "seed"),
)
# Given by the pipeline itself, or of the command line alone.
_NOT_HERE = {
    *("help", "config", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "model_name_or_path"),
    *("local_rank",),
}


@dataclass(frozen=True)
class Field:
    """An argument of a stage.

    Args:
        group: The topic under which `--help` shows it.
        kind: "switch", "choice", "list" or "text".
        choices: Of a choice.
    """

    name: str
    group: str
    help: str
    kind: str
    choices: tuple[str, ...]
    default: str


@lru_cache(maxsize=len(STAGES))
def fields_of(stage: str) -> tuple[Field, ...]:
    """The arguments of a stage, in the order of its `--help`; those with secrets, which would stand in a file, are not
    among them."""
    # Here: the classes bring torch and TRL, for which the first page does not wait.
    from hftune.arguments.help_page import help_groups
    from hftune.arguments.stages import stage_parser

    parser = stage_parser(stage)
    groups = help_groups(parser.dataclass_types, parser._actions)
    return tuple(
        _field(action, title, action.dest in parser.switches)
        for title, actions in groups.items()
        for action in actions
        if action.dest not in _NOT_HERE and not says_secret(action.dest)
    )


def _field(action: argparse.Action, group: str, switch: bool) -> Field:
    choices = tuple(str(getattr(choice, "value", choice)) for choice in action.choices or ())
    kind = "choice" if choices else "switch" if switch else "list" if action.nargs in ("+", "*") else "text"
    default = (
        "" if action.default in (None, argparse.SUPPRESS) else str(getattr(action.default, "value", action.default))
    )
    text = " ".join((action.help or "").replace("%%", "%").split())
    return Field(action.dest, group, text, kind, choices, default)


# --- the page ---------------------------------------------------------------------------------------------------------


def new(found: Found, asked: Fields) -> str:
    """The form: the stages are chosen first, since each brings fields of its own."""
    before = _before(found, asked)
    chosen = [name for name in STAGES if name in {*asked.get("stage", []), *before}]
    top = _settings(found.pipelines.one(asked["from"][0])) if asked.get("from") else {}
    return _page(chosen, _form(found, top, chosen, before) if chosen else "", asked.get("from", []))


def again(found: Found, given: Fields, error: UserError) -> str:
    """The form as it was filled in, with what is wrong."""
    chosen = [name for name in STAGES if name in given.get("stage", [])]
    top = {name: _one(given, name) for name in ("name", "model", "launcher", "processes", "questions")}
    before: dict[str, dict[str, Any]] = {}
    for key in given:
        stage, _, name = key.partition(".")
        before.setdefault(stage, {})[name] = _one(given, key)
    wrong = f'<pre class="fault" role="alert">{html(error)}</pre>'
    return _page(chosen, wrong + (_form(found, top, chosen, before) if chosen else ""), [])


def _page(chosen: Sequence[str], below: str, origin: Sequence[str]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="stage" value="{name}"{" checked" if name in chosen else ""}> '
        f"{name} <small>({html(stage.task)})</small></label>"
        for name, stage in STAGES.items()
    )
    kept = "".join(f'<input type="hidden" name="from" value="{html(one)}">' for one in origin)
    choose = f'<form class="row">{boxes}{kept}<button>Choose these stages</button></form>'
    return page("new pipeline - hftune board", f"<h1>New pipeline</h1>{choose}{below}", live=False)


def _before(found: Found, asked: Fields) -> dict[str, dict[str, Any]]:
    """The stages of the pipeline that is to be changed, with their arguments."""
    if not asked.get("from"):
        return {}
    stages = content_of(found.pipelines.one(asked["from"][0]).file).get("stages")
    found_stages = stages if isinstance(stages, dict) else {}
    return {name: about for name, about in found_stages.items() if isinstance(about, dict)}


def _settings(pipeline: Pipeline) -> dict[str, str]:
    """What stands above the stages in a file of the form."""
    content = content_of(pipeline.file)
    launcher = content.get("launcher")
    kind, options = next(iter(launcher.items()), ("", {})) if isinstance(launcher, dict) else ("", {})
    asked = content.get("answers")
    questions = asked.get("questions") if isinstance(asked, dict) else None
    return {
        "name": pipeline.name,
        "model": str(content.get("model") or ""),
        "launcher": str(kind),
        "processes": str(next(iter(options.values()), "")) if isinstance(options, dict) else "",
        "questions": "\n".join(map(str, questions)) if isinstance(questions, list) else "",
    }


def _form(found: Found, top: Mapping[str, str], chosen: Sequence[str], before: Mapping[str, Mapping[str, Any]]) -> str:
    launchers = "".join(f"<option{_chosen(name, top.get('launcher', ''))}>{name}</option>" for name in LAUNCHERS)
    general = (
        '<fieldset><legend>Pipeline</legend><div class="fields">'
        f'<label>name<input name="name" required pattern="[A-Za-z0-9_][A-Za-z0-9_.\\-]*" maxlength="64" '
        f'value="{html(top.get("name", ""))}"><small>its runs go to {html(found.tops[0])}/NAME</small></label>'
        f'<label>model<input name="model" required value="{html(top.get("model", ""))}">'
        "<small>a folder, or a name of the Hub, with which the first stage begins</small></label>"
        f'<label>launcher<select name="launcher">{launchers}</select></label>'
        f'<label>processes<input name="processes" inputmode="numeric" value="{html(top.get("processes", ""))}">'
        "<small>for deepspeed and torchrun: on this machine, one a GPU</small></label>"
        f'<label>questions<textarea name="questions" rows="2">{html(top.get("questions", ""))}</textarea>'
        "<small>asked of all models at the end, one a line</small></label></div></fieldset>"
    )
    stages = "".join(_stage(name, before.get(name, {})) for name in chosen)
    return (
        f'<form method="post" action="new" autocomplete="off">{general}'
        '<p><input type="search" data-filter hidden placeholder="find an argument" aria-label="find an argument"></p>'
        f'{stages}<p class="row"><button class="first" name="then" value="run">Save and start</button>'
        '<button name="then" value="save">Save</button></p></form>'
    )


def _stage(stage: str, given: Mapping[str, Any]) -> str:
    known = {field.name: field for field in fields_of(stage)}
    often = [known[name] for name in _OFTEN if name in known]
    set_already = [field for field in known.values() if field.name in given and field not in often]
    groups: dict[str, list[Field]] = {}
    for field in known.values():
        if field not in often and field not in set_already:
            groups.setdefault(field.group, []).append(field)
    more = "".join(
        f'<details class="arguments"><summary>{html(title)} ({len(fields)})</summary>'
        f'<div class="fields">{"".join(_input(stage, field, given) for field in fields)}</div></details>'
        for title, fields in groups.items()
    )
    first = "".join(_input(stage, field, given) for field in [*often, *set_already])
    hidden = f'<input type="hidden" name="stage" value="{stage}">'
    return f'<fieldset><legend>{stage}</legend>{hidden}<div class="fields">{first}</div>{more}</fieldset>'


def _input(stage: str, field: Field, given: Mapping[str, Any]) -> str:
    name = html(f"{stage}.{field.name}")
    value = _written(given[field.name]) if field.name in given else ""
    if field.kind in ("switch", "choice"):
        choices = ("true", "false") if field.kind == "switch" else field.choices
        options = "".join(f"<option{_chosen(choice, value)}>{html(choice)}</option>" for choice in choices)
        left_out = f'<option value="">{html(f"left out ({field.default})" if field.default else "left out")}</option>'
        entry = f'<select name="{name}">{left_out}{options}</select>'
    else:
        entry = f'<input name="{name}" value="{html(value)}" placeholder="{html(field.default)}">'
    return f"<label>{html(field.name)}{entry}<small>{html(field.help)}</small></label>"


def _chosen(option: str, value: str) -> str:
    return " selected" if option == value else ""


def _written(value: Any) -> str:
    """A value of a file as the form has it."""
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- the file ---------------------------------------------------------------------------------------------------------


def save(found: Found, given: Fields) -> Pipeline:
    """Write what was filled in as a pipeline file.

    Raises:
        ArgumentError: Something is missing or unknown, in one message, or the file cannot be written.
    """
    problems: list[UserError] = []
    name, model, launcher = (_one(given, key) for key in ("name", "model", "launcher"))
    stages = [stage for stage in STAGES if stage in given.get("stage", [])]
    for key, text in (("name", name), ("model", model)):
        if not text:
            problems.append(ArgumentError(f"{key} is empty", place=key, fix="fill it in"))
    if not stages:
        problems.append(ArgumentError("no stage is chosen", place="stage", fix=f"one of: {', '.join(STAGES)}"))
    content: dict[str, Any] = {"model": model, "output_dir": str(found.tops[0] / name)}
    content |= dict(_launcher(launcher, _one(given, "processes"), problems))
    content["stages"] = {stage: dict(_arguments(stage, given, problems)) for stage in stages}
    questions = [line.strip() for line in _one(given, "questions").splitlines() if line.strip()]
    content |= {"answers": {"questions": questions}} if questions else {}
    words = [word for given_to in content["stages"].values() for word in _as_words(given_to)]
    if redacted(content) != content or command_without_secrets(words) != words:
        fix = "set a variable where `hftune board` is started (HF_TOKEN, for one), and leave it out here"
        problems.append(ArgumentError("a secret was filled in, which would stand in a file", place="the form", fix=fix))
    raise_together(problems)
    return found.pipelines.write(name, content)


def _as_words(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The arguments of a stage as its command line will have them."""
    for name, value in arguments.items():
        yield f"--{name}"
        yield from map(str, value if isinstance(value, list) else [value])


def _one(given: Fields, name: str) -> str:
    return next(iter(given.get(name, [])), "").strip()


def _launcher(kind: str, processes: str, problems: list[UserError]) -> Iterator[tuple[str, Any]]:
    if kind not in ("", *LAUNCHERS):
        problems.append(ArgumentError("unknown launcher", place="launcher", fix=f"one of: {', '.join(LAUNCHERS)}"))
    elif option := LAUNCHERS.get(kind):
        if processes and not (processes.isdecimal() and 1 <= int(processes) <= 4096):
            fix = "a whole number, or nothing for all devices"
            problems.append(ArgumentError(f"{processes!r} is not a number of processes", place="processes", fix=fix))
        yield "launcher", {kind: {option: int(processes)} if processes.isdecimal() else {}}


def _arguments(stage: str, given: Fields, problems: list[UserError]) -> Iterator[tuple[str, Any]]:
    known = {field.name: field for field in fields_of(stage)}
    for key in given:
        of, dot, name = key.partition(".")
        if not dot or of != stage:
            continue
        text = _one(given, key)
        if name not in known:
            fix = "fill in the form anew"
            problems.append(ArgumentError(f"{stage} has no argument {name[:80]!r}", place=stage, fix=fix))
        elif text:
            try:
                yield name, [*map(_plain, shlex.split(text))] if known[name].kind == "list" else _plain(text)
            except ValueError:
                problems.append(ArgumentError(f"{name} has a quote that does not close", place=name, fix="close it"))


def _plain(text: str) -> Any:
    """A text as YAML writes it best: numbers and truth without quotes, where that is the very same text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return text
