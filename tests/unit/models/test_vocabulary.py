"""Tokens that are named, rows that a model gets for them, how a manifest records them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaForCausalLM,
)

from hftune.arguments.model import GrowthArguments
from hftune.constants import MANIFEST_NAME
from hftune.errors import ArgumentError, ManifestError
from hftune.models.adapters.preparation import add_adapter
from hftune.models.loading.causal_lm import fit_to_tokenizer, load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.models.vocabulary import (
    Growth,
    add_named_tokens,
    describe_vocabulary,
    grow,
    grow_as_recorded,
    named_tokens,
    new_tokens,
    plan_growth,
    predicted_rows,
    recorded_growth,
    spans,
    vocabulary_rows,
)
from hftune.preflight.facts import resolve, take_tokenizer_of_adapter
from hftune.preflight.rules.adapters import check_vocabulary
from tests.table.tiny import VOCABULARY, model_class, tiny_config
from tests.unit.models.adapting import loaded, parsed

GROWN = Growth(base_rows=4, rows=6, ids=[3, 4])


def test_a_record_gives_the_growth_again() -> None:
    record = json.loads(json.dumps(GROWN.to_json()))
    assert record == {"base_rows": 4, "rows": 6, "ids": [[3, 4]]}
    assert Growth.from_json(record) == GROWN
    manifest = {"kind": "adapter", "vocabulary": {"growth": record, "new_tokens": [[3, 4]]}}
    assert recorded_growth(manifest) == GROWN and new_tokens(manifest) == [3, 4]
    assert spans([5, 6, 7, 9]) == [[5, 7], [9, 9]] and spans([]) == []
    # A whole model has its rows already.
    assert recorded_growth({**manifest, "kind": "full"}) is None and new_tokens(None) == []


@pytest.mark.parametrize("damaged", [[[0, 10**10]], [[3, 2]], [[1, "a"]], [7]])
def test_a_record_from_anywhere_does_not_fill_the_memory(damaged: list[object]) -> None:
    with pytest.raises(ManifestError, match=r"vocabulary\.new_tokens is not as hftune writes it"):
        new_tokens({"vocabulary": {"new_tokens": damaged}})


def test_embeddings_with_rows_that_the_head_lacks() -> None:
    with torch.device("meta"):
        mllama = MllamaForCausalLM(tiny_config("mllama").get_text_config())
        llama = model_class("llama")(tiny_config("llama"))
    assert (vocabulary_rows(mllama), predicted_rows(mllama)) == (VOCABULARY + 8, VOCABULARY)
    assert vocabulary_rows(llama) == predicted_rows(llama) == VOCABULARY


def test_the_wrapper_of_trained_rows_is_not_asked_for_a_weight() -> None:
    """It would compute one, from rows that ZeRO-3 may have partitioned."""
    model = model_class("llama")(tiny_config("llama"))
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], trainable_token_indices={"lm_head": [3]}))
    adapted.get_output_embeddings().token_adapter.get_merged_weights = None
    assert predicted_rows(adapted) == vocabulary_rows(adapted) == VOCABULARY


@pytest.mark.parametrize(
    ("name", "content", "tokens"),
    [
        ("tokens.txt", "<a>\n\n心肌 梗死\n a,b\n<a>".encode(), ["<a>", "心肌 梗死", " a,b"]),
        ("tokens.json", b'["<a>", "x\\ny"]', ["<a>", "x\ny"]),
        *(("tokens.txt", content, None) for content in (b"", b"\xff\xfe", b"\n \n")),
        ("tokens.json", b'{"<a>": 1}', None),
    ],
)
def test_lists_and_files(tmp_path: Path, name: str, content: bytes, tokens: list[str] | None) -> None:
    assert named_tokens(None, "--f") == [] and named_tokens("<a>,<b>,<a>", "--f") == ["<a>", "<b>"]
    (tmp_path / name).write_bytes(content)
    if tokens is not None:
        assert named_tokens(str(tmp_path / name), "--f") == tokens
        return
    with pytest.raises(ArgumentError, match="--f"):
        named_tokens(str(tmp_path / name), "--f")


def test_each_is_read_and_written_as_it_is_spelt(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    before = tokenizer.encode("What is 2 plus 3?")
    add_named_tokens(tokenizer, GrowthArguments(add_tokens="<ref>,心肌梗死", add_special_tokens="<tool>"))
    text = "a<ref>b 心肌梗死<tool> c"
    ids = tokenizer.encode(text)
    assert [token for token in ids if token >= 281] == [281, 282, 283]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<ref>b 心肌梗死 c"
    assert tokenizer.encode("What is 2 plus 3?") == before


def test_one_that_would_not_come_back_is_refused(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # The spelling of a byte for a byte-level decoder. "abc" is found whole although "ab" is a token: no fault.
    with pytest.raises(ArgumentError, match="use a tokenizer that has it"):
        add_named_tokens(tokenizer, GrowthArguments(add_tokens="é"))
    add_named_tokens(tokenizer, GrowthArguments(add_tokens="ab,abc"))
    assert tokenizer.decode(tokenizer.encode("ab abc")) == "ab abc"


class Tokens(dict[str, int]):
    """What of a tokenizer is asked for."""

    def get_vocab(self) -> dict[str, int]:
        return self


def fit(folder: Path, ids: dict[str, int]) -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 10}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
    tokenizer: Any = Tokens(ids)
    model_args: Any = SimpleNamespace(grows=False, model_name_or_path=str(folder))
    adapter_args: Any = SimpleNamespace(adapter_chain=())
    training_args: Any = SimpleNamespace()
    fit_to_tokenizer(model, tokenizer, model_args, adapter_args, training_args)
    return model


def test_rows_that_no_token_has_are_not_drawn(tmp_path: Path) -> None:
    """Behind the last token, and holes; the model's biases would have each answer be of these alone."""
    model = fit(tmp_path, {"a": 0, "b": 1, "c": 3, "d": 6})
    model.lm_head.bias = torch.nn.Parameter(torch.tensor([0.0, 0, 9, 0, 9, 9, 0, 9, 9, 9]))
    for config in (None, GenerationConfig(do_sample=True, top_k=0, eos_token_id=99)):  # TRL gives one of its own
        found = model.generate(torch.tensor([[0, 1]]), max_new_tokens=20, generation_config=config)
        assert found.shape[1] == 22 and set(found[0].tolist()) <= {0, 1, 3, 6}
    assert fit(tmp_path, {str(n): n for n in range(10)}).generation_config.suppress_tokens is None


