"""Secrets by name, by value and by form; what is none stays as it is."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hftune import secret_names, secrets
from hftune.secret_names import says_secret, variable_says_secret
from hftune.secrets import MASK, command_without_secrets, masked, redact, redacted, spellings, without_secrets

S = "pw/Q+7='\"<é x9Kzzz"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.argv", ["pytest"])
    secrets.forget()
    yield
    secrets.forget()


@pytest.mark.parametrize(
    "name",
    (
        *(
            "hub_token",
            "hub-token",
            "--hub-token",
            "HUB_TOKEN",
            "hubToken",
            "push_to_hub_token",
            "hf_hub_token",
            "token",
        ),
        *("api_key", "api-key", "comet.api_key", "wandb_api_key", "apiKey", "apikey", "OPENAI_API_KEY", "openai_key"),
        *("password", "db_password", "passwd", "passphrase", "client_secret", "secret", "credentials", "private_key"),
        *("aws_access_key_id", "secret_access_key", "authtoken", "accesskey", "HFToken", "api_keys", "hf_tokens"),
        *("PGPASSWORD", "storage_connection_string", "CONN_STR", "hub_token_2", "password1", "API_KEY_1"),
    ),
)
def test_names_of_secrets(name: str) -> None:
    assert says_secret(name) and variable_says_secret(name)


@pytest.mark.parametrize(
    "name",
    (
        *("pad_token", "eos_token", "bos_token", "mask_out_eos_token", "add_sys_token", "max_new_tokens", "max_tokens"),
        *("tokens", "tokenizer", "pad_token_id", "new_special_tokens", "prompt_key", "teacher_tag_key", "key", "keys"),
        *("query_key_layer_scaling", "experiment_key", "monkey", "secretary", "", "--", "image_token", "special_token"),
        *(
            "token_balance_loss",
            "max_token",
            "num_token",
            "passes",
            "forward_pass",
            "compass",
            "pattern",
            "rank_pattern",
        ),
        *("vllm_server_pass_dataset", "attn_pat", "authors", "connection", "string", "max_tokens_2", "pad_token_1"),
    ),
)
def test_names_of_none(name: str) -> None:
    assert not says_secret(name)


@pytest.mark.parametrize(
    ("name", "is_one"),
    (
        *((name, True) for name in ("OPENAI_KEY", "MY_SERVICE_KEY", "TOKEN_OF_MINE", "SECRET_A", "GITHUB_TOKEN")),
        *(
            (name, True)
            for name in ("PGPASSWORD", "MYSQL_PWD", "DB_PASS", "SMTP_PASS", "SSHPASS", "GITHUB_PAT", "GH_PAT")
        ),
        *((name, True) for name in ("AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN", "AZURE_STORAGE_KEY", "BLOB_SAS")),
        *((name, True) for name in ("GPG_PASSPHRASE", "AWS_CREDENTIALS", "GCP_CREDENTIALS_JSON", "PRIVATE_KEY_PEM")),
        *((name, True) for name in ("SLACK_WEBHOOK_URL", "REDISCLI_AUTH", "MY_JWT", "DOCKER_AUTH_CONFIG", "LDAP_PW")),
        *((name, True) for name in ("OPENAI_API_KEYS", "API_KEY_1", "SESSION_COOKIE", "AUTHORIZATION", "DB_CREDS")),
        *((name, False) for name in ("PASSES", "FIRST_PASS", "PASS", "FILE_PAT", "MASTER_PORT", "OLDPWD", "COMPASS")),
        *((name, False) for name in ("EOS_TOKEN", "WEBHOOK_PORT", "XAUTHORITY", "PGPASSFILE", "SMTP_AUTH_TYPE")),
        *((name, False) for name in ("PAD_TOKEN", "PWD", "PUBLIC_KEY", "SORT_KEY", "TOKENIZERS_PARALLELISM")),
        *((name, False) for name in ("MAX_TOKENS", "TOKEN_LIMIT", "PASSWORD_FILE", "PATH", "SSH_AUTH_SOCK", "")),
    ),
)
def test_variables(name: str, is_one: bool) -> None:
    assert variable_says_secret(name) is is_one


def test_each_way_to_spell_a_secret_by_hand() -> None:
    value = 'ä"b/ c\\'
    assert {
        value,
        "%C3%A4%22b%2F%20c%5C", "%c3%a4%22b%2f%20c%5c", "%C3%A4%22b/%20c%5C", "%C3%A4%22b%2F+c%5C",
        r"\u00e4\"b/ c\\", r"ä\"b/ c\\", r"\\u00e4\\\"b/ c\\\\",
        "ä&quot;b/ c\\", "c3a422622f20635c", "C3A422622F20635C",
        # Bytes c3 a4 22 62 2f 20 63 5c at the three places in a group, without what neighbours shape.
        "w6QiYi8gY1", "OkImIvIGNc", "DpCJiLyBjX",
    } <= spellings(value)  # fmt: skip
    assert "a" * 20 in spellings(f"short\n  {'a' * 20} \nb"), "long lines of several are secrets of their own"
    assert not {"short", "b"} & spellings(f"short\n  {'a' * 20} \nb")
    # Bytes of a variable that are no UTF-8 reach Python so.
    assert {"ab\udcff/cd", "ab%3F/cd", "ab%3F%2Fcd"} <= spellings("ab\udcff/cd")


@pytest.mark.parametrize(
    "spelt",
    (
        S,
        quote(S),
        quote(S, safe=""),
        quote_plus(S),
        re.sub("%..", lambda match: match[0].lower(), quote(S, safe="")),
        json.dumps({"a": S}),
        json.dumps({"a": S}, ensure_ascii=False),
        json.dumps({"inner": json.dumps({"a": S})}),
        repr([S]),
        shlex.quote(S),
        html.escape(S),
        S.encode().hex(),
        *(base64.b64encode(b"user:"[:cut] + S.encode() + b":more").decode() for cut in range(4)),
        *(base64.urlsafe_b64encode(b"user:"[:cut] + S.encode() + b"\xff\xfe").decode() for cut in range(4)),
    ),
)
def test_every_spelling_is_found(spelt: str) -> None:
    assert redact(f"before {spelt} behind") == f"before {spelt} behind"
    secrets.learn(S)
    found = redact(f"before {spelt} behind")
    assert "***" in found and found.startswith("before ") and found.endswith(" behind")
    assert len(found) < len(spelt) + 15 - len(S) // 2  # what the secret shapes is gone, not a piece of it


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=8, max_size=40), st.binary(max_size=5))
def test_no_value_gets_through(value: str, before: bytes) -> None:
    """Any text; those that are too common or name a file are not searched for."""
    value = value.strip()
    secrets.forget()
    secrets.learn(value)
    if value in secrets.known():
        raw = before + value.encode() + b"z"
        for text in (value, json.dumps(value), repr(value), quote(value, safe=""), base64.b64encode(raw).decode()):
            assert value not in redact(text) and "***" in redact(text)


@pytest.mark.parametrize(
    "value", ("short", "true", "disabled", "password", "<HUB_TOKEN>", "***", "${HF_TOKEN}", "", "  ")
)
def test_common_values_are_not_searched_for(value: str) -> None:
    secrets.learn_arguments([("hub_token", [value]), ("password", [value])])
    assert secrets.known() == frozenset()
    assert without_secrets({"hub_token": value}) == {"hub_token": None}


def test_the_path_of_a_secret_is_none(tmp_path: Path) -> None:
    secrets.learn_variables({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)})
    assert redact(f"{tmp_path}/x") == f"{tmp_path}/x"


@pytest.mark.parametrize(
    ("name", "value"),
    (
        *(("PGPASSWORD", "correcthorse"), ("MYSQL_PWD", "hush12345"), ("DB_PASS", "correcthorse")),
        *(
            ("GITHUB_PAT", "correcthorse"),
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
        *(("FILE_PAT", "shard-0001-of-2"), ("MY_DSN", "dbname=db"), ("PATH", "/nowhere/bin1:/nowhere/bin2")),
        ("API_URL", "https://example.org/v1?key=instruction"),
    ),
)
def test_values_that_are_none(name: str, value: str) -> None:
    before = secrets.known()
    secrets.learn_variables({name: value})
    assert secrets.known() == before


@pytest.mark.parametrize(("value", "is_one"), (("instruction", False), ("abcdef123456", True), ("a" * 20, True)))
def test_a_variable_that_is_some_key_must_look_like_one(value: str, is_one: bool) -> None:
    secrets.learn_variables({"MY_KEY": value})
    assert (redact(value) == "***") is is_one


TOKENS = (
    "hf_" + "aBcD1234" * 4,
    "sk-proj-" + "aB1_-" * 8,
    "ghp_" + "a1B2" * 9,
    "github_pat_11AAAA_" + "b2" * 20,
    "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "xoxb-123456789012-abcdefGHIJ",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza" + "SyA1b2C3d4" * 4,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "https://hooks.slack.com/services/T00000000/B00000000/abcdEFGH",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc==\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIEow",
    "Bearer abcdefgh12345678",
)


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:12])
def test_tokens_by_their_form(token: str) -> None:
    assert redact(f"a {token}") == "a ***"
    assert token not in json.dumps(redacted({"text": [f"x={token}"]}))


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


@pytest.mark.parametrize(
    "value",
    (
        '{"token": "hush-hush-1"',
        "{'comet': {'api_key': 'hush-hush-1'}}",
        "{token: hush-hush-1}",
        '[{"password" : "hush-hush-1"',
    ),
)
def test_json_that_is_broken_is_learnt(value: str) -> None:
    secrets.learn_arguments([("model_init_kwargs", [value])])
    assert "hush" not in redact(value)


def test_numbers_and_dates_of_a_file_are_learnt() -> None:
    secrets.learn_config({"hub_token": 1234567890, "a": [{"passwords": [987654321, None, True, 1.5]}]})
    assert secrets.known() == {"1234567890", "987654321"}


def test_a_value_of_a_flag_is_hidden_everywhere_in_a_command() -> None:
    assert command_without_secrets(["--hub_token", "abcd12345", "--name", "x-abcd12345"])[3] == "x-***"


@pytest.mark.parametrize("name", ("HF_TOKEN_PATH", "HF_HOME", "HF_STORED_TOKENS_PATH", "XDG_CACHE_HOME"))
def test_the_saved_token_of_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    place = tmp_path / "here"
    file = {"HF_HOME": place / "token", "XDG_CACHE_HOME": place / "huggingface" / "token"}.get(name, place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[name]\nhf_token = saved-token-1\n" if "STORED" in name else "saved-token-1\n")
    monkeypatch.setenv(name, str(place))
    assert redact("my saved-token-1") == "my ***" and redact("[name]") == "[name]"


def test_a_token_file_that_cannot_be_one_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").write_bytes(b"x" * (1 << 17))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "big"))
    assert secrets.known() == frozenset()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "pipe"))  # would wait for a writer
    assert secrets.known() == frozenset()


NEARLY = {
    "_TOKEN": (
        *("sk-", "sk-a", "-sk-", "-hf_", "ghp_", "github_pat_", "-glpat-", "xoxb-", "-xoxb-", "AKIA", "AIza", "-AIza"),
        *("gsk_", "-nvapi-", "pypi-", "eyJ-", "-eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaa.eyJ-", "-hvs.", "a-"),
        *("https://hooks.slack.com/", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----BEGIN A PRIVATE KEY----"),
        *("Bearer ", "Bearer a", "Bearer\t \t", "bearer.", "Bearer a."),
    ),
    "IN_URL": ("a:a", "a://", "a:", "://", "a://a", "http://a:a", "a://a:", "a", "a.", "a:@"),
    "IN_QUERY": ("?token", "&token", "?a-", "?token=", "&key=", "a?secret", "token", "?", "?a_api_key"),
    "IN_CONNECTION": (";password", "password", ";password ", "; ", ";pwd=", "accountkey", "accountkey=", ";\t", " ="),
    "IN_JSON": ("a", "a=", '"a":', "a.", "a .", "a: ", "=:", "a\n", "a:\n", "a ", ":"),
}
"""Pattern to pieces; a text of nothing but one of them nearly matches everywhere."""
_SEARCH = """
import json, resource, sys
from hftune import secret_names
for piece in json.loads(sys.argv[2]):
    print(repr(piece), flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 15, resource.RLIM_INFINITY))
    getattr(secret_names, sys.argv[1]).sub("", piece * (300_000 // len(piece)))
print("done")
"""


@pytest.mark.parametrize("pattern", NEARLY)
def test_no_search_is_quadratic(pattern: str) -> None:
    """A linear search of such a text takes half a second, a quadratic one more than a minute.

    Counted are seconds of the processor, so that a busy machine changes nothing.
    """
    asked = [sys.executable, "-c", _SEARCH, pattern, json.dumps(NEARLY[pattern])]
    finished = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert finished.stdout.splitlines()[-1:] == ["done"], f"at {finished.stdout[-60:]} {finished.stderr}"


def test_every_pattern_is_searched_so() -> None:
    found = {name for name, value in vars(secret_names).items() if isinstance(value, re.Pattern)} - {"_GLUED"}
    assert found == {*NEARLY}


def test_json_behind_the_name_of_a_class() -> None:
    value = 'mine.py:Slack{"channel": "general", "token": "of-nobody-else-1234"}'
    shown = " ".join(secrets.command_without_secrets(["--callbacks", value]))
    assert "of-nobody-else-1234" not in shown and "general" in shown
    secrets.forget()
    secrets.learn_config({"callbacks": [value]})
    assert secrets.redact("of-nobody-else-1234") == "***"


def test_a_token_file_that_cannot_be_read_does_not_hide_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large, or not ours to read: the other one is read all the same."""
    (tmp_path / "stored").write_text("hf_token = saved-token-2\n")
    monkeypatch.setenv("HF_STORED_TOKENS_PATH", str(tmp_path / "stored"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_bytes(b"x" * (1 << 17))
    assert redact("saved-token-2") == "***"
    (tmp_path / "token").write_text("saved-token-1")
    read = Path.read_text

    def closed(file: Path, **options: Any) -> str:
        if file.name == "token":
            raise PermissionError(13, "Permission denied")
        return read(file, **options)

    secrets._saved_tokens.cache_clear()
    monkeypatch.setattr(Path, "read_text", closed)
    assert redact("saved-token-1 saved-token-2") == "saved-token-1 ***"
    secrets._saved_tokens.cache_clear()


def test_what_says_nothing_is_not_masked() -> None:
    """An empty text tells who reads a log that nothing was given."""
    assert masked({"a": "", "b": None, "c": [False, "x", 1]}) == {"a": "", "b": None, "c": [False, MASK, MASK]}
