"""State of processes that share a model is not taken for that of processes that each hold all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import RECORD_NAME
from hftune.errors import ManifestError

OWN = ["zero_pp_rank_0_mp_rank_00_optim_states.pt"]


@pytest.mark.parametrize(
    ("files", "record"),
    [
        ([*OWN, "zero_pp_rank_0_mp_rank_01_optim_states.pt"], {}),
        ([*OWN, "layer_0_expert_3_mp_rank_00_model_states.pt"], {}),
        (OWN, {"expert_parallel_size": 2}),  # under ZeRO-3 the names do not tell
    ],
)
def test_pieces_of_a_shared_model_are_not_put_together(
    tmp_path: Path, files: list[str], record: dict[str, int]
) -> None:
    folder = tmp_path / "checkpoint-2" / "global_step2"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    (folder.parent / RECORD_NAME).write_text(json.dumps({"files": {}, **record}))
    with pytest.raises(ManifestError, match="tensor or expert parallel processes") as problem:
        open_engine(folder)
    assert "its whole weights are next to it" in str(problem.value)
