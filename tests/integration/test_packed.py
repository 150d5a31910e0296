"""Training on a checkpoint in 4 or 8 bit of another maker: the same losses as on the same numbers stored whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.architectures import make_model
from tests.conftest import logged
from tests.packed import pack


def test_zero3_on_fp8_experts(run: Callable, tiny_data: Path, tmp_path: Path) -> None:
    """Both processes read it, each keeps its part; and the result is whole."""
    plain = make_model("qwen3_moe", tmp_path / "plain", hidden_size=64, moe_intermediate_size=32, head_dim=16)
    packed = pack(plain, tmp_path / "fp8", "fp8")
    found = {}
    for model in (packed, Path(f"{packed}-whole")):
        output = tmp_path / f"of-{model.name}"
        finished = run(
            *("run_sft.py", "--model_name_or_path", str(model), "--output_dir", str(output)),
            *("--train_file_dir", str(tiny_data / "sft"), "--max_steps", "2", "--logging_steps", "1"),
            *("--per_device_train_batch_size", "1", "--deepspeed", "ds_configs/zero3.json", "--use_cpu", "True"),
            *("--learning_rate", "1e-3", "--save_strategy", "no", "--max_length", "64"),
            launcher="deepspeed --num_gpus 2",
            warm=True,
        ).check()
        found[model] = logged(output)
        assert ("is stored in fp8" in finished.output) == (model == packed)
    assert found[packed] == found[Path(f"{packed}-whole")] and len(found[packed]) == 2
    config = json.loads((tmp_path / f"of-{packed.name}" / "config.json").read_text())
    assert "quantization_config" not in config
