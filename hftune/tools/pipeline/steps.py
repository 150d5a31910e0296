"""Turns a pipeline file into commands, in order: every stage, and the merge after each adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hftune.errors import ArgumentError, UserError, raise_together, shown
from hftune.secrets import learn_command, learn_variables
from hftune.tools.pipeline.gates import Gate, read_gates
from hftune.tools.pipeline.spec import ANSWERS, EVALUATE, SAMPLE, Positioned, Spec, StageSpec
from hftune.tools.pipeline.step import ASK, MERGE, Launcher, Step, read_launcher
from hftune.tools.pipeline.values import Combination, Names, combinations, secrets_in_names

_ADAPTER = ("use_peft", "qlora", "peft_path", "lora", "train_new_tokens_only")
_NO = ("false", "no", "0", "none", "off", "")


@dataclass
class _Results:
    """Results of the stages of one combination so far."""

    results: dict[str, dict[str, str]] = field(default_factory=dict)
    """Stage to its `output` and `model`; of `SAMPLE` to its `output` and `data`."""
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage to the names of its steps."""
    used: dict[str, set[str]] = field(default_factory=dict)
    """Stage to the names that it, or what it builds on, has looked up."""
    start: dict[str, dict[str, str]] = field(default_factory=dict)
    """Stage to the arguments with which the next one starts from it."""
    bases: dict[str, str] = field(default_factory=dict)
    evaluated: dict[str, Step] = field(default_factory=dict)
    """Model to the step that evaluates it."""

    @property
    def reward_models(self) -> list[str]:
        """Stages whose result scores: `_note` gives a start to all others that have a model."""
        return [name for name, result in self.results.items() if name not in self.start and "model" in result]


def steps_of(spec: Spec) -> list[Step]:
    """All steps of all combinations, each after those it needs; steps that combinations share appear once.

    Raises:
        ArgumentError: References, launchers, models and names of stages that do not fit, in one message.
    """
    problems: list[UserError] = []
    found: dict[Path, Step] = {}
    all_made: list[_Results] = []
    chosen = combinations(spec.matrix, problems)
    for combination in chosen:
        made = _Results()
        for stage in spec.stages:
            try:
                for step in _stage_steps(spec, stage, combination, made, problems):
                    # Secrets that came from the environment are known only now; all messages below mask them.
                    learn_variables(step.env)
                    learn_command(step.command())
                    # A stage that uses no value of the sweep has one folder in all combinations: it trains once.
                    found.setdefault(step.folder, step)
            except ArgumentError as problem:
                problems.append(problem)
                # Later stages may need this one: their problems would only repeat it.
                break
        all_made.append(made)
    problems += secrets_in_names(chosen)
    raise_together({problem.render(): problem for problem in problems}.values())
    asked = list(_ask(spec, all_made))
    for step in asked:
        learn_command(step.argv)
    return [*found.values(), *asked]


def output_folder(spec: Spec) -> Path:
    """The folder of all stages, which has the lock and the logs; the same for all combinations."""
    return Path(_text(Names(spec.values).resolve(spec.output_dir)))


def _stage_steps(
    spec: Spec, stage: StageSpec, combination: Combination, made: _Results, problems: list[UserError]
) -> Iterator[Step]:
    names = Names({**spec.values, **combination.values}, made.results)
    top = output_folder(spec)
    outer = {"output_dir": Positioned(str(top), spec.output_dir.place)}
    outer |= {"model": spec.model} if spec.model is not None else {}
    names.values = {**names.values, **outer}
    # What stages of training share means nothing to sampling.
    shared = {} if stage.script == SAMPLE else spec.shared
    arguments = {name: names.resolve(child) for name, child in {**shared, **stage.arguments}.items()}
    arguments = {name: child for name, child in arguments.items() if child.value is not None}
    settings = {name: names.resolve(child) for name, child in stage.settings.items()}
    env = {name: _text(names.resolve(child)) for name, child in {**spec.env, **_mapping(settings.get("env"))}.items()}
    before = _before(stage, settings, made)
    if not {"model_name_or_path", "server_url"} & {*arguments}:
        # What the stage says itself wins.
        start = _start(spec, stage, before, names, made)
        # An adapter knows its base.
        start = {"model_name_or_path": [*start.values()][-1]} if stage.script == SAMPLE else start
        arguments = {**start, **arguments}
    if stage.script in ("rl", SAMPLE):
        arguments = {**_reward(arguments, made, spec, names), **arguments}
    launcher = settings.get("launcher") or (names.resolve(spec.launcher) if spec.launcher else None)
    parents = [name.removeprefix("stages.") for name in names.used if name.startswith("stages.")]
    # Only now: `_start` and `_reward` look up stages as well, and a folder's name depends on all of it.
    used = names.used.union(*(made.used[parent] for parent in parents))
    label = combination.label(used)
    folder = top / label / stage.name
    prefix = f"{label}/" if label else ""
    step = Step(
        name=prefix + stage.name,
        stage=stage.name,
        script=stage.script,
        folder=folder,
        arguments={**_values(arguments), "output_dir": [str(folder)]},
        places=_places(arguments),
        place=stage.place,
        launcher=read_launcher(launcher, problems) if launcher else Launcher(),
        env=env,
        needs=tuple(dict.fromkeys(needed for parent in parents for needed in made.steps[parent])),
    )
    model = _model(step, arguments)
    made.bases[stage.name] = next((made.bases[p] for p in parents if model in made.results[p].values()), model)
    yield from _evaluated_before(spec, step, made, problems)
    yield step
    merge = settings.get("merge") or (names.resolve(spec.merge) if spec.merge else Positioned(True, stage.place))
    adapter = _trains_adapter(arguments)
    merged = _merge(step, merge, prefix) if adapter and not _means_no(merge) else None
    if merged is not None:
        yield merged
    made.used[stage.name] = used
    _note(made, step, merged, unmerged=adapter and merged is None)
    gates = read_gates(settings["gate"], _tasks(spec), problems) if "gate" in settings else ()
    yield from _evaluated_after(spec, step, made, gates, problems)


