"""Linear modules that an adapter has no effect on: their owner reads the weight and does not call the module.

Mamba's mixers hand the weight of their last projection to a fused kernel, and multiply with that of the step sizes by
themselves; peft's adapter lies around the module, and the weight that is read is the base's. Which modules these are is
read from the code of their owner, whatever the model's type is.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

_ABOUT = {"dtype", "device", "shape", "ndim", "size", "numel", "is_meta", "requires_grad"}
"""What is asked of a weight without computing with it."""
_ASKING = {"isinstance", "hasattr", "getattr", "id", "len"}


@dataclass(frozen=True)
class Reader:
    """Who reads the weight of a linear module.

    Args:
        owner: The class of the module that it is a child of.
        always: Also where there is no kernel; else the plain way through it calls the module.
    """

    owner: str
    always: bool


def passed_by(model: nn.Module) -> dict[str, Reader]:
    """The linear modules that an adapter has no effect on, or none where kernels compute, by name."""
    found = {}
    for name, module in model.named_modules():
        for child_name, child in module.named_children():
            if isinstance(child, nn.Linear | Conv1D):
                owner: Any = type(module)
                read, given = _read_by(owner)
                if child_name in read | given:
                    whole = f"{name}.{child_name}" if name else child_name
                    found[whole] = Reader(type(module).__name__, always=child_name in read)
    return found


@functools.cache
def _read_by(owner: type) -> tuple[frozenset[str], frozenset[str]]:
    """Children whose weight this class reads without calling them, and those of which only a fused kernel reads it."""
    called: set[str] = set()
    read: set[str] = set()
    multiplied: set[str] = set()
    given: set[str] = set()
    for node, parent in _nodes(owner):
        if isinstance(node, ast.Call) and (child := _of_self(node.func)):
            called.add(child)
        elif isinstance(node, ast.Attribute) and node.attr == "weight" and isinstance(node.ctx, ast.Load):
            child = _of_self(node.value)
            if child and not _only_asks(parent):
                read.add(child)
                # As it is, to a function: a second way through the layer, which calls no module.
                if isinstance(parent, ast.Call | ast.keyword):
                    given.add(child)
                elif isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
                    multiplied.add(child)
    always = multiplied | (read - called)
    return frozenset(always), frozenset(given - always)


def _nodes(owner: type) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every node of the methods that compute, with the node that it stands in."""
    for base in owner.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            continue
        body = _classes(base.__module__).get(base.__name__)
        for method in body.body if body is not None else []:
            if isinstance(method, ast.FunctionDef) and not method.name.lstrip("_").startswith(("init", "reset")):
                yield from _below(method)


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by name, parsed; none of one that is made at run time and has no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _below(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield child, node
        yield from _below(child)


def _of_self(node: ast.AST) -> str | None:
    """NAME of `self.NAME`."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_own and isinstance(node, ast.Attribute) else None


def _only_asks(parent: ast.AST) -> bool:
    if isinstance(parent, ast.Attribute):
        return parent.attr in _ABOUT or parent.attr.startswith("_")
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Name) and parent.func.id in _ASKING
    return isinstance(parent, ast.Compare)
