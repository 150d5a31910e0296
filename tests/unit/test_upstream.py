"""Only `hftune/compat` replaces something in another library, and every private name that is used is on its lists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from hftune.compat.symbols import listed

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    *("accelerate", "bitsandbytes", "datasets", "deepspeed", "evaluate", "huggingface_hub", "jinja2", "liger_kernel"),
    *("peft", "tokenizers", "torch", "torchao", "transformers", "trl", "vllm", "yaml"),
}
UNDOCUMENTED = re.compile(
    r"""accelerate\.utils\.(imports|other)
    |   datasets\.features\.features
    |   deepspeed\.(git_version_info|module_inject|ops|runtime\.(?!zero\.config\.)|utils\.groups)
    |   peft\.(mapping|tuners\.(lora|trainable_tokens)\.layer|utils\.\w+\.)
    |   transformers\.(conversion_mapping|core_model_loading|dynamic_module_utils|initialization|integrations\.\w+\.)
    |   transformers\.(masking_utils|modeling_layers|models\.auto\.modeling_auto|optimization|pytorch_utils)
    |   transformers\.(quantizers\.\w+\.|trainer\b|utils\.(chat_template_utils|output_capturing))
    |   trl\.(models|trainer)\.\w+\.
    |   [\w.]*\b_[a-z]""",
    re.VERBOSE,
)
"""Modules of which the libraries' manuals say nothing, or say that they may change.

What a package lists in its own `__init__.py` is public, and so is what its manual describes by its module's name.
"""
PYTHON_S_OWN = {"_exit", "_current_frames", "_getframe"}
"""Documented, in spite of their names."""
NOT_ON_EVERY_MACHINE = {"_dump_nccl_trace_json", "_linear_pointwise"}
"""Used where torch has them: builds for CUDA, builds with oneDNN."""
HOOKS = {
    ("hftune/arguments/parser.py", "type"): "how argparse reads a value",
    ("hftune/errors.py", "announce"): "of a listener of our own",
    ("hftune/interrupts.py", "deferring"): "of a listener of our own",
    ("hftune/trainers/features/order.py", "worker_init_fn"): "torch's, for workers of a loader",
    ("hftune/visible.py", "excepthook"): "Python's, for tracebacks",
}
"""Where a function is put on an object that is meant to be given one."""


def sources() -> list[Path]:
    return sorted([*(ROOT / "hftune").rglob("*.py"), *ROOT.glob("run_*.py"), ROOT / "merge_peft_adapter.py"])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def may_replace(path: Path) -> bool:
    return name_of(path).startswith("hftune/compat/")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node of a file; walking there takes longer than looking at it."""
    return list(ast.walk(tree))


