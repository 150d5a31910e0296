"""The arguments of a run: four groups by name, also taken apart as a tuple."""

from __future__ import annotations

import pytest

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.arguments.preference import DPOArguments


def test_groups_of_arguments_have_names_and_an_order() -> None:
    run = parse_arguments("dpo", ["--output_dir", "out"])
    assert isinstance(run.training, DPOArguments) and isinstance(run.data, DataArguments)
    assert run == (run.model, run.data, run.adapter, run.training)
    with pytest.raises(AttributeError):
        run.training = None  # type: ignore[misc,assignment]
