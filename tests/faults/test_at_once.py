"""Two processes that make the same result at the same moment: one makes it, the other is refused or comes after it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.digests import changed_files
from hftune.errors import UserError
from hftune.merging.merge import merge_adapter
from hftune.publishing.folder import published_folder
from hftune.publishing.ownership import foreign_files
from tests.unit.merging.models import make_adapter

REFUSED = 7


def at_once(*work: Callable[[], object]) -> list[int]:
    """Exit codes of processes that begin together: 0, REFUSED after a message of hftune's, 1 for anything else."""
    receive, send = os.pipe()
    children = []
    for one in work:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(send)
                os.read(receive, 1)  # until the parent lets go
                one()
                code = 0
            except UserError as error:
                os.write(2, str(error).encode())
                code = REFUSED
            except BaseException:  # the child's end: what it met is what the parent's failure shows
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    os.close(receive)
    os.close(send)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def is_as_recorded(out: Path) -> bool:
    manifest = read_manifest(out) or {}
    complete = manifest.get("status") == "complete" and not foreign_files(out)
    return complete and not [*changed_files(out, manifest["written"], whole=True)]


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_merges(tiny_model: Path, tmp_path: Path, overwrite: bool) -> None:
    adapters = [make_adapter(tiny_model, tmp_path / f"a{n}", target_modules=["q_proj"], seed=n) for n in (1, 2)]
    out = tmp_path / "out"

    def merge(adapter: Path) -> None:
        asked = {"peft_model_path": str(adapter), "base_model_name_or_path": str(tiny_model), "output_dir": str(out)}
        merge_adapter(MergeArguments(**asked, overwrite_output_dir=overwrite, verify="false"))

    if overwrite:
        merge(adapters[0])
    codes = at_once(*(lambda a=adapter: merge(a) for adapter in adapters))
    assert set(codes) <= {0, REFUSED} and 0 in codes and (overwrite or REFUSED in codes)
    assert is_as_recorded(out) and sorted(entry.name for entry in tmp_path.iterdir()) == ["a1", "a2", "out"]


def test_many_writers_of_one_folder(tmp_path: Path) -> None:
    """Six processes, each replacing the result: none sees half of another's, and none is left behind."""
    out = tmp_path / "out"

    def write(number: int) -> None:
        from hftune.checkpoints.manifest import finish_manifest

        for _ in range(3):
            with published_folder(out, overwrite=True) as aside:
                for name in "abc":
                    (aside / name).write_text(str(number))
                finish_manifest(aside, {"status": "complete", "by": number})

    codes = at_once(*(lambda n=number: write(n) for number in range(6)))
    assert set(codes) <= {0, REFUSED} and 0 in codes
    assert is_as_recorded(out) and len({(out / name).read_text() for name in "abc"}) == 1
    assert [*tmp_path.iterdir()] == [out]
