"""Ids of texts that spell turn borders, and of others beside them."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from hftune.data.encode import TextEncoder
from hftune.data.turn_tokens import TurnTokenGuard, encode_batch, token_ids
from tests.unit.data.helpers import (
    make_tokenizer,
    row,
    tokenise_rows,
)
from tests.unit.data.templates.test_turn_token_guard import ids_of


def test_a_border_that_is_the_unknown_token_or_normalised() -> None:
    """GPT-2's <|endoftext|> is its unknown token, too; a token added by hand may be found in normalised text only."""
    vocabulary = {"<|endoftext|>": 0, **{text: number for number, text in enumerate("<|>endoftxab#", start=1)}}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<|endoftext|>"))
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase()])
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    backend.add_tokens([AddedToken("###", normalized=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="###")
    borders = TurnTokenGuard(tokenizer)
    (found,) = encode_batch(tokenizer, [borders.document("Ab<|endoftext|>###bbb")], add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(found.ids) == [*"ab<|endoftext|>###bbb"]


def test_ids_of_several_texts_keep_their_order() -> None:
    tokenizer = make_tokenizer()
    borders = TurnTokenGuard(tokenizer)
    texts = [borders.document(text) for text in ("a", "<|endoftext|>", "b", "c<bos>")]
    found = token_ids(tokenizer, texts, add_special_tokens=False)
    assert [tokenizer.decode(ids) for ids in found] == ["a", "<|endoftext|>", "b", "c<bos>"]
    assert tokenizer.eos_token_id not in found[1] and token_ids(tokenizer, [], add_special_tokens=False) == []
    assert [one.ids for one in encode_batch(tokenizer, texts, add_special_tokens=False)] == found


def test_special_tokens_that_the_tokenizer_adds_stay() -> None:
    """A document's own BOS, which the post-processor writes."""
    from tokenizers import processors

    tokenizer = make_tokenizer()
    bos = ("<bos>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[bos])
    dataset, _ = tokenise_rows([row(text="a<bos>b")], TextEncoder(tokenizer))
    assert (
        ids_of(dataset[0]).count(tokenizer.bos_token_id) == 1 and dataset[0]["input_ids"][0] == tokenizer.bos_token_id
    )
    assert tokenizer.decode(dataset[0]["input_ids"]) == "<bos>a<bos>b<|endoftext|>"