def _start(spec: Spec, stage: StageSpec, before: str | None, names: Names, made: _Results) -> dict[str, Positioned]:
    """The arguments of the model that a stage starts from: the result of `before`, else the pipeline's own."""
    if before is not None:
        names.used.add(f"stages.{before}")
        return {name: Positioned(value, stage.place) for name, value in made.start[before].items()}
    model = names.resolve(spec.model) if spec.model is not None else None
    if model is None or model.value is None:
        raise ArgumentError(
            f"stage {stage.name} has no model to begin with",
            place=stage.place,
            fix="model: FOLDER_OR_HUB_NAME at the top of the file, or model_name_or_path in the stage",
        )
    return {"model_name_or_path": model}


def _before(stage: StageSpec, settings: dict[str, Positioned], made: _Results) -> str | None:
    """The stage that this one builds on (`from`, else the latest that trained a language model); None: no stage."""
    asked = settings.get("from")
    if asked is None:
        return next((name for name in reversed(made.start)), None)
    if asked.value in (None, "model"):
        return None
    if str(asked.value) not in made.start:
        raise ArgumentError(
            f"stage {stage.name} cannot build on {shown(asked.plain)}",
            place=asked.place,
            fix=f"model, or a stage before it that trains a language model: {', '.join(made.start) or 'none'}",
        )
    return str(asked.value)


def _reward(arguments: dict[str, Positioned], made: _Results, spec: Spec, names: Names) -> dict[str, Positioned]:
    """The argument with the latest reward model; empty if the stage names a reward itself, or none was trained."""
    models = made.reward_models
    if not models or {"reward_model_path", "reward_funcs", "reward_model", "judge_url"} & {*arguments}:
        return {}
    names.used.add(f"stages.{models[-1]}")
    return {"reward_model_path": Positioned(made.results[models[-1]]["model"], str(spec.file))}


def _merge(step: Step, asked: Positioned, prefix: str) -> Step:
    """The step that merges a stage's adapter into its base."""
    folder = step.folder.with_name(f"{step.folder.name}-merged")
    first = {"peft_model_path": [str(step.folder)], "output_dir": [str(folder)], **_carried(step)}
    # The stage's launcher is not passed on: a merge runs in one process.
    return Step(
        name=f"{prefix}merge {step.stage}",
        stage=step.stage,
        script=MERGE,
        folder=folder,
        arguments={**first, **_values(_mapping(asked))},
        places=_places(_mapping(asked)),
        place=step.place,
        env=step.env,
        needs=(step.name,),
    )


def _ask(spec: Spec, all_made: list[_Results]) -> Iterator[Step]:
    """The step that asks every language model the same questions, the bases first; none without `answers:`."""
    if not spec.answers:
        return
    folder = output_folder(spec) / ANSWERS
    arguments = {name: Names(spec.values).resolve(child) for name, child in spec.answers.items()}
    talking = [(made, stage) for made in all_made for stage in made.start]
    models = [made.bases[stage] for made, stage in talking]
    models += [made.results[stage]["model"] for made, stage in talking]
    rewards = [[made.results[stage]["model"] for stage in made.reward_models] for made in all_made]
    # Rewards of different models do not compare: a sweep over reward models gets none.
    judges = {found[-1] for found in rewards if found}
    last = {**({"reward_model_path": [*judges]} if len(judges) == 1 else {}), "output_dir": [str(folder)]}
    yield Step(
        name=ANSWERS,
        stage=ANSWERS,
        script=ASK,
        folder=folder,
        arguments={"models": list(dict.fromkeys(models)), **_values(arguments), **last},
        places=_places(arguments),
        place=next(iter(spec.answers.values())).name_place,
        needs=tuple(dict.fromkeys(name for made in all_made for steps in made.steps.values() for name in steps)),
    )


