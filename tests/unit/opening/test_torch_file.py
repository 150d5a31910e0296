"""Files of torch.save give numbers, and run nothing."""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import trainer

from hftune.errors import ManifestError
from hftune.opening.torch_file import DEEPSPEED, checked_loading, load_torch
from tests.security.pickles import FORMS


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """A file that comes to be where a pickle has run."""
    return tmp_path / "flag"


def test_numbers_come_back(tmp_path: Path) -> None:
    value = {
        "a": torch.arange(3.0),
        "b": [1, "two", None, 3.0],
        "c": OrderedDict(d=torch.Size([2])),
        "e": torch.bfloat16,
    }
    torch.save(value, tmp_path / "a.pt")
    for mmap in (True, False):
        found = load_torch(tmp_path / "a.pt", mmap=mmap)
        assert torch.equal(found.pop("a"), value["a"]) and found == {key: value[key] for key in "bce"}


def test_what_deepspeed_pickles_is_allowed_by_name(tmp_path: Path) -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    scaler = DynamicLossScaler(2**16, 2.0, 1000, 1.0, 2, False)
    value = [LossScaler(4.0), scaler, ZeroStageEnum.gradients, fragment_address(numel=3, start=2)]
    torch.save(value, tmp_path / "a.pt")
    found = load_torch(tmp_path / "a.pt", allow=DEEPSPEED)
    assert found[0].cur_scale == 4.0 and found[1].cur_scale == 2**16 and found[2:] == value[2:]
    for allow in ((), DEEPSPEED[1:]):
        with pytest.raises(ManifestError, match=r"more than numbers: .*deepspeed\.runtime"):
            load_torch(tmp_path / "a.pt", allow=allow)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("allow", [(), DEEPSPEED], ids=["numbers", "deepspeed"])
def test_programs_are_refused(tmp_path: Path, flag: Path, form: str, allow: tuple[str, ...]) -> None:
    FORMS[form](tmp_path / "a.pt", flag)
    for mmap in (True, False):
        with pytest.raises(ManifestError) as problem:
            load_torch(tmp_path / "a.pt", allow=allow, mmap=mmap)
        assert problem.value.place == str(tmp_path / "a.pt") and problem.value.fix
        assert "weights_only" not in str(problem.value), "torch's advice is to run it after all"
    assert not flag.exists()


@pytest.mark.parametrize("form", FORMS)
def test_the_switch_alone_refuses_them(tmp_path: Path, flag: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSpeed asks for them; first without the switch, so that each form is known to run."""
    FORMS[form](tmp_path / "a.pt", flag)

    def as_deepspeed_does() -> Any:
        return torch.load(tmp_path / "a.pt", map_location="cpu", weights_only=False)

    with pytest.raises(ManifestError, match="more than numbers"), checked_loading(tmp_path):
        as_deepspeed_does()
    assert not flag.exists()
    with contextlib.suppress(RuntimeError, AttributeError, ValueError, TypeError):
        as_deepspeed_does()
    assert flag.exists(), "this form would not run anyway"


def test_the_switch_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    for before in (None, "0"):
        monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
        allowed = len(torch.serialization.get_safe_globals())
        with pytest.raises(KeyError), checked_loading("c"):
            assert os.environ[name] == "1" and len(torch.serialization.get_safe_globals()) >= len(DEEPSPEED)
            raise KeyError
        assert os.environ.get(name) == before and len(torch.serialization.get_safe_globals()) == allowed


def test_other_faults_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError), checked_loading(tmp_path):
        raise KeyError("DeepSpeed's own")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut off": cut,
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("not torch's"),
    "a pickle": lambda file: file.write_bytes(pickle.dumps({"a": 1})),
    "zeros in the middle": lambda file: file.write_bytes(file.read_bytes().replace(b"ctorch._utils", b"\0" * 13)),
    "another archive": lambda file: zipfile.ZipFile(file, "w").writestr("a/b", "c"),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "gone": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "a.pt"
    torch.save({"a": torch.arange(100.0)}, file)
    DAMAGES[damage](file)
    with pytest.raises(ManifestError) as problem:
        load_torch(file)
    assert str(problem.value.place) == str(file) and problem.value.fix


def test_the_trainer_itself_reads_numbers_alone() -> None:
    """What lies beside DeepSpeed's files: optimizer.pt, scheduler.pt, rng_state.pth."""
    tree = ast.parse(inspect.getsource(trainer))
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    assert loads
    for call in loads:
        assert "weights_only=True" in ast.unparse(call), ast.unparse(call)
