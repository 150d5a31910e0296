"""`hftune doctor` on made-up machines: what is wrong is said with a way out, what is well in a line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.tools.doctor import launching, libraries, machine
from hftune.tools.doctor.command import main
from hftune.tools.doctor.findings import FINE, NOTE, WRONG, Finding, render, to_json
from hftune.tools.doctor.machine import GIB, Gpu, Gpus

HOPPER = Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)
GOOD = Gpus("580.65", "13.0", None, [HOPPER, HOPPER])


def levels(findings: object) -> list[str]:
    return [one.level for one in findings]  # type: ignore[attr-defined]


def the_wrong(findings: object) -> Finding:
    (found,) = (one for one in findings if one.level != FINE)  # type: ignore[attr-defined]
    assert found.fix
    return found


def test_a_page_counts_what_is_wrong() -> None:
    found = [
        Finding("GPU", "none"),
        Finding("launch", "nobody met", WRONG, "try again"),
        Finding("launch", "slow", NOTE),
    ]
    page = render(found)
    assert page.splitlines() == [
        "GPU",
        "    ok   none",
        "launch",
        "  WRONG  nobody met",
        "         to do: try again",
        "  note   slow",
        "1 thing(s) wrong, 1 note(s)",
    ]
    assert json.loads(to_json(found))["wrong"] == 1
    assert render([Finding("GPU", "none")]).endswith("nothing is wrong")


def test_versions() -> None:
    assert libraries.check_python("3.12.1", ">=3.11").level == FINE
    old = libraries.check_python("3.9.2", ">=3.11")
    assert old.level == WRONG and "3.9.2; hftune wants >=3.11" in old.said
    requires = ["torch>=2.11,<2.14", "trl>=1.16,<1.17", "numpy", "ruff; extra == 'dev'"]
    here = {"torch": "2.13.0+cpu", "trl": "1.16.0", "numpy": "2.4.0"}
    assert levels(libraries.check_requirements(requires, here.get)) == [FINE]
    newer = the_wrong(libraries.check_requirements(requires, (here | {"trl": "1.17.0"}).get))
    assert "trl 1.17.0; hftune was made for" in newer.said and newer.fix == "pip install 'trl<1.17,>=1.16'"
    absent = the_wrong(libraries.check_requirements(requires, {"torch": "2.12.0", "trl": "1.16.0"}.get))
    assert absent.said == "numpy is not installed"


def test_what_is_installed_here_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    python, requires = libraries.own_requirements()
    assert ">=3.11" in python and levels(libraries.check_requirements(requires)) == [FINE]
    assert set(levels(libraries.check_optional())) == {FINE}
    monkeypatch.setattr(libraries, "installed", {}.get)
    assert libraries.own_requirements() == ("", []) and libraries.check_python("3.9.2", "").level == FINE


def test_libraries_that_do_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {
        "broken_kernels": "raise OSError('undefined symbol: cudaMalloc')",
        "crashing_kernels": "import os; os.abort()",
    }
    for name, code in broken.items():
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tmp_path.joinpath(f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    root = Path(libraries.__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    monkeypatch.setattr(libraries, "PREPARE", "")
    fails, ends, loads = libraries.check_loading(["xxhash", "not_installed", *broken, "packaging"])
    assert [fails.level, ends.level] == [NOTE, WRONG] and fails.fix and ends.fix
    assert "broken_kernels does not load: OSError: undefined symbol" in fails.said
    assert "crashing_kernels does not load" in ends.said and loads.said == "these load: xxhash, packaging"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print('3 private or replaced parts of other libraries looked at')", [(FINE, "all 3 private parts")]),
        (
            "print('[INFO] noise', 'changed: a.b is not in a 2: --x needs it', 'changed: a.c takes ()', sep='\\n')\n"
            "print('3 private or replaced parts of other libraries looked at', 'more noise', sep='\\n')",
            [(WRONG, "a.b is not in a 2: --x needs it"), (WRONG, "a.c takes ()")],
        ),
        (
            "print('changed: a.b is not in a 2'); raise ImportError('broken kernels')",
            [(WRONG, "a.b is not in a 2"), (WRONG, "failed: ImportError: broken kernels")],
        ),
        ("raise SystemExit(3)", [(WRONG, "failed: exit 3")]),
    ],
)
def test_private_parts(code: str, found: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "PREPARE", "")
    monkeypatch.setattr(libraries, "CHECK_SYMBOLS", code)
    said = list(libraries.check_symbols())
    assert levels(said) == [level for level, _ in found]
    assert all(words in one.said for one, (_, words) in zip(said, found, strict=True))


def test_gpus() -> None:
    assert levels(machine.check_gpus(GOOD)) == [FINE, FINE]
    assert levels(machine.check_gpus(Gpus())) == [FINE], "a CPU is no fault"


@pytest.mark.parametrize(
    ("found", "level", "said", "fix"),
    [
        (Gpus("580.65"), WRONG, "is a build without CUDA", "build for CUDA"),
        (Gpus("470.1", "13.0", "driver too old"), WRONG, "sees no GPU: driver too old", "newer driver"),
        (Gpus("580.65", "13.0", visible=""), WRONG, "CUDA_VISIBLE_DEVICES='' hides", "unset"),
        (replace(GOOD, seen=[HOPPER, replace(HOPPER, free=70 * GIB)]), NOTE, "50% is in use by others", "nvidia-smi"),
        (replace(GOOD, seen=[HOPPER, replace(HOPPER, name="T4")]), NOTE, "not alike", "slowest"),
        (replace(GOOD, bf16=False), NOTE, "no bf16", "--fp16"),
        (replace(GOOD, varlen=False), NOTE, "a document at a time", "flash-attn"),
    ],
)
def test_gpus_that_want_something(found: Gpus, level: str, said: str, fix: str) -> None:
    problem = the_wrong(machine.check_gpus(found))
    assert problem.level == level and said in problem.said and fix in str(problem.fix)


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = machine.check_host(has_gpu=False)
    assert "core" in first.said and "GiB free" in first.said
    monkeypatch.setattr(machine.launch, "can_build_operators", lambda: False)
    assert any("no C++ compiler" in one.said for one in machine.check_host(has_gpu=False))


def test_folders(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    fresh, closed = tmp_path / "not" / "yet", Path("/proc/nowhere")
    well, shut = machine.check_folders({"results": fresh, "more results": closed})
    assert well.level != WRONG and "GiB free" in well.said and not fresh.exists()
    assert shut.level == WRONG and "more results: /proc/nowhere cannot be written to" in shut.said
    assert list(tmp_path.iterdir()) == [file], "nothing is left"


def test_variables() -> None:
    assert levels(machine.check_variables({"HOME": "/root"})) == [FINE]
    left = the_wrong(machine.check_variables({"RANK": "3", "WORLD_SIZE": "8"}))
    assert "RANK=3, WORLD_SIZE=8" in left.said and left.fix == "unset RANK WORLD_SIZE"
    found = list(machine.check_variables({"NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1"}))
    assert levels(found) == [FINE, NOTE] and found[0].said == "set: HF_HUB_OFFLINE=1, NCCL_DEBUG=INFO"


def test_processes_that_do_not_meet() -> None:
    busy = "import sys; sys.exit('The server socket has failed to listen: Address already in use')"
    found = launching.run_all_reduce([sys.executable, "-c", busy], 2)
    assert found.level == WRONG and "2 processes did not meet" in found.said and "--master_port" in str(found.fix)
    hangs = launching.run_all_reduce([sys.executable, "-c", "import time; time.sleep(60)"], 2, patience=0.5)
    assert hangs.level == WRONG and "nothing within 0.5 s" in hangs.said


def test_processes_that_meet() -> None:
    code = f"print('[INFO] noise'); print({launching.MET + '2 processes met by nccl'!r})"
    found = launching.run_all_reduce([sys.executable, "-c", code], 2)
    assert (found.level, found.said) == (FINE, "2 processes met by nccl")
    fails = launching.run_all_reduce([sys.executable, "-c", f"{code}; raise SystemExit(1)"], 2)
    assert fails.level == WRONG


def test_one_process_alone_has_no_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And a sum is looked at: one that is wrong ends the process."""
    monkeypatch.setattr(launching, "SIZE", 64)
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    launching.main()
    assert capsys.readouterr().out == f"\n{launching.MET}1 process met by gloo\n"
    monkeypatch.setattr(launching.dist, "all_reduce", lambda numbers: numbers.fill_(2.0))
    with pytest.raises(SystemExit, match="added up to"):
        launching.main()
    launching.dist.destroy_process_group()


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching.child_processes, "program", lambda name: None)
    assert "DeepSpeed is not installed" in the_wrong(launching.check_launch(2)).said


def test_the_command_ends_with_2_where_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(SystemExit) as caught:
        main(["--quick", "--json"])
    assert caught.value.code == 2
    said = json.loads(capsys.readouterr().out)
    assert said["wrong"] == 1 and {one["topic"] for one in said["findings"]} > {"libraries", "GPU", "folders"}
    monkeypatch.delenv("WORLD_SIZE")
    main(["--quick", "outputs"])
    assert "results (outputs)" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="unrecognized arguments: --deep"):
        main(["--deep"])
