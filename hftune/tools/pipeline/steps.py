"""Turns a pipeline file into commands, in order: every stage, the merge after each adapter, evaluations, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hftune import child_processes
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, raise_together, shown
from hftune.secrets import learn_command, learn_variables
from hftune.tools.pipeline.gates import Gate, read_gates
from hftune.tools.pipeline.launcher import Launcher, read_launcher
from hftune.tools.pipeline.spec import ANSWERS, EVALUATE, SAMPLE, Positioned, Spec, StageSpec, noted
from hftune.tools.pipeline.values import Combination, Names, combinations, label

MERGE, ASK = "merge", "ask"
"""Scripts of steps that train nothing, with `EVALUATE` and `SAMPLE`."""
COMMANDS = {
    ASK: "hftune.arguments.asking:AskArguments",
    EVALUATE: "hftune.arguments.asking:EvaluateArguments",
    SAMPLE: "hftune.arguments.asking:SampleArguments",
}
"""Subcommands of hftune that are steps, and the classes of their arguments."""
HUB_TOKENS = ("hub_token", "push_to_hub_token", "hf_hub_token")
"""Arguments of scripts that take the Hub's token, which is found in HF_TOKEN as well."""

_ADAPTER = ("use_peft", "qlora", "peft_path", "lora", "train_new_tokens_only")
_NO = ("false", "no", "0", "none", "off", "")


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: `sft`, `merge sft`, `lr=1e-4/sft`.
        stage: Name of the stage in the file.
        script: "pt", "sft", "rm", "dpo", "rl", `MERGE`, or one of `COMMANDS`.
        folder: Its output folder.
        arguments: Name to values, as the script is given them; `output_dir` is one of them.
        places: Name to `file:line`.
        place: `file:line` of the stage.
        env: Environment variables in addition to the runner's own.
        needs: Names of the steps whose results it reads.
        gates: Of an evaluation: what it must come to, or the pipeline stops.
    """

    name: str
    stage: str
    script: str
    folder: Path
    arguments: dict[str, list[str]]
    places: dict[str, str]
    place: str
    launcher: Launcher = field(default_factory=Launcher)
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it is a stage of training."""
        return self.script in STAGES

    @property
    def argv(self) -> list[str]:
        """The arguments as words of a command line."""
        return [token for name, values in self.arguments.items() for token in (f"--{name}", *values)]

    def command(self, *more: str) -> list[str]:
        """The whole command; `more` follows the arguments."""
        if self.script in COMMANDS:
            words = [self.script, *self.argv, *more]
            alone = self.launcher.kind == "python"
            return ["hftune", *words] if alone else self.launcher.wrap_module("hftune.cli", words)
        name = "merge_peft_adapter.py" if self.script == MERGE else f"run_{self.script}.py"
        return self.launcher.wrap(_own(name), [*self.argv, *more])

    def with_quiet_token(self) -> Step:
        """The step with the Hub's token in HF_TOKEN instead of on its command line."""
        # The last one counts, as on a command line.
        tokens = [values[-1] for name, values in self.arguments.items() if name in HUB_TOKENS and values]
        arguments = {name: values for name, values in self.arguments.items() if name not in HUB_TOKENS}
        return replace(self, arguments=arguments, env={**self.env, "HF_TOKEN": tokens[-1]}) if tokens else self


def _own(name: str) -> str:
    """The path of one of hftune's scripts: never a file of that name in the working folder."""
    path = child_processes.script(name)
    if not Path(path).is_file():
        fix = "install hftune again: pip install --force-reinstall --no-deps hftune, or pip install -e FOLDER"
        raise ArgumentError(f"{name} is not there, so that no stage can be started", place=path, fix=fix)
    return path


def steps_of(spec: Spec) -> list[Step]:
    """All steps of all combinations, each after those it needs; steps that combinations share appear once.

    Raises:
        ArgumentError: References, launchers, models and names of stages that do not fit, in one message.
    """
    problems: list[UserError] = []
    found: dict[Path, Step] = {}
    roads = [_Road(spec, values) for values in combinations(spec.matrix)]
    for road in roads:
        # Later stages may need one that has a problem: theirs would only repeat it.
        with noted(problems):
            for step in (step for stage in spec.stages for step in road.steps(stage)):
                # Secrets that came from the environment are known only now; all messages below mask them.
                learn_variables(step.env)
                learn_command(step.command())
                # A stage that uses no value of the sweep has one folder in all combinations: it trains once.
                found.setdefault(step.folder, step)
    raise_together({problem.render(): problem for problem in problems}.values())
    asked = [_ask(spec, roads)] if spec.answers else []
    for step in asked:
        learn_command(step.argv)
    return [*found.values(), *asked]


