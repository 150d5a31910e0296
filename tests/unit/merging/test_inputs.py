"""What a command and the manifests behind it name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.arguments.merging import MergeArguments
from hftune.checkpoints.manifest import finish_manifest
from hftune.errors import UserError
from hftune.merging import inputs as inputs_module
from hftune.merging.adapters import ADAPTER_WEIGHTS, PREFIX, Adapter
from hftune.merging.inputs import (
    BaseFolder,
    Inputs,
    _labels,
    find_base,
    find_tokenizer,
    read_config,
    read_inputs,
    with_rope,
)
from hftune.models.vocabulary import Growth
from tests.unit.merging.models import ATTENTION, make_adapter, store


@pytest.fixture(scope="module")
def base(make_base: Callable) -> Path:
    return make_base("llama")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION)


def read(*adapters: Path, **arguments: Any) -> Inputs:
    paths = ",".join(map(str, adapters))
    output = str(adapters[0].parent / "merged") if adapters else "merged"
    return read_inputs(MergeArguments(**{"peft_model_path": paths, "output_dir": output} | arguments))


def write_manifest(folder: Path, **manifest: Any) -> None:
    (folder / "hftune.json").write_text(json.dumps({"status": "complete"} | manifest))


@pytest.mark.parametrize(
    ("origin", "flags"), [("s3://bucket/base", "s3://bucket/base"), ("owner/base", "owner/base --hub modelscope")]
)
def test_a_base_whose_copy_is_gone(adapter: Path, base: Path, tmp_path: Path, origin: str, flags: str) -> None:
    gone = str(tmp_path / "copy")
    write_manifest(adapter, base={"name": gone}, origins={gone: origin, str(base): "s3://bucket/other"})
    with pytest.raises(UserError, match=f"trained on a copy of {origin}") as found:
        read(adapter)
    assert str(found.value.fix).endswith(f"--base_model_name_or_path {flags}")
    assert read(adapter, base_model_name_or_path=str(base)).base.folder == base


def test_the_base_that_the_adapter_names(adapter: Path, base: Path) -> None:
    inputs = read(adapter)
    assert inputs.base.folder == base and inputs.base.unsupported is None
    assert inputs.head == "causal_lm" and inputs.scores is None and inputs.dtype is None
    assert [one.folder for one in inputs.adapters] == [adapter] and inputs.last.weight == 1.0


def test_no_base_at_all(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(UserError, match="does not name its base"):
        read(adapter)


@pytest.mark.parametrize(
    ("weights", "words"),
    [("0.5", "2 adapters and 1 weights"), ("a,b", "could not convert"), ("1,nan", "between"), ("1,1001", "between")],
)
def test_weights(weights: str, words: str, adapter: Path) -> None:
    with pytest.raises(UserError, match=words):
        read(adapter, adapter, adapter_weights=weights)
    assert [one.weight for one in read(adapter, adapter, adapter_weights="0.5,-1e3").adapters] == [0.5, -1000.0]


def test_every_missing_adapter_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path / "one", tmp_path / "two")
    assert "one" in str(error.value) and "two" in str(error.value)
    with pytest.raises(UserError, match="no adapter was named") as error:
        read()
    assert error.value.place == "--peft_model_path"


def test_what_is_wrong_is_said_at_once(adapter: Path, base: Path, tmp_path: Path) -> None:
    """An output that holds something else, a base of other weights, a quantisation that there was not."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    write_manifest(adapter, base={"name": str(base), "fingerprint": "another"})
    with pytest.raises(UserError) as error:
        read(adapter, output_dir=str(tmp_path / "taken"), merge_base="dequantized")
    for words in ("mine.txt", "trained on other weights", "names no quantisation"):
        assert words in str(error.value)


