"""What cannot be merged is refused before anything is written; what would be wrong never gets into place."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hftune.errors import UserError
from hftune.merging import tensors
from hftune.publishing.folder import work_folder
from tests.unit.merging.models import (
    ATTENTION,
    IDS,
    adapted_logits,
    load_plain,
    make_adapter,
    merge,
    merged_logits,
    settings,
)
from tests.unit.merging.test_exact import digests


@pytest.fixture
def base(make_base: Callable) -> Path:
    return make_base("llama")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)


def edit(adapter: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite an adapter's weights."""
    save_file(change(load_file(adapter / "adapter_model.safetensors")), adapter / "adapter_model.safetensors")


def refused(adapter: Path | str, tmp_path: Path, *words: str, **arguments: object) -> str:
    """Merging fails with all of `words`, and leaves nothing behind."""
    with pytest.raises(UserError) as error:
        merge(adapter, tmp_path / "merged", **arguments)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert not (tmp_path / "merged").exists() and not work_folder(tmp_path / "merged").exists()
    return message


def test_a_merge_that_changes_nothing(adapter: Path, tmp_path: Path) -> None:
    edit(adapter, lambda found: {k: v * 0 if "lora_B" in k else v for k, v in found.items()})
    refused(adapter, tmp_path, "changes nothing")


def test_an_adapter_that_rounding_swallows(make_base: Callable, tmp_path: Path) -> None:
    base = make_base("llama", dtype=torch.bfloat16)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    edit(adapter, lambda found: {k: v * 1e-9 if "lora_B" in k else v for k, v in found.items()})
    refused(adapter, tmp_path, "changes nothing", "too small for the dtype")


def test_names_of_another_model(adapter: Path, tmp_path: Path) -> None:
    edit(adapter, lambda found: {k.replace("self_attn", "attention"): v for k, v in found.items()})
    refused(adapter, tmp_path, "does not fit", "model.layers.0.attention.")


def test_names_that_peft_would_pass_over(adapter: Path, tmp_path: Path) -> None:
    """LF6105: peft warns and goes on where a part of an adapter belongs nowhere."""
    config = settings(adapter, "adapter_config.json") | {"use_something_new": True}  # so that peft merges
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    edit(adapter, lambda found: {k.replace("layers.1.self_attn", "layers.1.attention"): v for k, v in found.items()})
    refused(adapter, tmp_path, "does not fit", "layers.1.attention")


def test_shapes_of_another_model(make_base: Callable, adapter: Path, tmp_path: Path) -> None:
    other = make_base("llama", hidden_size=64)
    refused(adapter, tmp_path, "does not fit", "more)", base_model_name_or_path=str(other))


def test_vocabulary_of_another_size(base: Path, tmp_path: Path) -> None:
    """MG322, LF5262: embeddings have grown, the head has not."""
    adapter = make_adapter(base, tmp_path / "a", rows=352, target_modules=ATTENTION, modules_to_save=["embed_tokens"])
    edit(adapter, lambda found: {k: v for k, v in found.items() if "lm_head" not in k})
    refused(adapter, tmp_path, "352 embeddings", f"the head would have {settings(base)['vocab_size']} rows")


def test_empty_tensors(base: Path, adapter: Path, tmp_path: Path) -> None:
    """MG193, LF253, LF2189: what a ZeRO-3 run leaves that saves without gathering."""
    broken = tmp_path / "base"
    shutil.copytree(base, broken)
    stored = load_file(broken / "model.safetensors")
    stored["lm_head.weight"] = torch.empty(0)
    save_file(stored, broken / "model.safetensors")
    refused(adapter, tmp_path, "is empty", "lm_head.weight", base_model_name_or_path=str(broken))
    edit(adapter, lambda found: {k: torch.empty(0) for k in found})
    refused(adapter, tmp_path, "is empty", "size 0", "ZeRO-3")