def output_folder(spec: Spec) -> Path:
    """The folder of all stages, which has the lock and the logs; the same for all combinations."""
    return Path(_text(Names(spec.values).resolve(spec.output_dir)))


@dataclass(frozen=True)
class _Made:
    """What a stage has come to.

    Args:
        steps: Names of its steps.
        results: What `${stages.NAME...}` may say of it: `output` and `model`; where it samples, `output` and `data`.
        used: Names that it, or what it builds on, has looked up.
        start: Arguments with which the next stage starts from it; empty if it made no language model.
        base: The model with which its first stage began.
    """

    steps: tuple[str, ...]
    results: dict[str, str]
    used: set[str]
    start: dict[str, str]
    base: str

    @property
    def scores(self) -> bool:
        """Whether it is a reward model."""
        return not self.start and "model" in self.results


@dataclass
class _Road:
    """The stages of one combination of values, as far as their steps were asked for."""

    spec: Spec
    values: Combination
    made: dict[str, _Made] = field(default_factory=dict)
    evaluated: dict[str, Step] = field(default_factory=dict)
    """Model to the step that evaluates it."""

    def steps(self, stage: StageSpec) -> Iterator[Step]:
        """The steps of the next stage."""
        spec, names, top = self.spec, self._names(), output_folder(self.spec)
        settings = {name: names.resolve(child) for name, child in stage.settings.items()}
        arguments = self._arguments(stage, names, settings.get("from"))
        parents = [self.made[name.removeprefix("stages.")] for name in names.used if name.startswith("stages.")]
        # Only now: `_arguments` looks up stages as well, and a folder's name depends on all of it.
        used = names.used.union(*(parent.used for parent in parents))
        folder = top / label(self.values, used) / stage.name
        env = {**spec.env, **_mapping(settings.get("env"))}
        step = Step(
            name=str(folder.relative_to(top)),
            stage=stage.name,
            script=stage.script,
            folder=folder,
            arguments={**_values(arguments), "output_dir": [str(folder)]},
            places=_places(arguments),
            place=stage.place,
            launcher=read_launcher(settings.get("launcher") or _resolved(spec.launcher, names)),
            env={name: _text(names.resolve(child)) for name, child in env.items()},
            needs=tuple(dict.fromkeys(needed for parent in parents for needed in parent.steps)),
        )
        yield from self._evaluated_before(step)
        yield step
        merged = None
        if _trains_adapter(arguments):
            asked = settings.get("merge") or _resolved(spec.merge, names)
            merged = None if asked is not None and _means_no(asked) else _merge(step, asked)
            yield from [merged] if merged else []
        model = _first(step, "model_name_or_path")
        base = next((parent.base for parent in parents if model in parent.results.values()), model)
        self.made[stage.name] = _made(step, merged, used, base, unmerged=_trains_adapter(arguments) and merged is None)
        yield from self._evaluated_after(step, settings.get("gate"))

    def _arguments(self, stage: StageSpec, names: Names, asked: Positioned | None) -> dict[str, Positioned]:
        """What a stage is given: what all share, its own, and the model and the reward that stages before have made."""
        # What stages of training share means nothing to sampling.
        shared = {} if stage.script == SAMPLE else self.spec.shared
        found = {name: names.resolve(child) for name, child in {**shared, **stage.arguments}.items()}
        found = {name: child for name, child in found.items() if child.value is not None}
        before = self._before(stage, asked)
        # What the stage says itself wins.
        if not {"model_name_or_path", "server_url"} & {*found}:
            found = {**self._start(stage, before, names), **found}
        return {**self._reward(found, names), **found} if stage.script in ("rl", SAMPLE) else found

    def _names(self) -> Names:
        spec = self.spec
        outer = {"output_dir": Positioned(str(output_folder(spec)), spec.output_dir.place)}
        outer |= {"model": spec.model} if spec.model is not None else {}
        return Names({**spec.values, **self.values, **outer}, {name: made.results for name, made in self.made.items()})

    def _before(self, stage: StageSpec, asked: Positioned | None) -> str | None:
        """The stage that this one builds on (`from`, else the latest that trained a language model); None: no stage."""
        models = [name for name, made in self.made.items() if made.start]
        if asked is None:
            return models[-1] if models else None
        if asked.value in (None, "model"):
            return None
        if str(asked.value) not in models:
            raise ArgumentError(
                f"stage {stage.name} cannot build on {shown(asked.plain)}",
                place=asked.place,
                fix=f"model, or a stage before it that trains a language model: {', '.join(models) or 'none'}",
            )
        return str(asked.value)

    def _start(self, stage: StageSpec, before: str | None, names: Names) -> dict[str, Positioned]:
        """The arguments of the model that a stage starts from: the result of `before`, else the pipeline's own."""
        if before is not None:
            names.used.add(f"stages.{before}")
            start = {name: Positioned(value, stage.place) for name, value in self.made[before].start.items()}
            # An adapter knows its base.
            return {"model_name_or_path": [*start.values()][-1]} if stage.script == SAMPLE else start
        model = _resolved(self.spec.model, names)
        if model is None or model.value is None or model.value == []:
            raise ArgumentError(
                f"stage {stage.name} has no model to begin with",
                place=stage.place,
                fix="model: FOLDER_OR_HUB_NAME at the top of the file, or model_name_or_path in the stage",
            )
        return {"model_name_or_path": model}

    def _reward(self, arguments: Mapping[str, Positioned], names: Names) -> dict[str, Positioned]:
        """The argument with the latest reward model; empty if the stage names a reward itself, or none was trained."""
        models = [name for name, made in self.made.items() if made.scores]
        if not models or {"reward_model_path", "reward_funcs", "reward_model"} & {*arguments}:
            return {}
        names.used.add(f"stages.{models[-1]}")
        return {"reward_model_path": Positioned(self.made[models[-1]].results["model"], str(self.spec.file))}

    def _evaluated_before(self, step: Step) -> Iterator[Step]:
        """The step that evaluates what a stage starts from; none where that is done already."""
        started = _started_from(step)
        if not self.spec.evaluate or step.script in ("rm", SAMPLE) or started in self.evaluated:
            return
        model = _resolved(self.spec.model, Names(self.spec.values))
        common = model is not None and started == _text(model)
        # All combinations share what they all begin with.
        folder, name = (output_folder(self.spec), "base") if common else (step.folder.parent, f"{step.stage}-base")
        yield self._evaluation(step, started, f"{EVALUATE} {name}", folder / f"{name}-evaluated")

    def _evaluated_after(self, step: Step, gate: Positioned | None) -> Iterator[Step]:
        """The step that evaluates what a stage has made, by the gates of the stage."""
        made = self.made[step.stage]
        if self.spec.evaluate and made.start:
            tasks = _values(self._of_evaluation()).get("eval_tasks", [])
            gates = read_gates(gate, tasks) if gate is not None else ()
            folder = step.folder.with_name(f"{step.folder.name}-evaluated")
            before = self.evaluated[_started_from(step)]
            own = self._evaluation(step, made.results["model"], f"{EVALUATE} {step.name}", folder, before)
            yield replace(own, gates=gates, needs=(*made.steps, before.name))
        elif gate is not None and gate.value:
            fix = "evaluate: {validation_file_dir: DATA, eval_tasks: [loss]} in the file; language models are evaluated"
            raise ArgumentError(f"stage {step.stage} has a gate and is not evaluated", place=step.place, fix=fix)

    def _of_evaluation(self) -> dict[str, Positioned]:
        return {name: Names(self.spec.values).resolve(child) for name, child in self.spec.evaluate.items()}

    def _evaluation(self, step: Step, model: str, name: str, folder: Path, before: Step | None = None) -> Step:
        arguments = self._of_evaluation()
        # Its own launcher, or one process: that of the stages would cost a small evaluation more than it saves.
        launcher = read_launcher(arguments.pop("launcher", None))
        last = {**({"against": [str(before.folder)]} if before else {}), "output_dir": [str(folder)]}
        self.evaluated[model] = Step(
            name=name,
            stage=step.stage,
            script=EVALUATE,
            folder=folder,
            arguments={"models": [model], **_carried(step), **_values(arguments), **last},
            places=_places(arguments),
            place=step.place,
            launcher=launcher,
            env=step.env,
        )
        return self.evaluated[model]


