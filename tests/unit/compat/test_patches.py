"""Each patch does what it is for, and is not installed where upstream changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers.trainer
from accelerate.utils import imports, other
from peft import LoraConfig, get_peft_model
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from torch import nn
from transformers import dynamic_module_utils
from transformers.integrations import deepspeed as hf_deepspeed

from hftune.compat import installing, patches
from hftune.compat.checking import problem_of
from hftune.compat.installing import method_replaced, replace_method, require, usable
from hftune.compat.symbols import UpstreamSymbol, entry_of
from hftune.errors import UserError


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if upstream had renamed whatever a patch replaces."""
    entry = UpstreamSymbol("transformers.trainer.GONE", None, ">=5", "why", "--made_up_flag")
    monkeypatch.setattr(installing, "entry_of", lambda symbol: entry)


def test_engines_are_looked_for_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other, "is_deepspeed_available", imports.is_deepspeed_available)
    patches.look_for_engines(needed=False)
    assert not other.is_deepspeed_available()
    assert problem_of(entry_of("accelerate.utils.other.is_deepspeed_available")) is None
    patches.look_for_engines(needed=True)
    assert other.is_deepspeed_available is imports.is_deepspeed_available


@pytest.mark.usefixtures("changed")
def test_engines_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other, "is_deepspeed_available", imports.is_deepspeed_available)
    patches.look_for_engines(needed=False)
    assert other.is_deepspeed_available is imports.is_deepspeed_available


def test_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 15)
    patches.never_ask_about_code()
    assert dynamic_module_utils.TIME_OUT_REMOTE_CODE == 0


def test_the_deepspeed_config_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_deepspeed, "_hf_deepspeed_config_weak_ref", mark := object())
    with pytest.raises(RuntimeError), patches.no_deepspeed_config():
        assert hf_deepspeed._hf_deepspeed_config_weak_ref is None
        raise RuntimeError
    assert hf_deepspeed._hf_deepspeed_config_weak_ref is mark


def test_checkpoints_are_loaded_our_way(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def upstream(deepspeed_engine: Any, checkpoint_path: str, load_module_strict: bool = True) -> None:
        heard.append((deepspeed_engine, checkpoint_path, load_module_strict))

    monkeypatch.setattr(transformers.trainer, "deepspeed_load_checkpoint", upstream)

    def load(original: Any, engine: Any, folder: str, options: dict[str, Any]) -> None:
        heard.append("ours")
        original(engine, folder, **options)

    with pytest.raises(RuntimeError), patches.checkpoint_loader(load):
        transformers.trainer.deepspeed_load_checkpoint("engine", "folder", load_module_strict=False)
        raise RuntimeError
    assert heard == ["ours", ("engine", "folder", False)]
    assert transformers.trainer.deepspeed_load_checkpoint is upstream


@pytest.mark.usefixtures("changed")
@pytest.mark.parametrize(
    "patch",
    [
        patches.never_ask_about_code,
        lambda: patches.no_deepspeed_config().__enter__(),
        lambda: patches.checkpoint_loader(print).__enter__(),
    ],
)
def test_what_cannot_be_left_out_is_an_error(patch: Any) -> None:
    with pytest.raises(UserError, match="--made_up_flag needs it"):
        patch()


def test_rows_are_gathered() -> None:
    gathered: list[torch.Tensor] = []

    @contextmanager
    def gather(tensors: list[torch.Tensor]) -> Iterator[None]:
        gathered.extend(tensors)
        yield

    weight = torch.arange(12.0).reshape(4, 3)
    before = TrainableTokensLayer._collect_token_weights
    with patches.rows_on_any_device(gather):
        rows = TrainableTokensLayer._collect_token_weights(SimpleNamespace(), weight, [3, 1], 3)
    assert rows.tolist() == [[9.0, 10.0, 11.0], [3.0, 4.0, 5.0]]
    assert gathered[0] is weight
    assert TrainableTokensLayer._collect_token_weights is before


@pytest.mark.usefixtures("changed")
def test_rows_are_peft_s_own_business() -> None:
    before = TrainableTokensLayer._collect_token_weights
    with patches.rows_on_any_device(pytest.fail):
        assert TrainableTokensLayer._collect_token_weights is before


def test_no_card_is_written(tmp_path: Any) -> None:
    adapted = get_peft_model(nn.Sequential(nn.Linear(2, 2)), LoraConfig(target_modules=["0"]))
    patches.write_no_card(adapted)
    adapted.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_config.json").is_file()
    assert not (tmp_path / "README.md").exists()


def test_4_bit_weights_stay_differentiable() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    model = nn.Sequential(bnb.nn.Linear4bit(64, 64), nn.Linear(64, 64))
    model[0].support_avx512bf16_for_cpu = True
    patches.keep_differentiable(model)
    assert model[0].support_avx512bf16_for_cpu is False
    assert not hasattr(model[1], "support_avx512bf16_for_cpu")


@pytest.mark.usefixtures("changed")
def test_4_bit_weights_that_may_not_be() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    patches.keep_differentiable(nn.Linear(2, 2))
    if not torch.accelerator.is_available():
        with pytest.raises(UserError, match="--made_up_flag needs it"):
            patches.keep_differentiable(bnb.nn.Linear4bit(64, 64))


def test_no_shared_memory_operator_is_compiled() -> None:
    ops = pytest.importorskip("deepspeed.ops")
    before = ops.__compatible_ops__["deepspeed_shm_comm"]
    ops.__compatible_ops__["deepspeed_shm_comm"] = True
    try:
        patches.compile_no_shared_memory()
        assert ops.__compatible_ops__["deepspeed_shm_comm"] is False
    finally:
        ops.__compatible_ops__["deepspeed_shm_comm"] = before


def test_only_what_is_as_listed_is_used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    symbol, said = "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE", []
    monkeypatch.setattr(installing, "notice", said.append)
    assert usable(symbol)
    require(symbol)
    with pytest.raises(KeyError):  # unlisted: our mistake
        usable("transformers.Trainer.train")
    request.getfixturevalue("changed")
    assert not said and not usable(symbol)
    assert said[0].startswith("off: --made_up_flag; transformers.trainer.GONE is not in transformers")
    with pytest.raises(UserError, match=r"GONE is not in transformers(.|\n)*hftune doctor"):
        require(symbol)


class Layer:
    """Made up."""

    def forward(self, x: int) -> int:
        """Made up."""
        return x

    attribute = 1


def test_one_object_runs_another_method() -> None:
    layer, other = Layer(), Layer()
    replace_method(layer, "forward", lambda self, x: (self, x))
    assert layer.forward(2) == (layer, 2)  # type: ignore[comparison-overlap]  # replaced
    assert other.forward(2) == 2


@pytest.mark.parametrize("name", ["gone", "attribute"])
def test_only_methods_are_replaced(name: str) -> None:
    with pytest.raises(UserError, match=f"Layer has no method {name}"):
        replace_method(Layer(), name, lambda self: None)


def test_in_a_block() -> None:
    layer = Layer()
    with pytest.raises(RuntimeError), method_replaced(layer, "forward", lambda self, x: -x):
        assert layer.forward(2) == -2
        with method_replaced(layer, "forward", lambda self, x: 10 * x):
            assert layer.forward(2) == 20
        assert layer.forward(2) == -2
        raise RuntimeError
    assert layer.forward(2) == 2
    assert "forward" not in vars(layer)
