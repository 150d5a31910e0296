"""Turns a pipeline file into commands, in order: every stage, the merge after each adapter, evaluations, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hftune import child_processes
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, raise_together, shown
from hftune.secrets import learn_command, learn_variables
from hftune.tools.pipeline.gates import Gate, read_gates
from hftune.tools.pipeline.launcher import Launcher, read_launcher
from hftune.tools.pipeline.spec import ANSWERS, EVALUATE, SAMPLE, Block, Spec, StageSpec, noted
from hftune.tools.pipeline.values import Names, combinations, label

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

    def followed_by(
        self, name: str, script: str, folder: Path, arguments: dict[str, list[str]], places: dict[str, str]
    ) -> Step:
        """A step of the same stage that does something with its model, in one process: the launcher is the stage's."""
        return Step(name, self.stage, script, folder, arguments, places, self.place, env=self.env)

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
    sweep = [_Combination(spec, values) for values in combinations(spec.top["matrix"])]
    for combination in sweep:
        # Later stages may need one that has a problem: theirs would only repeat it.
        with noted(problems):
            for step in (step for stage in spec.stages for step in combination.steps(stage)):
                # Secrets that came from the environment are known only now; all messages below mask them.
                learn_variables(step.env)
                learn_command(step.command())
                # A stage that uses no value of the sweep has one folder in all combinations: it trains once.
                found.setdefault(step.folder, step)
    raise_together({problem.render(): problem for problem in problems}.values())
    asked = [_ask(spec, sweep)] if spec.top[ANSWERS] else []
    for step in asked:
        learn_command(step.argv)
    return [*found.values(), *asked]


