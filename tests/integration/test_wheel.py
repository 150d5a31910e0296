"""A wheel, installed into an environment of its own, trains outside the repository.

The environment sees the libraries that run the tests, so that nothing is downloaded; docs/installation.md has the
commands of a whole installation.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hftune.arguments.stage_table import STAGES
from tests.conftest import NETGUARD, Finished, without_launcher
from tests.documents import ROOT

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "outputs*", "build", "dist", "*.egg-info", "runs")
Command = Callable[..., Finished]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it alone."""
    folder = tmp_path_factory.mktemp("dist")
    sources = Path(shutil.copytree(ROOT, folder / "sources", ignore=LEFT_OUT))
    sdist = built("sdist", sources, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return sdist, built("wheel", unpacked, folder)


def built(kind: str, sources: Path, folder: Path) -> Path:
    """What the project's build backend makes of a folder."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / done.stdout.splitlines()[-1]


def test_what_a_wheel_holds(dist: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(dist[1]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
        record = wheel.read(next(name for name in names if name.endswith("RECORD"))).decode()
        scripts = {f"run_{stage}.py" for stage in STAGES} | {"merge_peft_adapter.py"}
        assert all(wheel.read(f"hftune/shipped/{name}") == (ROOT / name).read_bytes() for name in scripts)
    shipped = [
        file for folder in ("ds_configs", "examples/data", "examples/pipelines") for file in files(ROOT / folder)
    ]
    package = [file for file in files(ROOT / "hftune") if file.suffix != ".pyc"]
    assert {f"hftune/shipped/{file.relative_to(ROOT)}" for file in shipped} <= names
    assert {str(file.relative_to(ROOT)) for file in package} <= names
    assert all(name.startswith(("hftune/", "hftune-")) for name in names), "nothing else in site-packages"
    assert "hftune/shipped/run_sft.py,sha256=" in record
    assert "# hftune" in metadata and not re.search(r"\]\((?!https?:)", metadata), "links that lead nowhere"
    with tarfile.open(dist[0]) as archive:
        assert {"setup.py", "constraints.txt", "tests/integration/test_wheel.py", "Makefile", "docs/pipeline.md"} <= {
            name.partition("/")[2] for name in archive.getnames()
        }


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


@pytest.fixture(scope="module")
def installed(
    dist: tuple[Path, Path], workspace: Path, netguard_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Command:
    """Runs a command of an environment that has the wheel, in a folder, in a shell."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    # `.pth` files of that folder, an editable hftune's among them, are not read: it is no site folder here.
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    # Ignored: an hftune that the libraries' environment or PYTHONPATH has would do, for pip.
    options = ("-q", "--ignore-installed", "--no-deps", "--no-index")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", *options, str(dist[1])]
    subprocess.run(pip, check=True)
    for name in ("deepspeed", "torchrun"):
        # As pip writes it: the script names the environment's own interpreter.
        script = (Path(sys.executable).parent / name).read_text().splitlines(keepends=True)
        (home / "bin" / name).write_text("".join([f"#!{home}/bin/python\n", *script[1:]]))
        (home / "bin" / name).chmod(0o755)
    environment = without_launcher(os.environ) | {
        "PATH": os.pathsep.join([str(home / "bin"), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(NETGUARD),
        "HFTUNE_NETGUARD_LOG": str(netguard_log),
        "HFTUNE_CACHE": str(workspace / "cache"),
        "HF_HOME": str(workspace / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }

    def run(command: str, folder: Path) -> Finished:
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        return Finished(done.returncode, done.stdout)

    return run


def shortened(file: Path, *stages: str) -> None:
    """A pipeline of these stages, each of one step on a few records."""
    spec = yaml.safe_load(file.read_text())
    small = {"max_steps": 1, "max_train_samples": 8, "max_eval_samples": 4, "per_device_train_batch_size": 1}
    spec["stages"] = {name: {**spec["stages"][name], **small, "max_length": 64} for name in stages}
    for name, length in (("pt", "block_size"), ("rl", "max_completion_length")):
        if name in spec["stages"]:
            spec["stages"][name] |= {length: 16}
            del spec["stages"][name]["max_length"]
    # DeepSpeed's config by its name. Without a warm-up: its first step changes nothing.
    spec["shared"] |= {"deepspeed": "zero2", "use_cpu": True, "warmup_steps": 0}
    file.write_text(yaml.safe_dump(spec, sort_keys=False))


@pytest.mark.slow
def test_all_that_init_writes_runs(installed: Command, tiny_model: Path, tmp_path: Path) -> None:
    """The whole demo, and the commands of the README of `hftune init sft`, on few records."""
    (tmp_path / "demo").mkdir()
    installed(f"hftune init demo --model {tiny_model}", tmp_path / "demo").check()
    shortened(tmp_path / "demo" / "demo.yaml", "pt", "sft", "rm", "rl", "dpo")
    installed("hftune pipeline plan demo.yaml && hftune pipeline run demo.yaml", tmp_path / "demo").check()
    made = {path.parent.name for path in (tmp_path / "demo/outputs/demo").glob("*/hftune.json")}
    assert made >= {"pt-merged", "sft-merged", "rm-merged", "rl-merged", "dpo-merged", "answers"}

    installed(f"hftune init sft there --model {tiny_model}", tmp_path).check()
    small = "--max_steps 1 --use_cpu True --report_to none"
    said = installed(f"hftune sft --config sft.yaml --nproc 2 --launcher torchrun {small}", tmp_path / "there").check()
    assert "runs: torchrun --nproc_per_node 2 " in said.output
    merge = "hftune merge --peft_model_path outputs/sft --output_dir outputs/sft-merged"
    said = installed(
        f"hftune preview sft --config sft.yaml\n{merge}\nhftune lineage outputs/sft-merged", tmp_path / "there"
    )
    assert "sft-merged" in said.check().output
