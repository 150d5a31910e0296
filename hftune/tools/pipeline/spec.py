"""Reads a pipeline file as mappings that know their lines: settings, and stages. References are not resolved yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hftune.arguments.raw_arguments import bad_name
from hftune.arguments.stage_table import STAGES
from hftune.errors import ArgumentError, UserError, did_you_mean, raise_together, shown
from hftune.opening.yaml_file import UniqueNames, read_yaml_text, yaml_errors
from hftune.secrets import learn_config, learn_variables


class Block(dict[str, Any]):
    """A mapping of a file, whose names know where they stand.

    Args:
        values: Name to a text, number, bool, None or list, or to another block.
        places: Name to `file:line`.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, places: Mapping[str, str] | None = None) -> None:
        super().__init__(values or {})
        self.places = dict(places or {})

    def block(self, name: str) -> Block:
        """The mapping behind a name, empty where nothing stands.

        Raises:
            ArgumentError: It is something else.
        """
        value = self.get(name)
        if value is not None and not isinstance(value, Block):
            cause = f"{shown(name)} must hold names and values"
            raise ArgumentError(cause, place=self.places.get(name), fix="NAME: VALUE")
        return value or Block()

    def only(self, *names: str) -> Block:
        """A block of those of its names that it has among some."""
        places = {name: place for name, place in self.places.items() if name in names}
        return Block({name: self[name] for name in names if name in self}, places)

    def having(self, values: Mapping[str, Any]) -> Block:
        """A block with further values, or others; those of a block bring their places."""
        places = values.places if isinstance(values, Block) else {}
        return Block({**self, **values}, {**self.places, **places})


@contextmanager
def noted(problems: list[UserError]) -> Iterator[None]:
    """Add the problem that ends the block to others, so that all are told together."""
    try:
        yield
    except UserError as problem:
        problems.append(problem)


def read_yaml(file: Path) -> Any:
    """The content of a file, mappings as blocks.

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
            return Block() if node is None else _read(loader, node, str(file))
        finally:
            loader.dispose()


def _read(loader: yaml.SafeLoader, node: yaml.Node, file: str) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_read(loader, child, file) for child in node.value]
    if not isinstance(node, yaml.MappingNode):
        # Untyped in the stubs of PyYAML, as above.
        return loader.construct_object(node)
    # Puts the names of `<<: *other` first.
    loader.flatten_mapping(node)
    found = Block()
    for key, child in node.value:
        place = f"{file}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ArgumentError("a name must be a text", place=place, fix="NAME: VALUE")
        # Of a name that `<<` brings and the mapping has itself, the own one is last.
        found[str(key.value)], found.places[str(key.value)] = _read(loader, child, file), place
    return found


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
FOLDERS = ("output_dir", "resume_from_checkpoint", "overwrite_output_dir")
GIVEN = {
    "shared": FOLDERS,
    ANSWERS: ("models", "output_dir", "reward_model_path"),
    EVALUATE: ("models", "against", "output_dir", "overwrite_output_dir"),
}
"""Arguments that the pipeline gives itself: to stages, to what asks all models, and to evaluations."""


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
    settings: Block
    arguments: Block


@dataclass(frozen=True)
class Spec:
    """A pipeline as it was written.

    Args:
        top: Values of `KEYS`; what holds names and values is a block of its own, be it empty.
    """

    file: Path
    top: Block
    stages: list[StageSpec]


def read_spec(file: str | Path) -> Spec:
    """Read a pipeline file.

    Raises:
        ArgumentError: What has another shape, in one message, each with its line.
    """
    file = Path(file)
    content = read_yaml(file)
    # Before any message quotes the file: secrets that are learnt here are masked in it.
    _learn(content)
    top = Block({"a pipeline": content}, {"a pipeline": f"{file}:1"}).block("a pipeline")
    problems = [*_wrong_keys(top, file)]
    stages: list[StageSpec] = []
    groups = Block()
    for name in ("values", "env", "shared", "matrix", EVALUATE, ANSWERS, "stages"):
        with noted(problems):
            groups[name] = top.block(name)
    for name in groups.get("stages", ()):
        with noted(problems):
            stages.append(_stage(groups["stages"], name))
    for name, given in GIVEN.items():
        problems += _not_to_be_given(groups.get(name, Block()), name, given)
    for name in groups.get("values", ()):
        if name in ("model", "output_dir") or "." in name:
            place = groups["values"].places[name]
            problems.append(ArgumentError(f"{name} cannot be the name of a value", place=place, fix="choose another"))
    if groups.get(ANSWERS) and ANSWERS in groups.get("stages", ()):
        place = groups["stages"].places[ANSWERS]
        problems.append(ArgumentError(f"a stage cannot be called {ANSWERS} here", place=place, fix="choose another"))
    # References are resolved only in a sound file.
    raise_together(problems)
    return Spec(file, top.having(groups), stages)


def _wrong_keys(top: Block, file: Path) -> Iterator[UserError]:
    listed = f"one of: {', '.join(KEYS)}; arguments of scripts go to shared"
    for name in top:
        if name not in KEYS:
            fix = did_you_mean(name, KEYS) or listed
            yield ArgumentError(f"a pipeline has no {name}", place=top.places[name], fix=fix)
    for name, form in (("output_dir", "output_dir: outputs/NAME"), ("stages", "stages: {sft: {train_file_dir: DATA}}")):
        if name not in top:
            yield ArgumentError(f"{name} is missing", place=str(file), fix=f"{form}; see examples/pipelines")


def _learn(content: Any) -> None:
    """Remember the file's secrets before anything of it is quoted; what references stand for is learnt in `steps`."""
    learn_config(content)
    stages = content.get("stages") if isinstance(content, Block) else None
    for block in (content, *(stages.values() if isinstance(stages, Block) else ())):
        env = block.get("env") if isinstance(block, Block) else None
        if isinstance(env, Block):
            learn_variables({name: str(value) for name, value in env.items()})


def _stage(stages: Block, name: str) -> StageSpec:
    place, found = stages.places[name], stages.block(name)
    script, named = (found["script"], found.places["script"]) if found.get("script") else (name, place)
    text = str(script).removesuffix(".py").removeprefix("run_")
    if text not in (*STAGES, SAMPLE):
        scripts = f"one of: {', '.join((*STAGES, SAMPLE))}"
        fix = scripts if "script" in found else f"script: SCRIPT in it, {scripts}"
        fix = f"{did_you_mean(text, (*STAGES, SAMPLE))} {fix}".strip()
        raise ArgumentError(f"stage {name} has no script", place=named, fix=fix)
    check_name(name, place, "a stage")
    # Scripts take both spellings; later checks compare one.
    written = {key.replace("-", "_"): key for key in found if key not in OF_STAGE}
    places = {name: found.places[key] for name, key in written.items()}
    arguments = Block({name: found[key] for name, key in written.items()}, places)
    raise_together(_not_to_be_given(arguments, f"stage {name}", FOLDERS))
    return StageSpec(name, text, place, found.only(*OF_STAGE), arguments)


def _not_to_be_given(arguments: Block, what: str, given: tuple[str, ...]) -> Iterator[UserError]:
    """Problems: arguments that the pipeline gives itself, and names with a value in them, as `{hub_token:X}` makes."""
    for name in arguments:
        yield from bad_name(name, arguments.places[name])
        if name in given:
            fix = "leave it out: the pipeline gives it itself"
            yield ArgumentError(f"{what} cannot set {name}", place=arguments.places[name], fix=fix)