def output_folder(spec: Spec) -> Path:
    """The folder of all stages, which has the lock and the logs; the same for all combinations."""
    return Path(_text(Names(spec.top["values"]).value(spec.top, "output_dir")))


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
class _Combination:
    """The stages of one combination of values, as far as their steps were asked for."""

    spec: Spec
    values: Block
    made: dict[str, _Made] = field(default_factory=dict)
    evaluated: dict[str, Step] = field(default_factory=dict)
    """Model to the step that evaluates it."""

    def steps(self, stage: StageSpec) -> Iterator[Step]:
        """The steps of the next stage."""
        names, top = self._names(), output_folder(self.spec)
        settings = names.of(stage.settings)
        arguments = self._arguments(stage, names, settings)
        parents = [self.made[name.removeprefix("stages.")] for name in names.used if name.startswith("stages.")]
        # Only now: `_arguments` looks up stages as well, and a folder's name depends on all of it.
        used = names.used.union(*(parent.used for parent in parents))
        folder = top / label(self.values, used) / stage.name
        # What the stage says itself wins over what the file says for all.
        general = names.of(self.spec.top.only("launcher", "merge", "env"))
        settings = general.having(settings).having({"env": general["env"].having(settings.block("env"))})
        step = Step(
            name=str(folder.relative_to(top)),
            stage=stage.name,
            script=stage.script,
            folder=folder,
            arguments={**_values(arguments), "output_dir": [str(folder)]},
            places=arguments.places,
            place=stage.place,
            launcher=read_launcher(settings.get("launcher"), settings.places.get("launcher", "")),
            env={name: _text(value) for name, value in settings["env"].items()},
            needs=tuple(dict.fromkeys(needed for parent in parents for needed in parent.steps)),
        )
        yield from self._evaluated_before(step)
        yield step
        adapter = any(name in arguments and not _means_no(arguments[name]) for name in _ADAPTER)
        merged = _merge(step, settings) if adapter and not _means_no(settings.get("merge", True)) else None
        yield from [merged] if merged else []
        model = _first(step, "model_name_or_path")
        base = next((parent.base for parent in parents if model in parent.results.values()), model)
        self.made[stage.name] = _made(step, merged, used, base, unmerged=adapter and merged is None)
        yield from self._evaluated_after(step, settings)

    def _arguments(self, stage: StageSpec, names: Names, settings: Block) -> Block:
        """What a stage is given: what all share, its own, and the model and the reward that stages before have made."""
        # What stages of training share means nothing to sampling.
        shared = Block() if stage.script == SAMPLE else self.spec.top["shared"]
        told = names.of(shared.having(stage.arguments))
        found = Block({name: value for name, value in told.items() if value is not None}, told.places)
        before = self._before(stage, settings)
        # What the stage says itself wins.
        if not {"model_name_or_path", "server_url"} & {*found}:
            found = self._start(stage, before, names).having(found)
        return self._reward(found, names).having(found) if stage.script in ("rl", SAMPLE) else found

    def _names(self) -> Names:
        top = self.spec.top
        values = top["values"].having(self.values)
        outer = top.only("model", "output_dir").having({"output_dir": str(output_folder(self.spec))})
        return Names(values.having(outer), {name: made.results for name, made in self.made.items()})

    def _before(self, stage: StageSpec, settings: Block) -> str | None:
        """The stage that this one builds on (`from`, else the latest that trained a language model); None: no stage."""
        models = [name for name, made in self.made.items() if made.start]
        if "from" not in settings:
            return models[-1] if models else None
        asked = settings["from"]
        if asked in (None, "model"):
            return None
        if str(asked) not in models:
            raise ArgumentError(
                f"stage {stage.name} cannot build on {shown(asked)}",
                place=settings.places["from"],
                fix=f"model, or a stage before it that trains a language model: {', '.join(models) or 'none'}",
            )
        return str(asked)

    def _start(self, stage: StageSpec, before: str | None, names: Names) -> Block:
        """The arguments of the model that a stage starts from: the result of `before`, else the pipeline's own."""
        if before is not None:
            names.used.add(f"stages.{before}")
            start = self.made[before].start
            # An adapter knows its base.
            start = {"model_name_or_path": [*start.values()][-1]} if stage.script == SAMPLE else start
            return Block(start, dict.fromkeys(start, stage.place))
        model = names.value(self.spec.top, "model")
        if model is None or model == []:
            raise ArgumentError(
                f"stage {stage.name} has no model to begin with",
                place=stage.place,
                fix="model: FOLDER_OR_HUB_NAME at the top of the file, or model_name_or_path in the stage",
            )
        return Block({"model_name_or_path": model}, {"model_name_or_path": self.spec.top.places["model"]})

    def _reward(self, arguments: Block, names: Names) -> Block:
        """The argument with the latest reward model; empty if the stage names a reward itself, or none was trained."""
        models = [name for name, made in self.made.items() if made.scores]
        if not models or {"reward_model_path", "reward_funcs", "reward_model"} & {*arguments}:
            return Block()
        names.used.add(f"stages.{models[-1]}")
        place = {"reward_model_path": str(self.spec.file)}
        return Block({"reward_model_path": self.made[models[-1]].results["model"]}, place)

    def _evaluated_before(self, step: Step) -> Iterator[Step]:
        """The step that evaluates what a stage starts from; none where that is done already."""
        started = _started_from(step)
        if not self.spec.top[EVALUATE] or step.script in ("rm", SAMPLE) or started in self.evaluated:
            return
        model = Names(self.spec.top["values"]).value(self.spec.top, "model")
        # All combinations share what they all begin with.
        common = model is not None and started == _text(model)
        folder, name = (output_folder(self.spec), "base") if common else (step.folder.parent, f"{step.stage}-base")
        yield self._evaluation(step, started, f"{EVALUATE} {name}", folder / f"{name}-evaluated")

    def _evaluated_after(self, step: Step, settings: Block) -> Iterator[Step]:
        """The step that evaluates what a stage has made, by the gates of the stage."""
        made = self.made[step.stage]
        if self.spec.top[EVALUATE] and made.start:
            folder = step.folder.with_name(f"{step.folder.name}-evaluated")
            before = self.evaluated[_started_from(step)]
            own = self._evaluation(step, made.results["model"], f"{EVALUATE} {step.name}", folder, before)
            gates = read_gates(settings.block("gate"), own.arguments.get("eval_tasks", []))
            yield replace(own, gates=gates, needs=(*made.steps, before.name))
        elif settings.get("gate"):
            fix = "evaluate: {validation_file_dir: DATA, eval_tasks: [loss]} in the file; language models are evaluated"
            raise ArgumentError(f"stage {step.stage} has a gate and is not evaluated", place=step.place, fix=fix)

    def _evaluation(self, step: Step, model: str, name: str, folder: Path, before: Step | None = None) -> Step:
        arguments = Names(self.spec.top["values"]).of(self.spec.top[EVALUATE])
        # Its own launcher, or one process: that of the stages would cost a small evaluation more than it saves.
        launcher = read_launcher(arguments.pop("launcher", None), arguments.places.get("launcher", ""))
        last = {**({"against": [str(before.folder)]} if before else {}), "output_dir": [str(folder)]}
        given = {"models": [model], **_carried(step), **_values(arguments), **last}
        own = step.followed_by(name, EVALUATE, folder, given, arguments.places)
        self.evaluated[model] = replace(own, launcher=launcher)
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


