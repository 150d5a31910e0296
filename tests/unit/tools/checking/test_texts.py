"""What is found in the text of one record, and what is not."""

from __future__ import annotations

import pytest

from hftune.tools.checking import records as texts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello<|endoftext|>", True),
        ("[INST] Hi [/INST]", True),
        ("<<SYS>> x", True),
        ("<｜User｜>Hi", True),
        ("<start_of_turn>model", True),
        ("the end</s>", True),
        ("<s>struck</s> text", False),  # HTML
        ("a <| b |> c", False),
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
        ("今天天气".encode().decode("latin-1"), "mojibake"),
        ("Größe, café, naïve; Привет; 今天“天气”很好——真的。", ""),
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