def test_nan_and_overflow(base: Path, adapter: Path, tmp_path: Path) -> None:
    edit(adapter, lambda found: {k: v * 1e7 if "lora_B" in k else v for k, v in found.items()})
    refused(adapter, tmp_path, "too large for F16", "bfloat16", dtype="float16")
    edit(
        adapter,
        lambda found: {k: v * float("nan") if "1.self_attn.o_proj.lora_B" in k else v for k, v in found.items()},
    )
    refused(adapter, tmp_path, "NaN", "o_proj")


def test_cut_off_and_missing_files(make_base: Callable, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(make_base("llama", shard="60KB"), base)
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)
    last = sorted(base.glob("*.safetensors"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-100])
    refused(adapter, tmp_path, "cannot be read", last.name)
    last.unlink()
    refused(adapter, tmp_path, f"lacks {last.name}")


def test_output_folders(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which is read"):
        merge(adapter, tmp_path)
    with pytest.raises(UserError, match="which is read"):
        merge(adapter, base, overwrite_output_dir=True)
    output = tmp_path / "notes"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"hftune did not write: mine.txt"):
            merge(adapter, output, overwrite_output_dir=overwrite)
        assert (output / "mine.txt").read_text() == "mine" and [*output.iterdir()] == [output / "mine.txt"]
    (output / "mine.txt").unlink()
    merge(adapter, output)
    with pytest.raises(UserError, match="already holds a finished result"):
        merge(adapter, output)
    merge(adapter, output, overwrite_output_dir=True)
    assert merged_logits(output) is not None


def test_no_room_on_the_disk(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("hftune.publishing.disk.shutil.disk_usage", lambda path: usage)
    refused(adapter, tmp_path, "needs 0.00 GB", "has 0.00 GB left", "--dtype bfloat16")


def test_a_disk_that_fills_up_leaves_nothing(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        merge(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists() and not work_folder(tmp_path / "merged").exists()


# --- what peft has to do ---------------------------------------------------------------------------------------------


def test_other_kinds_of_adapters_go_through_peft(base: Path, tmp_path: Path) -> None:
    from peft import IA3Config, get_peft_model

    config = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(load_plain(base), config)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.3)
    adapted.save_pretrained(tmp_path / "ia3")
    manifest = merge(tmp_path / "ia3", tmp_path / "merged")
    assert manifest["merged_by"] == "peft"
    assert any("of type IA3" in said for said in manifest["notices"])
    with torch.no_grad():
        torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted.eval()(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_initialisations_that_change_the_base(init: str, base: Path, tmp_path: Path) -> None:
    """Unconverted they go through peft, which changes the base again as it loads."""
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION, init_lora_weights=init)
    manifest = merge(adapter, tmp_path / "merged")
    assert manifest["merged_by"] == "peft" and any(init in said for said in manifest["notices"])
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted_logits(base, adapter), atol=1e-4, rtol=1e-4)


def test_a_converted_initialisation_is_plain_lora(base: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(load_plain(base), LoraConfig(r=4, target_modules=ATTENTION, init_lora_weights="pissa"))
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(tmp_path / "start")
    adapted.peft_config["default"].init_lora_weights = "pissa"
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
        wanted = adapted.eval()(IDS).logits
    adapted.save_pretrained(tmp_path / "adapter", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    assert merge(tmp_path / "adapter", tmp_path / "merged", base_model_name_or_path=str(base))["merged_by"] == "hftune"
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), wanted, atol=1e-4, rtol=1e-4)


def test_a_base_in_bin_files(base: Path, adapter: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(base, old)
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(old))
    assert manifest["merged_by"] == "peft"
    merge(adapter, tmp_path / "ours")
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), merged_logits(tmp_path / "ours"))


def test_a_base_in_a_gguf_file(base: Path, adapter: Path, tmp_path: Path) -> None:
    from tests.unit.models.loading.test_config import write_gguf

    folder = tmp_path / "gguf"
    folder.mkdir()
    write_gguf(base, folder)
    manifest = merge(adapter, tmp_path / "merged", base_model_name_or_path=str(folder / "tiny.gguf"), verify="true")
    assert manifest["merged_by"] == "peft" and any("GGUF" in said for said in manifest["notices"])
    assert manifest["verified"]["largest"] < 1e-4
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted_logits(base, adapter), atol=1e-4, rtol=1e-4)