def _made(step: Step, merged: Step | None, used: set[str], base: str, *, unmerged: bool) -> _Made:
    """What later stages may know of one."""
    model, names = str((merged or step).folder), (step.name, *([merged.name] if merged else []))
    if step.script == SAMPLE:
        return _Made(names, {"output": str(step.folder), "data": str(step.folder / "data")}, used, {}, base)
    start = {"model_name_or_path": model}
    if unmerged:
        # It is trained further as it is, on the base that it was trained on.
        start = {"model_name_or_path": _first(step, "model_name_or_path"), "peft_path": model}
    results = {"output": str(step.folder), "model": model}
    return _Made(names, results, used, {} if step.script == "rm" else start, base)


def _merge(step: Step, asked: Positioned | None) -> Step:
    """The step that merges a stage's adapter into its base."""
    folder = step.folder.with_name(f"{step.folder.name}-merged")
    first = {"peft_model_path": [str(step.folder)], "output_dir": [str(folder)], **_carried(step)}
    above = step.name.removesuffix(step.stage)
    # The stage's launcher is not passed on: a merge runs in one process.
    return Step(
        name=f"{above}merge {step.stage}",
        stage=step.stage,
        script=MERGE,
        folder=folder,
        arguments={**first, **_values(_mapping(asked))},
        places=_places(_mapping(asked)),
        place=step.place,
        env=step.env,
        needs=(step.name,),
    )


