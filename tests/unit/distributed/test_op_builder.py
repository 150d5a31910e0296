"""What DeepSpeed can compile, told beforehand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from deepspeed import git_version_info
from torch.utils import cpp_extension

from hftune.distributed import op_builder


def program(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_the_ninja_of_the_environment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python started by its path leaves its programs off PATH."""
    empty, own = tmp_path / "empty", program(tmp_path / "venv" / "bin" / "ninja")
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(op_builder.sys, "executable", str(own.with_name("python")))
    op_builder.put_ninja_on_path()
    assert shutil.which("ninja") == str(own)
    before = os.environ["PATH"]
    op_builder.put_ninja_on_path()
    assert os.environ["PATH"] == before


def test_a_compiler_without_ninja_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = program(tmp_path / "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(op_builder, "_ninja_candidates", lambda: [])
    assert op_builder.has_cpp_compiler() and not op_builder.can_build_operators()
    program(tmp_path / "ninja")
    assert op_builder.can_build_operators()
    compiler.unlink()
    assert not op_builder.can_build_operators()


def test_operators_for_gpus_want_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_builder, "can_build_operators", lambda: True)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert op_builder.missing_operators(()) == frozenset()
    assert op_builder.missing_operators(["quantizer", "dc"]) == {"quantizer", "dc"}
    monkeypatch.setitem(git_version_info.installed_ops, "dc", True)
    assert op_builder.missing_operators(["quantizer", "dc"]) == {"quantizer"}, "what was built beforehand is there"
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/usr/local/cuda")
    assert op_builder.missing_operators(["quantizer", "dc"]) == frozenset()