@pytest.mark.parametrize(("adapters", "weights", "said"), [(1, None, 0), (2, None, 1), (2, "1,1", 0), (1, "2", 0)])
def test_adapters_whose_weights_nobody_gave_are_said(
    adapters: int, weights: str | None, said: int, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(inputs_module, "notice", notices.append)
    read(*[adapter] * adapters, adapter_weights=weights)
    assert [one.startswith(f"{adapters} adapters are added with weight 1") for one in notices] == [True] * said


def test_adapters_below(base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(inputs_module, "notice", said.append)
    read(adapter)
    assert said == []
    upper = make_adapter(base, tmp_path / "upper", target_modules=ATTENTION)
    write_manifest(upper, base={"name": str(base), "adapters": [str(adapter)]})
    levels = read(upper, adapter_weights="0.5").levels
    assert [[(one.folder, one.weight) for one in level] for level in levels] == [[(adapter, 1.0)], [(upper, 0.5)]]
    assert [one.endswith(f"{adapter}, merged first") for one in said] == [True]
    with pytest.raises(UserError, match="trained on different adapters"):
        read(upper, adapter)


def test_dequantising_needs_a_quantised_run(adapter: Path, base: Path) -> None:
    with pytest.raises(UserError, match="names no quantisation"):
        read(adapter, merge_base="dequantized")
    how = {"bits": 4, "type": "nf4", "nested": True}
    for training, model, compute in (
        ({"bf16": True}, {}, "bfloat16"),
        ({"fp16": True}, {"dtype": "auto"}, "float16"),
        ({}, {"dtype": "bfloat16"}, "bfloat16"),
        ({}, {}, "float32"),
        (None, None, "float32"),
    ):
        arguments = {"training": training, "model": model} if training is not None else {}
        write_manifest(adapter, base={"name": str(base)}, quantisation=how, arguments=arguments)
        assert read(adapter, merge_base="dequantized").quantised == {**how, "compute": compute}
    write_manifest(adapter, base={"name": str(base)}, quantisation=how)
    assert read(adapter).quantised == {**how, "compute": "float32"} and not read(adapter).dequantise


def test_positions_of_training(adapter: Path, base: Path) -> None:
    rope = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    write_manifest(adapter, base={"name": str(base)}, rope=rope)
    assert read(adapter).config["rope_parameters"] == rope["rope_parameters"]
    old = {"rope_theta": 1, "rope_scaling": None, "kept": 2}
    assert with_rope(old, rope) == {"kept": 2} | rope
    assert with_rope({"text_config": old, "rope_theta": 3}, rope) == {
        "text_config": {"kept": 2} | rope,
        "rope_theta": 3,
    }


def test_positions_of_a_chain_are_those_of_all_its_runs(adapter: Path, base: Path, tmp_path: Path) -> None:
    """What a later one says counts; what it does not say stays."""
    stretched = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    write_manifest(adapter, base={"name": str(base)}, rope={"rope_parameters": stretched, "max_positions": 1024})
    upper = make_adapter(base, tmp_path / "upper", target_modules=ATTENTION)
    below = {"name": str(base), "adapters": [str(adapter)]}
    for later, positions in (({"max_positions": 2048}, 2048), ({}, 1024)):
        write_manifest(upper, base=below, rope=later)
        inputs = read(upper)
        assert inputs.rope == {"rope_parameters": stretched, "max_positions": positions}
        assert inputs.config["rope_parameters"] == stretched and inputs.config["max_positions"] == positions


def test_a_vocabulary_grows_once_in_a_chain(tmp_path: Path) -> None:
    """Before the first run that says so: those upon it begin with its rows."""
    first, later = (Growth(base_rows=4, rows=rows, ids=[4]) for rows in (5, 8))

    def grown(*growths: Growth | None) -> Growth | None:
        folders = [tmp_path / str(number) for number in range(len(growths))]
        for folder, growth in zip(folders, growths, strict=True):
            folder.mkdir(exist_ok=True)
            write_manifest(folder, kind="adapter", vocabulary={"growth": growth and growth.to_json()})
        return Inputs(BaseFolder("b", tmp_path), {}, [[Adapter(folder)] for folder in folders], tmp_path).growth

    assert grown(None) is None and grown(None, first, later) == first


def test_a_scale_holds_for_one_whole_adapter(adapter: Path, base: Path) -> None:
    write_manifest(adapter, base={"name": str(base)}, reward_scale={"mean": 1.0})
    assert read(adapter).reward_scale == {"mean": 1.0}
    assert read(adapter, adapter_weights="0.5").reward_scale is None
    assert read(adapter, adapter).reward_scale is None


def test_only_lora_has_weights(base: Path, adapter: Path, tmp_path: Path) -> None:
    """What was trained in full, DoRA's lengths and single rows are no sum; alone and whole each is merged."""
    assert read(adapter, adapter).weighs and read(adapter, adapter_weights="0.5").weighs and not read(adapter).weighs
    for name, config, words in (
        ("whole", {"modules_to_save": ["lm_head"]}, r"lm_head\.weight"),
        ("dora", {"use_dora": True}, "DoRA"),
        ("rows", {"trainable_token_indices": [3]}, "rows of single tokens"),
    ):
        other = make_adapter(base, tmp_path / name, target_modules=ATTENTION, **config)
        assert not read(other).weighs
        for given in ({"adapter_weights": "0.5"}, {}):
            folders = (other,) if given else (adapter, other)
            with pytest.raises(UserError, match=f"{name} is more than LoRA .*{words}"):
                read(*folders, **given)


def test_bases_that_only_transformers_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="is a GGUF file"):
        find_base(str(tmp_path / "model.gguf"))
    assert find_base(str(tmp_path)).unsupported == "it has no safetensors files"
    (tmp_path / "model.bin").write_bytes(b"")
    monkeypatch.setattr(inputs_module, "_download", lambda *asked: tmp_path / "downloaded")
    for name in ("owner/gone.gguf", str(tmp_path / "model.bin")):
        other = find_base(name)
        assert (other.name, other.folder) == (name, tmp_path / "downloaded")


def test_sizes_that_no_base_has_are_said_of_the_flag_that_named_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 10**9}))
    with pytest.raises(UserError, match=r"config\.json says 1000000000 layers") as error:
        read_config(tmp_path)
    assert "--base_model_name_or_path" in str(error.value)