def imported(tree: ast.Module) -> dict[str, str]:
    """What names of a file stand for in other libraries, as dotted paths; names that are set to those are followed."""
    found: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = {name: path for name, path in found.items() if path.partition(".")[0] in LIBRARIES}
    for node in nodes(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            path = path_of(node.value, found)
            found |= {one.id: path for one in node.targets if isinstance(one, ast.Name) and path}
    return found


def path_of(node: ast.expr, names: dict[str, str]) -> str | None:
    """The dotted path in another library that an expression reads, None where it is not known to be in one."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute | ast.Subscript):
        inner = path_of(node.value, names)
        return inner and f"{inner}.{node.attr if isinstance(node, ast.Attribute) else '[]'}"
    return None


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; other expressions are left out of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement writes to or deletes."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        found = [node.target]
    elif isinstance(node, ast.With):
        found = [item.optional_vars for item in node.items if item.optional_vars]
    return [leaf for one in found for leaf in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]


def replacements(tree: ast.Module, file: str = "") -> Iterator[str]:
    """Every place of a file that replaces something of another library: `line: code`."""
    names = imported(tree)
    functions = {node.name for node in nodes(tree) if isinstance(node, ast.FunctionDef)}
    # A variable of the same name is more likely meant.
    functions -= {node.arg for node in nodes(tree) if isinstance(node, ast.arg)}
    functions -= {node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes(tree):
        found = any(_writes(target, names) for target in targets(node)) or (
            isinstance(node, ast.Call) and _replaces(node, names)
        )
        if isinstance(node, ast.Assign):
            found = found or any(
                isinstance(target, ast.Attribute)
                and not _is_own(target.value)
                and (file, target.attr) not in HOOKS
                and _is_function(node.value, functions)
                for target in targets(node)
            )
        if found:
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def _writes(target: ast.expr, names: dict[str, str]) -> bool:
    """To an attribute or entry of a library's module, class or table, or to Python's table of modules."""
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return False
    return path_of(target.value, names) is not None or dotted(target.value) == "sys.modules"


def _replaces(call: ast.Call, names: dict[str, str]) -> bool:
    called = dotted(call.func)
    if called in ("setattr", "delattr"):
        return path_of(call.args[0], names) is not None
    if called.split(".")[-1] == "MethodType" or "mock" in called.split("."):
        return True
    written = ("update", "setdefault", "pop", "clear", "__setitem__", "__delitem__")
    if isinstance(call.func, ast.Attribute) and call.func.attr in written:
        owner = call.func.value
        table = owner.args[0] if isinstance(owner, ast.Call) and dotted(owner.func) == "vars" else owner
        return dotted(table) == "sys.modules" or path_of(table, names) is not None
    return False


def _is_own(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def _is_super(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Call) and dotted(owner.func) == "super"


def _is_function(value: ast.expr, functions: set[str]) -> bool:
    called = dotted(value.func) if isinstance(value, ast.Call) else ""
    return (
        isinstance(value, ast.Lambda)
        or (isinstance(value, ast.Name) and value.id in functions)
        or called.split(".")[-1] in ("partial", "partialmethod", "MethodType", "wraps")
    )


def test_nothing_of_others_is_replaced() -> None:
    files = [file for file in sources() if not may_replace(file)]
    found = [f"{name_of(file)}:{line}" for file in files for line in replacements(tree_of(file), name_of(file))]
    assert not found, f"install it from hftune/compat: {found}"


def private(name: object) -> bool:
    return isinstance(name, str) and bool(re.match(r"_[A-Za-z]", name))


def defined(tree: ast.Module) -> set[str]:
    """Private names that a file gives to functions, variables and attributes of its own objects."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return found


def private_reads(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Private names of objects that are not our own, and where: attributes, and the texts that name them."""
    own = defined(tree)
    by_name = {"getattr", "hasattr", "setattr", "delattr", "replace_method"}
    for node in nodes(tree):
        name: object = None
        if isinstance(node, ast.Attribute) and not _is_own(node.value) and not _is_super(node.value):
            name = node.attr
        elif isinstance(node, ast.Call) and dotted(node.func) in by_name:
            name = next((one.value for one in node.args[1:2] if isinstance(one, ast.Constant)), None)
        if private(name) and name not in own:
            yield str(name), node.lineno


@cache
def listed_names() -> frozenset[str]:
    return frozenset(part for entry in listed() for part in entry.symbol.split("."))


@cache
def methods_of_trainers() -> frozenset[str]:
    """Private methods of hftune's trainers, which other rooms may call; the test of overrides holds those of others."""
    files = [file for file in sources() if name_of(file).startswith("hftune/trainers/")]
    return frozenset(node.name for file in files for node in nodes(tree_of(file)) if isinstance(node, ast.FunctionDef))


def test_private_names_are_listed() -> None:
    known = listed_names() | PYTHON_S_OWN | NOT_ON_EVERY_MACHINE | methods_of_trainers()
    used = [(file, *place) for file in sources() for place in private_reads(tree_of(file))]
    found = [f"{name_of(file)}:{line}: {name}" for file, name, line in used if name not in known]
    assert not found, f"add them to hftune/compat/symbols.csv: {found}"


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Dotted paths that a file imports from undocumented modules."""
    for node in nodes(tree):
        paths: list[str] = []
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (path for path in paths if path.partition(".")[0] in LIBRARIES and UNDOCUMENTED.match(path))


def test_undocumented_imports_are_listed() -> None:
    known = [f"{entry.symbol}." for entry in listed()]
    files = [file for file in sources() if "compat" not in file.parts]
    used = [(file, path) for file in files for path in imports_of(tree_of(file))]
    # An entry for something within a class or module covers the import of it.
    found = [f"{name_of(file)}: {path}" for file, path in used if not any(one.startswith(f"{path}.") for one in known)]
    assert not found, f"add them to hftune/compat/symbols.csv: {found}"


def bases_of(file: Path) -> Iterator[str]:
    """Classes of other libraries that those of a file extend, as dotted paths."""
    tree = tree_of(file)
    names = imported(tree)
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef):
            paths = [path_of(base.value if isinstance(base, ast.Subscript) else base, names) for base in node.bases]
            yield from (path for path in paths if path)


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type), path
    return found


@cache
def private_names_of(found: type) -> frozenset[str]:
    """Private names that a class of another library and its bases use of themselves."""
    names: set[str] = set()
    for one in inspect.getmro(found):
        if one.__module__.partition(".")[0] in LIBRARIES and not one.__module__.startswith("torch._C"):
            text = _source(one)
            names |= {*re.findall(r"\bself\.(_[a-z]\w*)", text), *re.findall(r"\bdef (_[a-z]\w*)", text)}
    return frozenset(names)


def _source(found: type) -> str:
    try:
        return inspect.getsource(found)
    except (OSError, TypeError):  # built in
        return ""


def touched_by_heirs(tree: ast.Module) -> set[str]:
    """Private names that classes of a file use of themselves, or define."""
    used = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute) and private(node.attr)}
    classes = [node for node in nodes(tree) if isinstance(node, ast.ClassDef)]
    defs = {one.name for node in classes for one in node.body if isinstance(one, ast.FunctionDef) and private(one.name)}
    return used | defs


def heirs() -> list[tuple[str, Callable[[Path], bool]]]:
    """Groups of files whose classes end up in one object: those of trainers are mixed, all others stand alone."""
    alone = [file for file in sources() if not name_of(file).startswith(("hftune/trainers/", "hftune/compat/"))]
    groups: list[tuple[str, Callable[[Path], bool]]] = [
        (name_of(file), file.__eq__) for file in alone if [*bases_of(file)]
    ]
    return [("hftune/trainers", lambda file: name_of(file).startswith("hftune/trainers/")), *groups]


def test_what_heirs_use_of_upstream_is_listed() -> None:
    missing: dict[str, list[str]] = {}
    for group, is_in in heirs():
        files = [file for file in sources() if is_in(file)]
        theirs = frozenset().union(*(private_names_of(_class(path)) for file in files for path in bases_of(file)))
        used = set().union(*(touched_by_heirs(tree_of(file)) for file in files))
        missing |= {group: sorted(names)} if (names := used & theirs - listed_names()) else {}
    assert not missing, f"add them to hftune/compat/symbols.csv: {missing}"


def test_no_entry_is_left_over() -> None:
    # Modules that install patches name what they replace.
    files = [file for file in sources() if "compat" not in file.parts or file.stem == "patches"]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    words.add("__setitem__")  # tables are written to with brackets
    left = [entry.symbol for entry in listed() if entry.name not in words]
    assert not left, f"nothing uses them any more, take them out of hftune/compat/symbols.csv: {left}"