def test_new_tokens_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({"vocabulary": {"new_tokens": [[3, 5]]}}))
    assert fit(tmp_path, {"a": 0}).trained_token_ids == [3, 4, 5]


pytestmark = pytest.mark.long

ADD = ("--add_tokens", "plus 3,is 1", "--add_special_tokens", "<tool>", "--pad_vocab_to_multiple_of", "64")


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tiny_model: Path, tmp_path: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=request.param)
    if not request.param:
        torch.manual_seed(1)
        torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    model.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def _check_adapter_folder(model, tokenizer, base: Path, adapter: Path, ids: torch.Tensor) -> None:
    from peft import PeftModel

    model.save_pretrained(adapter)
    tokenizer.save_pretrained(adapter)
    about = describe_vocabulary(model.get_base_model(), adapter=True)
    (adapter / "hftune.json").write_text(json.dumps({"kind": "adapter", "vocabulary": about}))
    again = AutoModelForCausalLM.from_pretrained(base)
    grow_as_recorded(again, [adapter])
    merged = PeftModel.from_pretrained(again, adapter).merge_and_unload(safe_merge=True)
    with torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
        torch.testing.assert_close(merged(ids).logits, expected, atol=1e-5, rtol=1e-5)
        merged.save_pretrained(adapter.parent / "merged")
        final = AutoModelForCausalLM.from_pretrained(adapter.parent / "merged")
        torch.testing.assert_close(final(ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_a_model_grows_with_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(folder)
    model, tokenizer = loaded("sft", folder, *ADD)
    assert len(tokenizer) == 284 and vocabulary_rows(model) == model.config.vocab_size == model.vocab_size == 320
    tables = [table(model).weight for table in (type(model).get_input_embeddings, type(model).get_output_embeddings)]
    for table, before in zip(tables, (base.get_input_embeddings(), base.get_output_embeddings()), strict=True):
        assert torch.equal(table[:281], before.weight)
        for new in (281, 319):
            torch.testing.assert_close(table[new], before.weight.mean(0), atol=1e-4, rtol=1e-4)
    assert (tables[0] is tables[1]) == base.config.tie_word_embeddings
    assert model.generation_config.suppress_tokens == list(range(284, 320))
    # What it said of old tokens it says still, and what is saved loads strictly.
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[..., :281], base(ids).logits)
        model.save_pretrained(tmp_path / "grown")
        again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "grown", output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert torch.equal(again(ids).logits, model(ids).logits)
    loss = model(torch.tensor([[281, 283, 5]]), labels=torch.tensor([[281, 283, 5]])).loss
    assert torch.isfinite(loss)


def test_a_growth_gives_the_same_rows_each_time(folder: Path) -> None:
    """On every process, and when an adapter is merged; what the run draws elsewhere stays as it was."""
    grown = []
    for seed in (1, 2):
        model = AutoModelForCausalLM.from_pretrained(folder)
        torch.manual_seed(seed)
        drawn = torch.rand(1)
        torch.manual_seed(seed)
        grow(model, Growth(281, 320))
        assert torch.equal(torch.rand(1), drawn)
        grown.append([model.get_input_embeddings().weight, model.get_output_embeddings().weight])
    assert all(torch.equal(*tables) for tables in zip(*grown, strict=True))
    assert [table.shape[0] for table in grown[0]] == [320, 320]


def test_a_larger_tokenizer_needs_the_flag(tiny_model: Path, tmp_path: Path) -> None:
    larger = AutoTokenizer.from_pretrained(tiny_model)
    larger.add_tokens(["<one>", "<two>"])
    larger.save_pretrained(tmp_path / "larger")
    with pytest.raises(ArgumentError, match=r"ids up to 282 \(283 tokens\), the model has 281 embeddings"):
        loaded("sft", tiny_model, "--tokenizer_name_or_path", str(tmp_path / "larger"))
    model, _ = loaded("sft", tiny_model, "--tokenizer_name_or_path", str(tmp_path / "larger"), "--resize_vocab")
    assert vocabulary_rows(model) == 283


def test_a_tokenizer_that_moves_ids_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    base = AutoTokenizer.from_pretrained(tiny_model)
    text = base.backend_tokenizer.to_str().replace('"<|pad|>"', '"<|qad|>"')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text(text)
    other = AutoTokenizer.from_pretrained(tmp_path / "other")
    with pytest.raises(ArgumentError, match="does not extend the model's own"):
        plan_growth(base, other, 281)
    assert plan_growth(base, base, 281) is None
    assert plan_growth(base, base, 281, multiple=256).rows == 512
    assert plan_growth(base, base, 512) is None


@pytest.mark.parametrize(
    ("flags", "moves"),
    [
        (("--use_peft",), "new rows and LoRA"),
        (("--train_new_tokens_only",), "new rows"),
        (("--use_peft", "--lora_modules_to_save", "embed_tokens", "lm_head"), "tables and LoRA"),
    ],
)
def test_only_what_should_be_trained_is(folder: Path, flags: tuple[str, ...], moves: str, tmp_path: Path) -> None:
    tied = AutoModelForCausalLM.from_pretrained(folder).config.tie_word_embeddings
    if "tables" in moves and tied:
        flags = flags[:-1]
    model, tokenizer = loaded("sft", folder, *ADD, *flags)
    assert model.get_output_embeddings().bias is None, "TRL reads it"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
    ids = torch.tensor([[281, 5, 282, 7, 283, 9, 281, 283]])
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    kinds = {"lora" if "lora_" in name else "rows" if "trainable_tokens" in name else name for name in changed}
    if "tables" in moves:
        assert {kind.rsplit(".modules_to_save", 1)[0].rsplit(".", 1)[-1] for kind in kinds} == {
            "lora",
            "embed_tokens",
            "lm_head",
        }
    else:
        assert kinds == ({"rows", "lora"} if "LoRA" in moves else {"rows"})
    # The adapter and the base's folder are all that merging needs.
    _check_adapter_folder(model, tokenizer, folder, tmp_path / "adapter", ids)


def test_an_adapter_with_new_rows_goes_on(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = loaded("sft", folder, *ADD, "--use_peft")
    model.save_pretrained(tmp_path / "first")
    tokenizer.save_pretrained(tmp_path / "first")
    about = describe_vocabulary(model.get_base_model(), adapter=True)
    (tmp_path / "first" / "hftune.json").write_text(json.dumps({"kind": "adapter", "vocabulary": about}))
    given = parsed("sft", folder, "--peft_path", str(tmp_path / "first"))
    model_args, _, adapter_args, training_args = given
    take_tokenizer_of_adapter(model_args, adapter_args)
    again = load_causal_lm(model_args, adapter_args, training_args, load_tokenizer(model_args, training_args))
    again = add_adapter(again, adapter_args, training_args)
    ids = torch.tensor([[281, 5, 283]])
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits)
    assert {name for name, one in again.named_parameters() if one.requires_grad} == {
        name for name, one in model.named_parameters() if one.requires_grad
    }
    assert describe_vocabulary(again.get_base_model(), adapter=True) == about
    flags = ("--peft_path", str(tmp_path / "first"), "--add_tokens", "<more>")
    (problem,) = check_vocabulary(resolve("sft", parsed("sft", folder, *flags)))
    assert "merge it first" in problem.fix


def test_a_reward_model_grows(tiny_model: Path) -> None:
    model, _ = loaded("rm", tiny_model, *ADD, "--train_new_tokens_only")
    trained = {name.split(".")[-3] for name, one in model.named_parameters() if one.requires_grad}
    assert vocabulary_rows(model) == 320 and trained == {"token_adapter", "modules_to_save"}
    assert torch.isfinite(model(input_ids=torch.tensor([[281, 283, 5]])).logits).all()


def test_a_quantised_base_grows(tiny_model: Path) -> None:
    model, _ = loaded("sft", tiny_model, *ADD, "--qlora")
    ids = torch.tensor([[281, 5, 282, 7]])
    model(input_ids=ids, labels=ids).loss.backward()
    rows = [parameter for name, parameter in model.named_parameters() if "trainable_tokens_delta" in name]
    assert rows and all(row.grad is not None and row.grad.abs().sum() > 0 for row in rows)


def test_a_second_table_is_refused(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.model.per_layer = torch.nn.Embedding(281, 4)
    with pytest.raises(ArgumentError, match="second table"):
        grow(model, Growth(base_rows=281, rows=283, ids=[281, 282]))


@pytest.mark.parametrize(
    ("stage", "flags", "words"),
    [
        ("rl", ("--pad_vocab_to_multiple_of", "64"), "reference model"),
        ("sft", ("--train_new_tokens_only",), "no token is new"),
        ("sft", ("--new_special_tokens", "<a>", ""), "blank token"),
    ],
)
def test_what_cannot_work_is_refused_before_loading(
    tiny_model: Path, stage: str, flags: tuple[str, ...], words: str
) -> None:
    (problem,) = check_vocabulary(resolve(stage, parsed(stage, tiny_model, *flags)))
    assert words in problem.render()


def test_lora_and_new_rows_alone_exclude_each_other(tiny_model: Path) -> None:
    with pytest.raises(ArgumentError, match="leave one out"):
        parsed("sft", tiny_model, "--use_peft", "--train_new_tokens_only")
