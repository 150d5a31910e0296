"""Files are parsed by `hftune.opening`; every other place that parses something is known, with its reason."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = [*sorted((ROOT / "hftune").rglob("*.py")), *sorted(ROOT.glob("run_*.py")), ROOT / "merge_peft_adapter.py"]
PARSERS = {
    *("torch.load", "json.load", "json.loads", "orjson.loads", "np.load", "numpy.load", "yaml.load", "yaml.safe_load"),
    *("safe_open", "safetensors.safe_open", "load_file", "safetensors.torch.load_file", "yaml.SafeLoader"),
    *("yaml.full_load", "yaml.unsafe_load", "yaml.Loader", "torch.jit.load", "joblib.load", "dill.load"),
}
SAFE = {"weights_only": "True", "allow_pickle": "False"}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
OWN_WORDS = "what a library of this process has just said"
DATA = "data readers, which have limits of their own"
ALLOWED: dict[tuple[str, str], str] = {
    ("opening/json_file.py", "json.loads"): "the one reader of JSON",
    ("opening/torch_file.py", "torch.load"): "the one reader of torch files",
    ("opening/torch_file.py", "pickle"): "the name of an error",
    ("models/loading/from_pretrained.py", "pickle"): "the name of an error",
    ("opening/safetensors_file.py", "safe_open"): "the one reader of safetensors",
    ("checkpoints/manifest.py", "json.loads"): OWN_WORDS,
    ("distributed/stacks.py", "json.loads"): OWN_WORDS,
    ("tools/export/llama_cpp.py", "json.loads"): "the answer of a process that was just started",
    ("tools/explaining/entry.py", "json.loads"): "texts of this version in the user's own cache",
    ("distributed/watchdog.py", "json.loads"): "messages of the run's own processes",
    ("opening/yaml_file.py", "yaml.SafeLoader"): "the one reader of YAML",
    ("opening/yaml_file.py", "yaml.load"): "by that loader",
    ("tools/pipeline/spec.py", "yaml.SafeLoader"): "the type of the bounded loader",
    ("digests.py", "json.loads"): "sealed values, which are compared with their digest, from a text with a limit",
    ("secrets.py", "json.loads"): "an argument's own text",
    ("tables.py", "json.loads"): "cells of tables of this package",
    ("data/columns.py", "json.loads"): "an argument's own text",
    ("data/encode_prompts.py", "json.loads"): "records that were written in this process",
    ("data/storage.py", "json.loads"): DATA,
}


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Of a file that names a parser, or says how one loads; of others nothing has to be parsed."""
    text = file.read_text(encoding="utf-8")
    named = any(word in text for word in PARSERS | MODULES | {*SAFE})
    return list(ast.walk(ast.parse(text))) if named else []


def used(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Parsers that a file names, as it names them."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node, name.split(".")[0]) for name in modules if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Attribute | ast.Name) and dotted(node) in PARSERS:
            yield node, dotted(node)


@functools.cache
def all_uses() -> dict[tuple[str, str], str]:
    """(file, parser) of all sources, with the place of the last use."""
    return {
        (str(file.relative_to(ROOT)).removeprefix("hftune/"), parser): f"{file}:{node.lineno}"  # type: ignore[attr-defined]
        for file in FILES
        for node, parser in used(nodes_of(file))
    }


def test_nobody_else_parses() -> None:
    others = [f"{place} uses {use[1]}: see hftune/opening" for use, place in all_uses().items() if use not in ALLOWED]
    assert others == []


def test_exceptions_are_needed() -> None:
    """A place that parses nothing any more may not keep its leave; one that moves brings its reason along."""
    assert not set(ALLOWED) - set(all_uses())


def test_what_is_loaded_is_no_program() -> None:
    programs = []
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and not loads_data(node):
                programs.append(f"{file}:{node.lineno}: {ast.unparse(node)}")
    assert programs == []


def loads_data(call: ast.Call) -> bool:
    """Whether a call asks no library to run what a file says, and says so where the library's default would."""
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    if any(ast.unparse(said[name]) != safe for name, safe in SAFE.items() if name in said):
        return False
    needed = {"torch.load": "weights_only", "np.load": "allow_pickle"}.get(dotted(call.func))
    return needed is None or needed in said


def dotted(node: ast.AST) -> str:
    """`np.load` of a name or of an attribute of a name; "" of anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{found}.{name}" if (found := dotted(owner)) else ""
    return ""


def test_programs_are_found() -> None:
    for text in ("torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)", "g(f, allow_pickle=True)"):
        (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        assert not loads_data(call), text
    assert [parser for _, parser in used(ast.walk(ast.parse("import pickle\nsafetensors.torch.load_file(f)")))] == [
        "pickle",
        "safetensors.torch.load_file",
    ]
