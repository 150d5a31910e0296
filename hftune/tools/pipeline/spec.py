"""Reads a pipeline file as values that know their lines: settings, and stages. References are not resolved yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hftune.arguments.raw_arguments import bad_name
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together, shown
from hftune.opening.yaml_file import UniqueNames, read_yaml_text, yaml_errors
from hftune.secrets import learn_config, learn_variables


@dataclass(frozen=True)
class Positioned:
    """A value and where it stands.

    Args:
        value: A text, number, bool or None; for a mapping a dict of name to `Positioned`, for a list a list of them.
        place: `file:line`, of its name if it has one.
    """

    value: Any
    place: str

    @property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {name: child.plain for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value

    def mapping(self, what: str) -> dict[str, Positioned]:
        """The value as a dict, empty where nothing stands.

        Raises:
            ArgumentError: It is something else.
        """
        if self.value is not None and not isinstance(self.value, dict):
            raise ArgumentError(f"{what} must hold names and values", place=self.place, fix="NAME: VALUE")
        return self.value or {}


@contextmanager
def noted(problems: list[UserError]) -> Iterator[None]:
    """Add the problem that ends the block to others, so that all are told together."""
    try:
        yield
    except UserError as problem:
        problems.append(problem)


def read_yaml(file: Path) -> Positioned:
    """The content of a file.

    Raises:
        ArgumentError: No such file, not YAML, a name twice in one mapping.
    """
    if not file.is_file():
        raise ArgumentError(f"there is no file {file}", fix="hftune pipeline run PIPELINE.yaml; see examples/pipelines")
    text = read_yaml_text(file)
    with yaml_errors(file):
        loader = UniqueNames(text)
        try:
            # Nodes and not loaded values: only nodes have lines. The type stubs of PyYAML leave these methods untyped.
            node = loader.get_single_node()
            return Positioned({}, f"{file}:1") if node is None else _positioned(loader, node, str(file))
        finally:
            loader.dispose()


def _positioned(loader: yaml.SafeLoader, node: yaml.Node, file: str, place: str = "") -> Positioned:
    place = place or f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        return Positioned([_positioned(loader, child, file) for child in node.value], place)
    if not isinstance(node, yaml.MappingNode):
        # Untyped in the stubs of PyYAML, as above.
        return Positioned(loader.construct_object(node), place)
    # Puts the names of `<<: *other` first.
    loader.flatten_mapping(node)
    found = {}
    for key, child in node.value:
        line = f"{file}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ArgumentError("a name must be a text", place=line, fix="NAME: VALUE")
        # Of a name that `<<` brings and the mapping has itself, the own one is last.
        found[str(key.value)] = _positioned(loader, child, file, line)
    return Positioned(found, place)


# Bytes. Linux takes 255; the rest is for what hftune appends (`-merged`, `.dry_run`, numbers).
LONGEST = 100
_PLAIN = re.compile(r"[^\W_]([\w.+=,-]*\w)?|_\w*")
"""Letters, digits and _ at both ends: no separators, no `..` on its own, nothing that a program takes for a flag."""


def check_name(name: str, place: str, what: str) -> None:
    """Check a name that becomes that of a folder.

    Args:
        what: What it names, "a stage".

    Raises:
        ArgumentError: No folder can be called so.
    """
    if not _PLAIN.fullmatch(name) or ".." in name or len(name.encode()) > LONGEST:
        cause = f"{shown(name) or 'nothing'} cannot be the name of a folder, and so not of {what}"
        raise ArgumentError(cause, place=place, fix=f"letters, digits, - _ . within, at most {LONGEST} bytes")


KEYS = {
    "model": "What the first stage begins with: a folder or a name of the Hub.",
    "output_dir": "Every stage trains into a folder of its name in it.",
    "values": "Values for ${NAME}.",
    "env": "Environment variables of every stage.",
    "launcher": "python, or one launcher with its options.",
    "shared": "Arguments of every stage.",
    "merge": "Whether adapters are merged after their stage, or arguments of the merge.",
    "matrix": "A sweep: lists of values.",
    "stages": "The stages in their order, each with its arguments.",
    "evaluate": "Arguments of `hftune evaluate`: what is measured of each stage's model and of what it started from.",
    "answers": "Arguments of `hftune ask`: what all models are asked at the end.",
}
"""Keys of a file, and what each says."""
OF_STAGE = ("script", "from", "merge", "launcher", "env", "gate")
"""Keys of a stage that are no arguments of its script."""
ANSWERS = "answers"
"""Key, and folder, of what all models are asked at the end."""
EVALUATE = "evaluate"
"""Key of what is measured of each stage's model, and the subcommand that measures it."""
SAMPLE = "sample"
"""The script of a stage that trains nothing: its result is data for those after it."""


@dataclass(frozen=True)
class StageSpec:
    """A stage as it was written.

    Args:
        name: Also the name of its folder.
        script: A stage of training, or `SAMPLE`.
        place: `file:line`.
        settings: Keys of `OF_STAGE`.
        arguments: Everything else, under the names of the script's arguments.
    """

    name: str
    script: str
    place: str
    settings: dict[str, Positioned]
    arguments: dict[str, Positioned]


