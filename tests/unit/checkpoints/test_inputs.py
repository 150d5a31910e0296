"""What a run was made from: the values of arguments that name paths, and of no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hftune.checkpoints import integrity
from hftune.checkpoints.file_records import changed_input
from hftune.checkpoints.inputs import READ, inputs_of, paths_of, record_inputs
from hftune.checkpoints.integrity import checkpoint_fault
from hftune.checkpoints.manifest import write_manifest
from hftune.digests import record_files
from hftune.weight_files import fingerprint
from tests.unit.arguments.test_ranges import CLASSES
from tests.unit.merging.models import store

_OTHERS = """
activation_checkpointing activation_checkpointing_kwargs activation_checkpointing_layers adapter adapter_weights
alpha_pattern api_key attn_implementation bnb_4bit_quant_storage cache_dir cache_implementation chat_template_kwargs
checkpoint columns commit_message converter data_cache_dir dataset_kwargs dataset_name dataset_text_field datasets debug
ds_resolved eos_token eval_strategy eval_tasks exclude_modules experts_implementation f_divergence_type fp8
freeze_extra_modules freeze_parameters freeze_parameters_regex freeze_trainable_modules fsdp generation_kwargs
gguf_file gradient_checkpointing_kwargs hf_hub_model_id hf_hub_token host hub_model_id hub_revision hub_strategy
hub_token importance_sampling_level include_for_metrics include_num_input_tokens_seen init_lora_weights input
judge_model judge_url label_names length_column_name liger_kernel_config log_completions_hub_repo logging_strategy
lora_modules_to_save lora_target_modules lora_target_parameters loss_type lr_scheduler_kwargs lr_scheduler_type
max_shard_size metric_for_best_model model model_init_kwargs model_revision multi_objective_aggregation nvme_path optim
optim_args optim_target_modules output output_dir pad_to_multiple_of pad_token project questions rank_pattern report_to
resume_from_checkpoint reward_cache rope_scaling run_name save_strategy scale_rewards served_model_name server_model
server_url step_separator system system_prompt target_regex teacher_model_init_kwargs teacher_model_revision
teacher_server_url torch_compile_backend torch_compile_mode trackio_bucket_id trackio_space_id trackio_static_space_id
train_dataset_prob trainable_parameters trainable_parameters_regex transformers_continuous_batching_config
vllm_importance_sampling_mode vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host
vllm_structured_outputs_regex weights
"""
OTHERS = _OTHERS.split()
"""Texts that name no file a manifest's `inputs` should hold: words, names on the Hub, and what is written to. `score`,
`consolidate` and `serve` write no inputs: `model` is theirs, and another tool's name for a path elsewhere."""


def texts() -> set[str]:
    """Arguments whose value may be a text other than one of a few words."""
    found = (entry for cls in CLASSES for entry in fields(cls) if "choices" not in entry.metadata)
    return {entry.name for entry in found if re.search(r"\bstr\b|dict|Path|Any", str(entry.type))}


def test_each_text_either_names_a_path_or_does_not() -> None:
    assert not READ & {*OTHERS}
    assert texts() - READ - {*OTHERS} == set(), "say of a new argument which it is"
    assert READ - texts() == set()