def _merge(step: Step, settings: Block) -> Step:
    """The step that merges a stage's adapter into its base."""
    asked = settings["merge"] if isinstance(settings.get("merge"), Block) else Block()
    folder = step.folder.with_name(f"{step.folder.name}-merged")
    first = {"peft_model_path": [str(step.folder)], "output_dir": [str(folder)], **_carried(step)}
    name = f"{step.name.removesuffix(step.stage)}merge {step.stage}"
    merge = step.followed_by(name, MERGE, folder, {**first, **_values(asked)}, asked.places)
    return replace(merge, needs=(step.name,))


def _ask(spec: Spec, sweep: list[_Combination]) -> Step:
    """The step that asks every language model the same questions, the bases first."""
    folder = output_folder(spec) / ANSWERS
    arguments = Names(spec.top["values"]).of(spec.top[ANSWERS])
    all_made = [made for combination in sweep for made in combination.made.values()]
    models = [made.base for made in all_made if made.start]
    models += [made.results["model"] for made in all_made if made.start]
    # Rewards of different models do not compare: a sweep over reward models gets none.
    latest = [
        [made.results["model"] for made in combination.made.values() if made.scores][-1:] for combination in sweep
    ]
    judges = {model for found in latest for model in found}
    last = {**({"reward_model_path": [*judges]} if len(judges) == 1 else {}), "output_dir": [str(folder)]}
    return Step(
        name=ANSWERS,
        stage=ANSWERS,
        script=ASK,
        folder=folder,
        arguments={"models": list(dict.fromkeys(models)), **_values(arguments), **last},
        places=arguments.places,
        place=spec.top.places[ANSWERS],
        needs=tuple(dict.fromkeys(name for made in all_made for name in made.steps)),
    )


def _started_from(step: Step) -> str:
    """The model that a stage starts from: its adapter, where it continues one."""
    return _first(step, "peft_path") or _first(step, "model_name_or_path")


def _first(step: Step, name: str) -> str:
    return (step.arguments.get(name) or [""])[0]


def _means_no(value: object) -> bool:
    return str(value).strip().lower() in _NO


def _values(arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """Arguments that have values, as texts: a list is several values, a mapping becomes JSON."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return {name: [*map(_flat, value if isinstance(value, list) else [value])] for name, value in given.items()}


def _flat(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _carried(step: Step) -> dict[str, list[str]]:
    """What a step after a stage is told as well."""
    return {name: values for name, values in step.arguments.items() if name == "trust_remote_code"}


def _text(value: object) -> str:
    return "" if value is None else str(value)
