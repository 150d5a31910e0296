"""What flags of adapters imply, and chains of them."""

from __future__ import annotations

import pytest

from hftune.arguments.adapter import AdapterArguments
from hftune.errors import ArgumentError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (False, False, False)),
        ({"qlora": True}, (True, True, False)),
        ({"qlora": True, "load_in_8bit": True}, (True, False, True)),
        ({"load_in_4bit": True}, (False, True, False)),
        ({"peft_path": "a"}, (True, False, False)),
        ({"train_new_tokens_only": True}, (True, False, False)),
    ],
)
def test_what_flags_imply(given: dict[str, object], expected: tuple[bool, bool, bool]) -> None:
    args = AdapterArguments(**given)  # type: ignore[arg-type] # values by name
    assert (args.use_peft, args.load_in_4bit, args.load_in_8bit) == expected
    assert args.quantised == (args.load_in_4bit or args.load_in_8bit)


def test_the_last_of_a_chain_is_trained_on() -> None:
    args = AdapterArguments(peft_path="a, b,c")
    assert (args.adapter_chain, args.folded_adapters, args.continued_adapter) == (["a", "b", "c"], ["a", "b"], "c")
    assert not args.starts_as_base


def test_a_fresh_one_on_top_folds_all_of_them() -> None:
    args = AdapterArguments(peft_path="a,b", create_new_adapter=True)
    assert (args.folded_adapters, args.continued_adapter) == (["a", "b"], None)
    assert args.starts_as_base


def test_names_with_commas_and_numbers_alone() -> None:
    args = AdapterArguments(lora_target_modules=["q_proj,v_proj", "o_proj"], trainable_token_indices=3)  # type: ignore[arg-type] # as in YAML
    assert args.lora_target_modules == ["q_proj", "v_proj", "o_proj"] and args.trainable_token_indices == [3]


def test_patterns() -> None:
    args = AdapterArguments(rank_pattern='{"down_proj": 16}', alpha_pattern='{"down_proj": 0}')
    assert args.patterns("rank_pattern") == {"down_proj": 16}
    for text in ('{"down_proj": 0}', '{"down_proj": true}', '{"down_proj": 1.5}', "[16]", "16"):
        with pytest.raises(ArgumentError):
            AdapterArguments(alpha_pattern=text).patterns("alpha_pattern")
    assert AdapterArguments().patterns("rank_pattern") == {}
