"""What is found in the text of one record, and what is not."""

from __future__ import annotations

import pytest

from hftune.tools.checking import records as texts

LONG = (
    "The first point is clear. The second one takes longer to explain, since it rests on the first. The third is new. "
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (LONG + "And so we come to the end of what there is to say about the", "with the word the"),
        ("Here is what you need to do, step by step,", "ends with ,"),
        ("下面是你需要的全部步骤，请按照顺序仔细地完成这些操作，并且注意安全：", "ends with ："),
        ("Use this function for it:\n```python\ndef f(x):\n    return x", "code is not closed"),
        (LONG + "After that the river turns to the north and runs through three more villages", "has no end"),
        (LONG, ""),
        ("Short,", ""),
        ("Use this function for it:\n```python\ndef f(x):\n    return x\n```", ""),
        (LONG + "\n- apples and other fruit that grows in the garden behind the house of my aunt", ""),
        (LONG + "\n\nWith best regards,\nJohn", ""),
        ("Paris is the capital of France and the largest city", ""),  # two sentences are no prose
        (LONG + "This is the one that all of them were waiting for: **the end**", ""),
    ],
)
def test_answers_cut_off(answer: str, words: str) -> None:
    found = texts.cut_off(answer)
    assert words in found and bool(found) == bool(words)


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, but I can't help with that.",
        "I cannot assist with this request.",
        "Sorry, I can't do that.",
        "I am sorry, but as an AI language model I have no access to it.",
        "对不起，我无法回答这个问题。",
        "抱歉，但作为一个人工智能语言模型，我不能提供这些信息。",
        "很抱歉，我目前不能完成这个任务。",
    ],
)
def test_refusals(answer: str) -> None:
    assert texts.refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "I can help with that.",
        "You cannot assist them.",
        "他很抱歉，所以走了。",
        "Paris." * 60 + "I cannot assist with it",
    ],
)
def test_no_refusals(answer: str) -> None:
    assert not texts.refusal(answer)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("As an AI language model, I have no opinion.", True),
        ("我是由OpenAI训练的大型语言模型。", True),
        ("作为一个人工智能语言模型，我没有观点。", True),
        ("My knowledge cutoff is 2021.", True),
        ("OpenAI is a company in San Francisco.", False),
        ("人工智能是一门科学，语言模型是其中一种。", False),
    ],
)
def test_boilerplate(text: str, found: bool) -> None:
    assert bool(texts.boilerplate(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|im_start|>user", True),
        ("Hello<|endoftext|>", True),
        ("[INST] Hi [/INST]", True),
        ("<<SYS>> x", True),
        ("<｜User｜>Hi", True),
        ("<start_of_turn>model", True),
        ("the end</s>", True),
        ("<s>struck</s> text", False),  # HTML
        ("a <| b |> c", False),
        ("if (a <b> c)", False),
        ("[INSTALL]", False),
    ],
)
def test_control_tokens(text: str, found: bool) -> None:
    assert bool(texts.control_token(text)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lost \ufffd here", "U+FFFD"),
        ("锟斤拷锟斤拷", "锟斤拷"),
        ("The cafÃ© is open, isnâ€™t it?".replace("â€™", "â\x80\x99"), "mojibake"),
        ("Größe und Café".encode().decode("latin-1"), "mojibake"),
        ("今天天气".encode().decode("latin-1"), "mojibake"),
        ("Größe, café, naïve, señor", ""),
        ("Привет, как дела?", ""),
        ("今天“天气”很好——真的。", ""),
        ("plain", ""),
    ],
)
def test_damage(text: str, words: str) -> None:
    found = texts.damage(text)
    assert words in found and bool(found) == bool(words)
    # Whatever stands before it.
    assert bool(texts.damage("天气" * 50 + text)) == bool(words)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key hf_" + "aB3" * 10, "hf***"),
        ("AKIA" + "A1B2C3D4E5F6G7H8", "AK***"),
        ("Authorization: Bearer abcdef0123456789abcdef", "Be***"),
        ("https://me:hunter22222@host/x", "hu***"),
        ("a sk-etch of hf_ and Bearer authentication", ""),
    ],
)
def test_secrets_are_found_by_their_form_and_not_shown(text: str, shown: str) -> None:
    assert texts.secret(text) == (f"the text holds {shown}" if shown else "")