@pytest.mark.parametrize(
    "name", sorted({*OTHERS} - {"model"} | {"lr_decay_style", "hub-token", "output-dir", "save", "tracker"})
)
def test_a_folder_of_the_name_of_a_value_is_no_input(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linear").mkdir()
    (tmp_path / "linear" / "thesis.txt").write_text("x")
    assert record_inputs([f"--{name}", "linear", f"--{name}=linear", f"--{name}", "./linear"]) == {}


@pytest.mark.parametrize(
    "name",
    sorted(
        [*READ, "model", "dataset", "train_dataset_path", "val_dataset", "sft_model_path", "ckpt_load_path"]
        + [name.replace("_", "-") for name in READ]
    ),
)
def test_what_a_path_names_is_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linear").mkdir()
    (tmp_path / "linear" / "rows.txt").write_text("x")
    assert [*record_inputs([f"--{name}", "linear"])] == ["linear"]


def test_the_config_file_is_one_and_names_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("cosine", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.txt").write_text("x")
    (tmp_path / "run.yaml").write_text("lr_scheduler_type: cosine\ntrain_file_dir: [data#5, none]\nseed: 3\n")
    assert [*record_inputs(["--config", "run.yaml"])] == ["run.yaml", "data"]
    assert [*paths_of(["--deepspeed", "zero2", "--reward_funcs", "own.py:f"])][-1] == "own.py"


def test_the_file_of_a_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    argv = ["--callbacks", 'mine.py:Mine{"a": "b,c", "d": 1}', "mine.py:Other", "transformers:EarlyStoppingCallback"]
    assert [*paths_of(argv)] == ["mine.py", "mine.py"]


def test_what_parsed_arguments_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders that are there, and what adapters lie upon; no texts, however long, and no names of the Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("base", "below", "adapter", "plain", "data", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "q.txt").write_text("")
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": ""}')
    (tmp_path / "plain" / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    write_manifest(tmp_path / "adapter", {"base": {"name": str(tmp_path / "base"), "adapters": ["below"]}})

    def read(**values: object) -> set[str]:
        return {path.resolve().name for path in inputs_of(SimpleNamespace(), SimpleNamespace(**values))}

    assert read(peft_path="adapter,data", other="code", include_path="code") == {"adapter", "data", "base", "below"}
    assert read(models=["plain", "owner/name", "zero2"], questions=["q.txt", "Why? " * 500, "1/2"]) == {
        *("plain", "base", "q.txt"),
    }
    assert read(train_file_dir="~/data#5,gone", model=None, deepspeed={"a": 1}) == {"data"}
    assert read(train_file_dir="data@train", validation_file_dir="~/code@test") == {"data", "code"}
    (tmp_path / "my data").mkdir()
    assert read(train_file_dir="data code") == {"data", "code"} and "my data" in read(train_file_dir="my data#3")
    for manifest in ({"base": "x"}, {"base": {"adapters": 5, "name": 7}}):
        write_manifest(tmp_path / "adapter", manifest)
        assert read(model="adapter") == {"adapter"}
    (tmp_path / "plain" / "adapter_config.json").write_text("{")
    assert read(model="plain") == {"plain"}


def test_a_model_is_known_by_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    store(folder, {"a": torch.ones(2)})
    recorded = {"model": fingerprint(folder)}
    assert list(changed_input(str(folder), recorded)) == []
    store(folder, {"a": torch.zeros(2)})
    assert list(changed_input(str(folder), recorded)) == [f"the model in {folder} is another one"]
    gone = str(tmp_path / "gone")
    assert list(changed_input(gone, recorded)) == list(changed_input(gone, {"files": {}})) == [f"{gone} is gone"]


def test_records_are_known_by_their_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("1\n")
    recorded = {"files": record_files({"a.jsonl": folder / "a.jsonl"})}
    assert list(changed_input(str(folder), recorded, whole=True)) == []
    (folder / "b.jsonl").write_text("2\n")
    assert list(changed_input(str(folder), recorded)) == [f"{folder / 'b.jsonl'} is new"]
    (folder / "b.jsonl").unlink()
    (folder / "a.jsonl").write_text("333\n")
    assert list(changed_input(str(folder), recorded)) == [f"{folder / 'a.jsonl'} has 4 bytes, not 2"]
    assert list(changed_input(str(folder / "a.jsonl"), recorded)) == [f"{folder / 'a.jsonl'} has 4 bytes, not 2"]


@pytest.mark.parametrize(
    ("tag", "files", "fault"),
    [
        ("global_step4", ["global_step4/a.pt"], None),
        ("global_step4", [], "DeepSpeed had not finished writing it"),
        ("../other", ["global_step4/a.pt"], "DeepSpeed had not finished writing it"),
        (None, ["global_step4/a.pt"], "DeepSpeed had not finished writing it"),
    ],
)
def test_a_tag_must_lead_to_a_state(tmp_path: Path, tag: str | None, files: list[str], fault: str | None) -> None:
    (tmp_path / "global_step4").mkdir()
    for name in files:
        (tmp_path / name).touch()
    if tag is not None:
        (tmp_path / "latest").write_text(f"{tag}\n")
    assert integrity._without_record(tmp_path) == fault
    (tmp_path / "latest").write_bytes(b"x" * 5000)
    assert "latest" in str(integrity._without_record(tmp_path)), "no file of a tag is so long"


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_fault(tmp_path / "gone") == "there is no such folder"
    assert integrity._without_record(tmp_path) == "it has no weights"
    (tmp_path / "pytorch_model.bin").touch()
    assert integrity._without_record(tmp_path) is None