@dataclass(frozen=True)
class Spec:
    """A pipeline as it was written."""

    file: Path
    model: Positioned | None
    output_dir: Positioned
    values: dict[str, Positioned] = field(default_factory=dict)
    env: dict[str, Positioned] = field(default_factory=dict)
    launcher: Positioned | None = None
    shared: dict[str, Positioned] = field(default_factory=dict)
    merge: Positioned | None = None
    matrix: Positioned | None = None
    evaluate: dict[str, Positioned] = field(default_factory=dict)
    answers: dict[str, Positioned] = field(default_factory=dict)
    stages: list[StageSpec] = field(default_factory=list)


def read_spec(file: str | Path) -> Spec:
    """Read a pipeline file.

    Raises:
        ArgumentError: What has another shape, in one message, each with its line.
    """
    file = Path(file)
    top = read_yaml(file)
    # Before any message quotes the file: secrets that are learnt here are masked in it.
    _learn(top.plain)
    found = top.mapping("a pipeline")
    listed = f"one of: {', '.join(KEYS)}; arguments of scripts go to shared"
    problems: list[UserError] = [
        ArgumentError(f"a pipeline has no {name}", place=child.place, fix=did_you_mean(name, KEYS) or listed)
        for name, child in found.items()
        if name not in KEYS
    ]
    problems += [
        ArgumentError(f"{name} is missing", place=str(file), fix=_FIXES[name]) for name in _FIXES if name not in found
    ]
    groups: dict[str, dict[str, Positioned]] = {}
    for name in ("values", "env", "shared", EVALUATE, ANSWERS, "stages"):
        with noted(problems):
            groups[name] = found[name].mapping(name) if name in found else {}
    stages = []
    for name, item in groups.pop("stages", {}).items():
        with noted(problems):
            stages.append(_stage(name, item))
    for name, given in (("shared", FOLDERS), (ANSWERS, OF_ANSWERS), (EVALUATE, OF_EVALUATION)):
        problems += _not_to_be_given(groups.get(name, {}), name, given)
    problems += [
        ArgumentError(f"{name} cannot be the name of a value", place=child.place, fix="choose another")
        for name, child in groups.get("values", {}).items()
        if name in ("model", "output_dir") or "." in name
    ]
    problems += [
        ArgumentError(f"a stage cannot be called {ANSWERS} here", place=stage.place, fix="choose another")
        for stage in stages
        if groups.get(ANSWERS) and stage.name == ANSWERS
    ]
    # References are resolved only in a sound file.
    raise_together(problems)
    optional = {name: found.get(name) for name in ("model", "launcher", "merge", "matrix")}
    return Spec(file, output_dir=found["output_dir"], stages=stages, **groups, **optional)  # type: ignore[arg-type]  # keys are literals


_FIXES = {
    "output_dir": "output_dir: outputs/NAME; every stage gets a folder in it",
    "stages": "stages: {sft: {train_file_dir: DATA}}; see examples/pipelines",
}


def _learn(plain: Any) -> None:
    """Remember the file's secrets before anything of it is quoted; what references stand for is learnt in `steps`."""
    learn_config(plain)
    stages = plain.get("stages") if isinstance(plain, dict) else None
    for block in (plain, *(stages.values() if isinstance(stages, dict) else ())):
        env = block.get("env") if isinstance(block, dict) else None
        if isinstance(env, dict):
            learn_variables({name: str(value) for name, value in env.items()})


def _stage(name: str, item: Positioned) -> StageSpec:
    found = item.mapping(f"stage {name}")
    settings = {key: child for key, child in found.items() if key in OF_STAGE}
    script = settings.get("script") or Positioned(name, item.place)
    text = str(script.value).removesuffix(".py").removeprefix("run_")
    if text not in (*STAGES, SAMPLE):
        scripts = f"one of: {', '.join((*STAGES, SAMPLE))}"
        fix = scripts if "script" in settings else f"script: SCRIPT in it, {scripts}"
        fix = f"{did_you_mean(text, (*STAGES, SAMPLE))} {fix}".strip()
        raise ArgumentError(f"stage {name} has no script", place=script.place, fix=fix)
    check_name(name, item.place, "a stage")
    # Scripts take both spellings; later checks compare one.
    arguments = {key.replace("-", "_"): child for key, child in found.items() if key not in OF_STAGE}
    raise_together(_not_to_be_given(arguments, f"stage {name}", FOLDERS))
    return StageSpec(name, text, item.place, settings, arguments)


FOLDERS = ("output_dir", "resume_from_checkpoint", "overwrite_output_dir")
OF_ANSWERS = ("models", "output_dir", "reward_model_path")
OF_EVALUATION = ("models", "against", "output_dir", "overwrite_output_dir")
"""Arguments that the pipeline gives itself: to stages, to what asks all models, and to evaluations."""


def _not_to_be_given(arguments: dict[str, Positioned], what: str, given: tuple[str, ...]) -> Iterator[UserError]:
    """Problems: arguments that the pipeline gives itself, and names with a value in them, as `{hub_token:X}` makes."""
    for name, child in arguments.items():
        yield from bad_name(name, child.place)
        if name in given:
            fix = "leave it out: the pipeline gives it itself"
            yield ArgumentError(f"{what} cannot set {name}", place=child.place, fix=fix)
