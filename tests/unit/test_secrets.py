"""Secrets by name, by value and by form; what is none stays as it is."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune import secrets
from hftune.secrets import (
    MASK,
    command_without_secrets,
    masked,
    redact,
    redacted,
    says_secret,
    variable_says_secret,
    without_secrets,
)

S = "pw/Q+7='\"<é x9Kzzz"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.argv", ["pytest"])
    secrets.forget()
    yield
    secrets.forget()


SECRETS = """hub_token hub-token --hub-token HUB_TOKEN hubToken push_to_hub_token hf_hub_token token api_key api-key
comet.api_key wandb_api_key apiKey apikey OPENAI_API_KEY openai_key password db_password passwd passphrase client_secret
secret credentials private_key aws_access_key_id secret_access_key authtoken accesskey HFToken api_keys hf_tokens
PGPASSWORD storage_connection_string CONN_STR hub_token_2 password1 API_KEY_1 my_judgekey judge-keys hubtoken sshpass
bearertoken sessiontoken refreshtoken api_token"""
NONE = """pad_token eos_token bos_token mask_out_eos_token add_sys_token max_new_tokens max_tokens tokens tokenizer
pad_token_id new_special_tokens prompt_key teacher_tag_key key keys query_key_layer_scaling experiment_key monkey
secretary -- image_token special_token token_balance_loss max_token num_token passes forward_pass compass pattern
rank_pattern vllm_server_pass_dataset attn_pat authors connection string max_tokens_2 pad_token_1 my_pass my_auth"""
VARIABLES = """OPENAI_KEY MY_SERVICE_KEY GITHUB_TOKEN PGPASSWORD MYSQL_PWD DB_PASS SMTP_PASS SSHPASS GITHUB_PAT
GH_PAT AZURE_STORAGE_CONNECTION_STRING SENTRY_DSN AZURE_STORAGE_KEY BLOB_SAS GPG_PASSPHRASE AWS_CREDENTIALS
SLACK_WEBHOOK_URL REDISCLI_AUTH MY_JWT LDAP_PW OPENAI_API_KEYS API_KEY_1 SESSION_COOKIE
DAGSHUB_USER_TOKEN DB_CREDS MY_BEARER SOME_KEY"""
SETTINGS = """PASSES PASS USER_TOKEN MASTER_PORT OLDPWD COMPASS EOS_TOKEN WEBHOOK_PORT XAUTHORITY PGPASSFILE
SMTP_AUTH_TYPE PAD_TOKEN PWD TOKENIZERS_PARALLELISM MAX_TOKENS TOKEN_LIMIT PASSWORD_FILE PATH
SSH_AUTH_SOCK"""


def test_names_of_secrets() -> None:
    assert [name for name in SECRETS.split() if not (says_secret(name) and variable_says_secret(name))] == []


def test_names_of_none() -> None:
    assert [name for name in ["", *NONE.split()] if says_secret(name)] == []


def test_variables() -> None:
    assert [name for name in VARIABLES.split() if not variable_says_secret(name)] == []
    assert [name for name in ["", *SETTINGS.split()] if variable_says_secret(name)] == []


@pytest.mark.parametrize(
    "spelt",
    (
        *(
            S,
            quote(S),
            quote(S, safe=""),
            quote_plus(S),
            json.dumps({"a": S}),
            json.dumps({"a": S}, ensure_ascii=False),
        ),
        *(repr([S]), "ab\udcff/cdef1", "ab%3F/cdef1", "ab%3F%2Fcdef1", f"a\n  {'b' * 20}\nc", "b" * 20),
    ),
)
def test_every_spelling_is_found(spelt: str) -> None:
    assert redact(f"before {spelt} behind") == f"before {spelt} behind"
    # Bytes of a variable that are no UTF-8 reach Python as halves of characters.
    for value in (S, "ab\udcff/cdef1", f"a\n  {'b' * 20}\nc"):
        secrets.learn(value)
    found = redact(f"before {spelt} behind")
    assert MASK in found and found.startswith("before ") and found.endswith(" behind") and len(found) < 30


@settings(max_examples=12, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=8, max_size=40))
def test_no_value_gets_through(value: str) -> None:
    """Any text; those that are too common or name a file are not searched for."""
    value = value.strip()
    secrets.forget()
    secrets.learn(value)
    if value in secrets.known():
        for text in (value, json.dumps(value), repr(value), quote(value, safe="")):
            assert value not in redact(text) and "***" in redact(text)


@pytest.mark.parametrize(
    "value", ("short", "true", "disabled", "password", "<HUB_TOKEN>", "***", "${HF_TOKEN}", "", "  ")
)
def test_common_values_are_not_searched_for(value: str) -> None:
    secrets.learn_config({"hub_token": value, "password": [value]})
    assert secrets.known() == frozenset()
    assert without_secrets({"hub_token": value}) == {"hub_token": None}


def test_the_path_of_a_secret_is_none(tmp_path: Path) -> None:
    secrets.learn_variables({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)})
    assert redact(f"{tmp_path}/x") == f"{tmp_path}/x"


@pytest.mark.parametrize(
    ("name", "value"),
    (
        *(("PGPASSWORD", "correcthorse"), ("MYSQL_PWD", "hush12345"), ("DB_PASS", "correct1horse")),
        *(
            ("GITHUB_PAT", "correct1horse"),
            ("REDISCLI_AUTH", "correct1horse"),
            ("GCP_JSON", '{"private_key": "hush-google"}'),
        ),
        *(("SLACK_WEBHOOK_URL", "https://example.org/hook/T0/abc123"), ("AZURE_STORAGE_KEY", "a1" * 20 + "==")),
        *(("REDIS_URL", "redis://:hush-redis@h:1/0"), ("SENTRY_DSN", f"https://{'b2' * 16}@o1.ingest.example.org/2")),
        ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=hush-azure==;EndpointSuffix=example.org"),
        ("ODBC", "Driver=x;Server=h;Uid=me;Pwd=hush-odbc;"),
    ),
    ids=lambda text: text[:9],  # pytest puts them into a variable
)
def test_values_of_variables(name: str, value: str) -> None:
    """Whole, and what is secret inside alone."""
    inside = re.search(r"hush-[a-z]+(==)?|(b2){16}", value)
    alone = inside[0] if inside else value
    assert redact(f"a {alone} b") == f"a {alone} b"
    secrets.learn_variables({name: value})
    assert redact(f"a {alone} b") == "a *** b"
    assert alone not in redact(value)


@pytest.mark.parametrize(
    ("name", "value"),
    (
        *(("SMTP_AUTH", "plaintext"), ("PASSES", "12345678ab"), ("PWD", "/nowhere/abc1"), ("DB_PASS", "short")),
        *(("TOKENIZERS_PARALLELISM", "yes-please-1"), ("EOS_TOKEN", "<|im_end|>1"), ("MASTER_PORT", "29500")),
        *(("MY_DSN", "dbname=db"), ("PATH", "/nowhere/bin1:/nowhere/bin2")),
        ("API_URL", "https://example.org/v1?key=instruction"),
    ),
)
def test_values_that_are_none(name: str, value: str) -> None:
    before = secrets.known()
    secrets.learn_variables({name: value})
    assert secrets.known() == before


@pytest.mark.parametrize(
    ("text", "clean"),
    (
        ("https://me:pw@host/x", "https://me:***@host/x"),
        ("postgres://u:p@ss@db:5432/x", "postgres://u:***@db:5432/x"),
        ("redis://:pw@cache:6379", "redis://:***@cache:6379"),
        ("AccountName=me;AccountKey=pw==;End=x", "AccountName=me;AccountKey=***;End=x"),
        ("Server=h;Uid=me; Password = pw;Port=1", "Server=h;Uid=me; Password = ***;Port=1"),
        ("https://h/x?a=1&token=abc&b=2", "https://h/x?a=1&token=***&b=2"),
        ("https://h/x?X-Amz-Signature=abc#f", "https://h/x?X-Amz-Signature=***#f"),
    ),
)
def test_urls_and_headers(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    (
        *("https://host:8080/@scope/pkg", "ssh://git@github.com/a/b", "https://huggingface.co/org/name?download=true"),
        *("me@host.org", "risk-adjusted-returns-of-something-long", "sk-learn-pipeline-for-classification", "hf_model"),
        *("the bearer of bad news is here", "model_name_or_path=org/llama", "3:00@noon", "eyJ.eyJ.x", ""),
        *("Qwen/Qwen2.5-0.5B-Instruct", "the password = what you like", "PWD=/home/me; cd", "eyJsome-thing"),
    ),
)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text


def test_objects() -> None:
    secrets.learn("abcdefgh1")
    value = {
        "hub_token": 5,
        "pad_token": "<pad>",
        "use_auth_token": True,
        "credentials": {"user": "me", "more": ["x", None]},
        "deep": [("a abcdefgh1", 1.5), Path("/x/abcdefgh1"), {"abcdefgh1"}, None, False],
        "k abcdefgh1": 1,
    }
    assert redacted(value) == {
        "hub_token": "***",
        "pad_token": "<pad>",
        "use_auth_token": True,
        "credentials": {"user": "***", "more": ["***", None]},
        "deep": [("a ***", 1.5), "/x/***", {"***"}, None, False],
        "k ***": 1,
    }
    assert value["hub_token"] == 5  # a copy


def test_arguments() -> None:
    values = {"hub_token": "s", "hf_hub_token": "s", "pad_token": "<pad>", "max_tokens": 3, "vllm_api_key": "s"}
    hidden = {"hub_token": None, "hf_hub_token": None, "vllm_api_key": None}
    assert without_secrets(values) == {**values, **hidden}


@pytest.mark.parametrize(
    ("command", "clean"),
    (
        ("--hub_token x --a b", "--hub_token *** --a b"),
        ("--hub-token x", "--hub-token ***"),
        ("--hub-token=x", "--hub-token=***"),
        ("--hub_token x --hub_token y", "--hub_token *** --hub_token ***"),
        ("--hub_token --a b", "--hub_token --a b"),
        ("--use_auth_token True", "--use_auth_token True"),
        ("--pad_token <pad>", "--pad_token <pad>"),
        ("-hub_token x", "-hub_token ***"),
        ("-hub_token=x", "-hub_token=***"),
        ("--hub_token -x", "--hub_token ***"),
        ("--api_keys a b", "--api_keys *** ***"),
        ("--comet.api_key k", "--comet.api_key ***"),
        ("--url https://u:p@h/x", "--url https://u:***@h/x"),
        ("--url=https://u:p@h/x", "--url=https://u:***@h/x"),
        ("OPENAI_KEY=k run", "OPENAI_KEY=*** run"),
        ("A=b run", "A=b run"),
        ('--deepspeed {"comet":{"api_key":"k"}}', '--deepspeed {"comet": {"api_key": "***"}}'),
        ('--deepspeed={"comet":{"api_key":"k"}}', '--deepspeed={"comet": {"api_key": "***"}}'),
        ('--deepspeed {"a":1}', '--deepspeed {"a":1}'),
        ("--x {broken", "--x {broken"),
    ),
)
def test_commands(command: str, clean: str) -> None:
    assert " ".join(command_without_secrets(command.split(" "))) == clean


@pytest.mark.parametrize(
    "words",
    (
        ["--export=ALL,OPENAI_KEY=hush-hush-1"],
        ["--export", "A=1,DB_PASS=hush-hush-1"],
        ["--launcher_args", "-x A -x DB_PASS=hush-hush-1"],
    ),
)
def test_variables_handed_on_by_a_launcher(words: list[str]) -> None:
    assert "hush" not in " ".join(command_without_secrets(words))


def test_numbers_and_dates_of_a_file_are_learnt() -> None:
    secrets.learn_config({"hub_token": 1234567890, "a": [{"passwords": [987654321, None, True, 1.5]}]})
    assert secrets.known() == {"1234567890", "987654321"}


def test_a_value_of_a_flag_is_hidden_everywhere_in_a_command() -> None:
    assert command_without_secrets(["--hub_token", "abcd12345", "--name", "x-abcd12345"])[3] == "x-***"


def test_the_saved_token_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("saved-token-1\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    assert redact("my saved-token-1") == "my saved-token-1", "without its client nobody here has read it"
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert redact("my saved-token-1") == "my ***"


NEARLY = {
    "IN_URL": ("a:a", "a://", "a:", "://", "a://a", "http://a:a", "a://a:", "a", "a.", "a:@"),
    "_NAMED": ("?token", "&token", "?a-", "?token=", "&key=", "a?secret", "?", "?a_api_key", ";password ", "; ", ";\t"),
}
"""Pattern to pieces; a text of nothing but one of them nearly matches everywhere."""


@pytest.mark.parametrize("pattern", NEARLY)
def test_no_search_is_quadratic(pattern: str) -> None:
    """A linear search of such a text takes half a second at most, a quadratic one more than a minute."""
    began = time.process_time()
    for piece in NEARLY[pattern]:
        getattr(secrets, pattern).sub("", piece * (300_000 // len(piece)))
    assert time.process_time() - began < 30


def test_json_behind_the_name_of_a_class() -> None:
    value = 'mine.py:Slack{"channel": "general", "token": "of-nobody-else-1234"}'
    shown = " ".join(secrets.command_without_secrets(["--callbacks", value]))
    assert "of-nobody-else-1234" not in shown and "general" in shown
    secrets.forget()
    secrets.learn_config({"callbacks": [value]})
    assert secrets.redact("of-nobody-else-1234") == "***"


def test_what_says_nothing_is_not_masked() -> None:
    """An empty text tells who reads a log that nothing was given."""
    assert masked({"a": "", "b": None, "c": [False, "x", 1]}) == {"a": "", "b": None, "c": [False, MASK, MASK]}