def _evaluated_before(spec: Spec, step: Step, made: _Results, problems: list[UserError]) -> Iterator[Step]:
    """The step that evaluates what a stage starts from; none where that is done already."""
    started = _started_from(step)
    if not spec.evaluate or step.script in ("rm", SAMPLE) or started in made.evaluated:
        return
    common = spec.model is not None and started == _text(Names(spec.values).resolve(spec.model))
    # All combinations share what they all begin with.
    folder, name = (output_folder(spec), "base") if common else (step.folder.parent, f"{step.stage}-base")
    yield _evaluation(spec, step, made, problems, started, f"{EVALUATE} {name}", folder / f"{name}-evaluated")


def _evaluated_after(
    spec: Spec, step: Step, made: _Results, gates: tuple[Gate, ...], problems: list[UserError]
) -> Iterator[Step]:
    """The step that evaluates what a stage has made, by the gates of the stage."""
    if spec.evaluate and step.stage in made.start:
        model, folder = made.results[step.stage]["model"], step.folder.with_name(f"{step.folder.name}-evaluated")
        before = made.evaluated[_started_from(step)]
        own = _evaluation(spec, step, made, problems, model, f"{EVALUATE} {step.name}", folder, before)
        yield replace(own, gates=gates)
    elif gates:
        fix = "add evaluate: {validation_file_dir: DATA, eval_tasks: [loss]} to the file; language models are evaluated"
        problems.append(ArgumentError(f"stage {step.stage} has a gate and is not evaluated", place=step.place, fix=fix))


def _evaluation(
    spec: Spec,
    step: Step,
    made: _Results,
    problems: list[UserError],
    model: str,
    name: str,
    folder: Path,
    before: Step | None = None,
) -> Step:
    arguments = {name: Names(spec.values).resolve(child) for name, child in spec.evaluate.items()}
    # Its own launcher, or one process: that of the stages would cost a small evaluation more than it saves.
    launcher = arguments.pop("launcher", None)
    last = {**({"against": [str(before.folder)]} if before else {}), "output_dir": [str(folder)]}
    made.evaluated[model] = Step(
        name=name,
        stage=step.stage,
        script=EVALUATE,
        folder=folder,
        arguments={"models": [model], **_carried(step), **_values(arguments), **last},
        places=_places(arguments),
        place=step.place,
        launcher=read_launcher(launcher, problems) if launcher else Launcher(),
        env=step.env,
        needs=(*made.steps.get(step.stage, ()), *([before.name] if before else [])),
    )
    return made.evaluated[model]


def _started_from(step: Step) -> str:
    """The model that a stage starts from: its adapter, where it continues one."""
    return (step.arguments.get("peft_path") or step.arguments.get("model_name_or_path") or [""])[0]


def _tasks(spec: Spec) -> list[str]:
    """What is evaluated."""
    item = spec.evaluate.get("eval_tasks")
    return _values({"": Names(spec.values).resolve(item)}).get("", []) if item else []


def _note(made: _Results, step: Step, merged: Step | None, *, unmerged: bool) -> None:
    """Record what later stages may refer to."""
    model = str((merged or step).folder)
    made.results[step.stage] = {"output": str(step.folder), "model": model}
    if step.script == SAMPLE:
        made.results[step.stage] = {"output": str(step.folder), "data": str(step.folder / "data")}
    made.steps[step.stage] = (step.name, *([merged.name] if merged else []))
    if step.script in ("rm", SAMPLE):
        return
    # An adapter that is not merged is trained further as it is, on the base that it was trained on.
    base = step.arguments["model_name_or_path"][0]
    made.start[step.stage] = (
        {"model_name_or_path": base, "peft_path": model} if unmerged else {"model_name_or_path": model}
    )


def _trains_adapter(arguments: dict[str, Positioned]) -> bool:
    return any(name in arguments and not _means_no(arguments[name]) for name in _ADAPTER)


def _means_no(item: Positioned) -> bool:
    return str(item.plain).strip().lower() in _NO


def _model(step: Step, arguments: dict[str, Positioned]) -> str:
    """What a step begins with; empty where it names none."""
    found = step.arguments.get("model_name_or_path", [""])
    if not found:
        place = arguments["model_name_or_path"].place
        raise ArgumentError("an empty list is no model", place=place, fix="name a folder, or a model of the Hub")
    return found[0]


def _values(arguments: dict[str, Positioned]) -> dict[str, list[str]]:
    """Arguments that have values, as texts: a list is several values, a mapping becomes JSON."""
    plain = {name: child.plain for name, child in arguments.items() if child.value is not None}
    return {name: [*map(_flat, value)] if isinstance(value, list) else [_flat(value)] for name, value in plain.items()}


def _places(arguments: dict[str, Positioned]) -> dict[str, str]:
    return {name: child.name_place for name, child in arguments.items()}


def _carried(step: Step) -> dict[str, list[str]]:
    """What a step after a stage is told as well."""
    return {name: values for name, values in step.arguments.items() if name == "trust_remote_code"}


def _flat(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _mapping(item: Positioned | None) -> dict[str, Positioned]:
    return item.value if item is not None and isinstance(item.value, dict) else {}


def _text(item: Positioned) -> str:
    return "" if item.value is None else str(item.value)
