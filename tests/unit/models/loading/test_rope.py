"""Stretched positions: the frequencies of each kind against its formula, and every way to ask for nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.loading.config import model_config
from tests.architectures import ARCHITECTURES, few_quick, make_config, make_model

HEAD, THETA, CONTEXT = 8, 10_000.0, 512


def scaled(folder: Path, *flags: str) -> PreTrainedConfig:
    model_args, _, _, training_args = parse_arguments(
        "sft", ["--model_name_or_path", str(folder), "--output_dir", "o", *flags]
    )
    return model_config(model_args, training_args)


def frequencies(folder: Path, config: PreTrainedConfig) -> torch.Tensor:
    """Of the loaded model, (head size / 2)."""
    return AutoModelForCausalLM.from_pretrained(folder, config=config).model.rotary_emb.inv_freq


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"))


def test_linear_divides_positions_by_what_the_longest_row_needs(llama: Path) -> None:
    """MedicalGPT's way: the length over the context, rounded up. 1200 / 512 -> 3."""
    plain = torch.tensor([THETA ** (-2 * i / HEAD) for i in range(HEAD // 2)])
    for flags, factor in ((("--rope_factor", "4"), 4), (("--max_length", "1200"), 3)):
        config = scaled(llama, "--rope_scaling", "linear", *flags)
        assert config.max_position_embeddings == factor * CONTEXT
        torch.testing.assert_close(frequencies(llama, config), plain / factor)
    assert scaled(llama, "--rope_scaling", "linear", "--max_length", "512").rope_parameters["rope_type"] == "default"


def test_what_else_a_kind_by_name_says(llama: Path) -> None:
    """The waves that llama3 keeps and divides; the context before stretching, which the formula of dynamic reads."""
    said = scaled(llama, "--rope_scaling", "llama3", "--rope_factor", "4").rope_parameters
    assert (said["low_freq_factor"], said["high_freq_factor"]) == (1.0, 4.0)
    assert said["original_max_position_embeddings"] == CONTEXT
    dynamic = scaled(llama, "--rope_scaling", "dynamic", "--rope_factor", "4")
    assert dynamic.max_position_embeddings == CONTEXT and dynamic.rope_parameters["factor"] == 4


def test_a_flag_that_every_stage_is_given_scales_once(llama: Path, tmp_path: Path) -> None:
    flags = ("--rope_scaling", "yarn", "--rope_factor", "4")
    scaled(llama, *flags).save_pretrained(tmp_path)
    again = scaled(tmp_path, *flags)
    assert again.max_position_embeddings == 4 * CONTEXT and again.rope_parameters["factor"] == 4.0
    # And with a factor taken from the rows: of the context before stretching.
    assert scaled(tmp_path, "--rope_scaling", "yarn", "--max_length", "2048").max_position_embeddings == 4 * CONTEXT
    with pytest.raises(ArgumentError, match="scaled already"):
        scaled(tmp_path, "--rope_scaling", "linear", "--rope_factor", "2")


def test_json_says_all_of_it(llama: Path, tmp_path: Path) -> None:
    """A mapping in YAML as well."""
    (tmp_path / "run.yaml").write_text("rope_scaling:\n  rope_type: linear\n  factor: 2\n")
    assert scaled(llama, "--config", str(tmp_path / "run.yaml")).rope_parameters["factor"] == 2
    text = '{"type": "yarn", "factor": 2.0, "beta_fast": 16, "original_max_position_embeddings": 256}'
    config = scaled(llama, "--rope_scaling", text)
    assert config.rope_parameters == {
        "rope_type": "yarn",
        "factor": 2.0,
        "beta_fast": 16,
        "original_max_position_embeddings": 256,
        "rope_theta": THETA,
    }
    assert config.max_position_embeddings == 512


def test_layers_with_a_window_are_left_alone(tmp_path: Path) -> None:
    make_config("gemma3_text").save_pretrained(tmp_path)
    config = scaled(tmp_path, "--rope_scaling", "linear", "--rope_factor", "8")
    assert config.rope_parameters["full_attention"]["factor"] == 8.0
    assert config.rope_parameters["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--rope_scaling", "cubic"), "no rope scaling 'cubic'"),
        (("--rope_scaling", "linear", "--rope_factor", "0.5"), "would shrink"),
        (("--rope_factor", "2"), "a factor without a kind"),
        (("--rope_scaling", '{"rope_type": "yarn"'), "not valid JSON"),
        (("--rope_scaling", '{"factor": 2}'), "no rope_type"),
        (("--rope_scaling", '{"rope_type": "linear"}'), "Missing required keys"),
    ],
)
def test_nonsense_is_refused(llama: Path, flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        scaled(llama, *flags)


def test_a_model_without_rotary_positions(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ArgumentError, match="gpt2 has no rotary positions"):
        scaled(tmp_path, "--rope_scaling", "linear", "--rope_factor", "2")


@pytest.mark.parametrize("name", few_quick())
def test_every_architecture(name: str, tmp_path: Path) -> None:
    """A scaled config makes a model that computes something else, or is refused with what it takes instead."""
    make_config(name).save_pretrained(tmp_path)
    kind = ("linear", "yarn", "llama3")[ARCHITECTURES.index(name) % 3]
    flags = ("--rope_scaling", kind, "--rope_factor", "4")
    if name == "phi3":
        with pytest.raises(ArgumentError, match="must be one of \\['longrope'\\]"):
            scaled(tmp_path, *flags)
        return
    ids = torch.arange(3, 40)[None]
    out: list[Any] = []
    for config in (make_config(name), scaled(tmp_path, *flags)):
        torch.manual_seed(0)
        with torch.no_grad():
            out.append(AutoModelForCausalLM.from_config(config).eval()(ids).logits)
    assert (out[0] - out[1]).abs().max() > 1e-3