def test_whose_tokenizer(tmp_path: Path) -> None:
    base, first, last, asked = (tmp_path / name for name in ("base", "first", "last", "asked"))
    for folder in (base, first, last, asked):
        folder.mkdir()
    assert find_tokenizer(None, [first, last], base) == base
    for folder in (first, last, asked):
        (folder / "tokenizer_config.json").write_text("{}")
    assert find_tokenizer(None, [first, last], base) == last
    assert find_tokenizer(str(asked), [first, last], base) == asked
    (asked / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="there is no tokenizer in"):
        find_tokenizer(str(asked), [first, last], base)


def test_what_the_command_says_of_the_merged_model(adapter: Path) -> None:
    asked = read(adapter, trust_remote_code=True, dtype="bfloat16")
    assert asked.trust_remote_code is True and asked.dtype == "bfloat16"
    assert read(adapter).trust_remote_code is False


@pytest.mark.parametrize("silent", [True, False])
def test_only_the_files_of_a_model_are_downloaded(
    silent: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A repository may hold the same weights in five formats."""
    import huggingface_hub

    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("hftune.models.loading.from_pretrained.hub_is_silent", lambda name: silent and "owner/" in name)
    found = find_base("owner/model", "v2")
    assert (found.name, found.folder) == ("owner/model", tmp_path)
    ((name, options),) = asked
    assert name == "owner/model" and options["revision"] == "v2"
    assert options["local_files_only"] is silent, "a Hub that does not answer is not waited for"
    needed = ["model.safetensors", "config.json", "vocab.txt", "spiece.model", "chat_template.jinja", "modeling.py"]
    others = ["consolidated.safetensors", "original/a.json", "onnx/a.json", "gguf/a.json", "a.bin", "a.gguf", "a.md"]
    assert [
        *huggingface_hub.utils.filter_repo_objects(
            [*needed, *others], allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
        )
    ] == needed
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert find_tokenizer("owner/other", [], Path("base")) == tmp_path
    name, options = asked[1]
    assert name == "owner/other" and options["revision"] is None
    assert "tokenizer.json" in options["allow_patterns"] and "*.safetensors" not in options["allow_patterns"]


def test_what_cannot_be_downloaded_is_named_with_its_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(name: str, **options: Any) -> str:
        raise OSError("no such repository")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    for find, flag in (
        (lambda: find_base("owner/model"), "--base_model_name_or_path"),
        (lambda: find_tokenizer("owner/model", [], tmp_path), "--tokenizer_path"),
    ):
        with pytest.raises(UserError, match="owner/model") as error:
            find()
        assert error.value.place == flag


@pytest.mark.parametrize(
    ("config", "manifest", "rows", "labels", "head"),
    [
        ({}, {}, None, None, "causal_lm"),
        ({"task_type": "SEQ_CLS"}, {}, None, 1, "score"),
        ({"task_type": "SEQ_CLS"}, {}, 3, 3, "score"),
        ({"task_type": "TOKEN_CLS"}, {}, None, 2, "steps"),
        ({}, {"head": "score"}, 1, 1, "score"),
    ],
)
def test_labels_of_a_reward_model(
    config: dict[str, Any], manifest: dict[str, Any], rows: int | None, labels: int | None, head: str, tmp_path: Path
) -> None:
    """As many as its head has rows; a head that was not saved is the one that transformers draws."""
    saved = {} if rows is None else {f"{PREFIX}score.weight": torch.ones(rows, 4)}
    store(tmp_path, saved | {f"{PREFIX}q.lora_A.weight": torch.ones(1, 1)}, ADAPTER_WEIGHTS)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))
    (tmp_path / "hftune.json").write_text(json.dumps(manifest))
    adapter = Adapter(tmp_path)
    assert _labels(adapter) == labels
    base = BaseFolder("base", tmp_path)
    assert Inputs(base, {}, [[adapter]], tokenizer=tmp_path, scores=labels).head == head


def test_every_byte_of_a_base_is_compared_with_what_was_written(tmp_path: Path) -> None:
    """Also where a file has kept its size and its time."""
    weights = store(tmp_path, {"a": torch.zeros(4)})["a"].file
    finish_manifest(tmp_path, {"status": "complete"})
    assert find_base(str(tmp_path)).unsupported is None
    before, content = weights.stat(), weights.read_bytes()
    weights.write_bytes(content[:-1] + b"\1")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="is not as hftune wrote it"):
        find_base(str(tmp_path))
