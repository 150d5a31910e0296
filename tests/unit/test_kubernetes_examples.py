"""examples/cluster/kubernetes against the types of Kubernetes and Kubeflow, and their commands against the parsers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import IoK8sApiBatchV1Job, TrainerV1alpha1TrainJob

from hftune.tools.pipeline.starting import take_own
from tests.unit.test_commands import faults

FOLDER = Path(__file__).parents[2] / "examples" / "cluster" / "kubernetes"
TYPES: dict[str, Any] = {"job.yaml": IoK8sApiBatchV1Job, "trainjob.yaml": TrainerV1alpha1TrainJob}


def content(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def test_none_is_forgotten() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_of_the_types(name: str) -> None:
    """Names that a type does not have get lost on the way through it."""
    given = content(name)
    assert TYPES[name].from_dict(given).to_dict() == given


def _container(name: str) -> dict[str, Any]:
    if name == "trainjob.yaml":
        found: dict[str, Any] = content(name)["spec"]["trainer"]
        return found
    pod = content(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    return dict(container)


@pytest.mark.parametrize("name", ["job.yaml", "trainjob.yaml"])
def test_what_they_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container = _container(name)
    *launcher, program, stage = container["command"]
    assert launcher == (["torchrun", "--no-python"] if name == "trainjob.yaml" else []) and program == "hftune"
    given, _ = take_own(container["args"])
    processes = int(container.get("resources", container.get("resourcesPerNode"))["limits"]["nvidia.com/gpu"])
    assert (given.nproc or container["numProcPerNode"]) == processes
    assert faults(["hftune", stage, *container["args"]], monkeypatch) == []


def test_a_stopped_run_is_started_again() -> None:
    *_, rule = content("job.yaml")["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["operator"] == "NotIn" and rule["onExitCodes"]["values"] == [75, 76]
    assert rule["onExitCodes"]["containerName"] == _container("job.yaml")["name"]