def test_a_base_on_the_hub(base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(name: str, **options: object) -> str:
        asked.append((name, options["revision"]))
        return str(base)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    config = settings(adapter, "adapter_config.json") | {"base_model_name_or_path": "someone/tiny", "revision": "v2"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    manifest = merge(adapter, tmp_path / "merged")
    assert asked == [("someone/tiny", "v2")] and manifest["base"]["fingerprint"] == "hub:someone/tiny"
    torch.testing.assert_close(merged_logits(tmp_path / "merged"), adapted_logits(base, adapter), atol=1e-5, rtol=1e-5)


def test_bases_that_are_not_there(base: Path, adapter: Path, tmp_path: Path) -> None:
    refused(adapter, tmp_path, "there is no folder ./nowhere", base_model_name_or_path="./nowhere")
    refused(adapter, tmp_path, "there is no folder someone/tiny here", base_model_name_or_path="someone/tiny")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(adapter, tmp_path, "it has no config.json", base_model_name_or_path=str(empty))
    (empty / "config.json").write_bytes((base / "config.json").read_bytes())
    refused(adapter, tmp_path, "no model could be loaded", "model.safetensors", base_model_name_or_path=str(empty))


# --- killed ----------------------------------------------------------------------------------------------------------


_WRITES = {os: ("fsync", "replace"), shutil: ("copyfile",), tensors: ("raw",)}


def count_writes(reached: Callable[[], None]) -> None:
    """Call `reached` before and after everything that changes the disk (`raw`: of a tensor), in this process."""

    def around(function: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            reached()
            result = function(*args, **kwargs)
            reached()
            return result

        return call

    for module, names in _WRITES.items():
        for name in names:
            setattr(module, name, around(getattr(module, name)))


def merge_in_a_child(adapter: Path, output: Path, die_at: int | None) -> int:
    """Merge in a forked process that kills itself at a point; without one, return how many points there are."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        points = 0

        def reached() -> None:
            nonlocal points
            points += 1
            if points == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        count_writes(reached)
        merge(adapter, output)
        os.write(send, points.to_bytes(4, "little"))
        os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive, "rb") as pipe:
        return int.from_bytes(pipe.read(), "little")


@pytest.mark.long
def test_killed_at_twenty_random_points(base: Path, adapter: Path, tmp_path: Path) -> None:
    """What is in place is nothing or the whole result; the next merge removes what is left of a killed one."""
    points = merge_in_a_child(adapter, tmp_path / "reference", None)
    assert points > 40
    wanted, seen = digests(tmp_path / "reference"), []
    # The last points lie after the folder has been put in its place.
    for number, point in enumerate([*random.Random(0).sample(range(1, points - 3), 18), points - 1, points]):
        output = tmp_path / f"merged{number}"
        merge_in_a_child(adapter, output, point)
        seen.append(output.exists())
        if output.exists():
            assert settings(output, "hftune.json")["status"] == "complete" and digests(output) == wanted
        assert work_folder(output).exists()
        merge(adapter, output, overwrite_output_dir=output.exists())
        assert digests(output) == wanted and not work_folder(output).exists()
    assert seen == [False] * 18 + [True] * 2


def with_layers(base: Path, folder: Path, layers: int) -> str:
    """The base with another number of layers in its config.json."""
    shutil.copytree(base, folder)
    config = settings(folder) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(("layers", "words"), [(1, "model.layers.1."), (3, "nothing is stored of layer 2")])
def test_a_base_with_the_config_of_another_model(
    layers: int, words: str, base: Path, adapter: Path, tmp_path: Path
) -> None:
    other = with_layers(base, tmp_path / "other", layers)
    said = f"config.json says {layers} layers"
    refused(adapter, tmp_path, "different models", said, words, "--base_model", base_model_name_or_path=other)