def _ask(spec: Spec, roads: list[_Road]) -> Step:
    """The step that asks every language model the same questions, the bases first."""
    folder = output_folder(spec) / ANSWERS
    arguments = {name: Names(spec.values).resolve(child) for name, child in spec.answers.items()}
    all_made = [made for road in roads for made in road.made.values()]
    models = [made.base for made in all_made if made.start]
    models += [made.results["model"] for made in all_made if made.start]
    # Rewards of different models do not compare: a sweep over reward models gets none.
    latest = [[made.results["model"] for made in road.made.values() if made.scores][-1:] for road in roads]
    judges = {model for found in latest for model in found}
    last = {**({"reward_model_path": [*judges]} if len(judges) == 1 else {}), "output_dir": [str(folder)]}
    return Step(
        name=ANSWERS,
        stage=ANSWERS,
        script=ASK,
        folder=folder,
        arguments={"models": list(dict.fromkeys(models)), **_values(arguments), **last},
        places=_places(arguments),
        place=next(iter(spec.answers.values())).place,
        needs=tuple(dict.fromkeys(name for made in all_made for name in made.steps)),
    )


def _started_from(step: Step) -> str:
    """The model that a stage starts from: its adapter, where it continues one."""
    return _first(step, "peft_path") or _first(step, "model_name_or_path")


def _first(step: Step, name: str) -> str:
    return (step.arguments.get(name) or [""])[0]


def _trains_adapter(arguments: Mapping[str, Positioned]) -> bool:
    return any(name in arguments and not _means_no(arguments[name]) for name in _ADAPTER)


def _means_no(item: Positioned) -> bool:
    return str(item.plain).strip().lower() in _NO


def _resolved(item: Positioned | None, names: Names) -> Positioned | None:
    return None if item is None else names.resolve(item)


def _values(arguments: Mapping[str, Positioned]) -> dict[str, list[str]]:
    """Arguments that have values, as texts: a list is several values, a mapping becomes JSON."""
    plain = {name: child.plain for name, child in arguments.items() if child.value is not None}
    return {name: [*map(_flat, value)] if isinstance(value, list) else [_flat(value)] for name, value in plain.items()}


def _flat(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _places(arguments: Mapping[str, Positioned]) -> dict[str, str]:
    return {name: child.place for name, child in arguments.items()}


def _carried(step: Step) -> dict[str, list[str]]:
    """What a step after a stage is told as well."""
    return {name: values for name, values in step.arguments.items() if name == "trust_remote_code"}


def _mapping(item: Positioned | None) -> dict[str, Positioned]:
    return item.value if item is not None and isinstance(item.value, dict) else {}


def _text(item: Positioned) -> str:
    return "" if item.value is None else str(item.value)
