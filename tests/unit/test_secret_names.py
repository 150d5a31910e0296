"""Words that make a name one of a secret, or of none: each of them, as users and services spell such names."""

from __future__ import annotations

import pytest

from hftune.secret_names import may_be_secret, says_secret, surely_secret, variable_says_secret


def words(text: str) -> list[str]:
    return text.split()


OWNERS = """api access secret private auth ssh encryption signing account storage service subscription openai anthropic
hf hub huggingface wandb comet aws azure gcp google gemini swanlab mlflow neptune clearml cohere mistral groq deepseek
dashscope openrouter together fireworks replicate judge"""


@pytest.mark.parametrize("word", words(OWNERS))
def test_whose_key_is_a_secret(word: str) -> None:
    assert says_secret(f"{word}_key") and says_secret(f"my_{word}key") and says_secret(f"{word}-keys")
    assert variable_says_secret(f"{word.upper()}_KEY")


@pytest.mark.parametrize("word", words("public sort primary foreign partition tag cache query column field"))
def test_keys_that_open_nothing(word: str) -> None:
    assert not may_be_secret(f"{word}_key") and not variable_says_secret(f"{word.upper()}_KEY")
    assert may_be_secret("some_key")


TEXT_TOKENS = """pad eos bos bol eol unk sep cls mask sys system user assistant image video audio img start end stop
turn think step special new add first last next per each a boi eoi eot sot fim prefix suffix separator tool out one
decoder multi target context placeholder str text split word sub max min num"""


@pytest.mark.parametrize("word", words(TEXT_TOKENS))
def test_tokens_of_a_text(word: str) -> None:
    assert not says_secret(f"{word}_token") and not says_secret(f"the_{word}_token")
    assert not variable_says_secret(f"{word.upper()}_TOKEN")


@pytest.mark.parametrize("word", words("api access auth hub hf bearer session refresh"))
def test_tokens_that_let_in(word: str) -> None:
    assert says_secret(f"{word}token") and says_secret(f"{word}_token")
    several = word in ("api", "access", "auth", "hf", "refresh")
    assert says_secret(f"{word}tokens") is several


@pytest.mark.parametrize(
    "word", words("secret secrets password passwd passphrase passcode apikey credential credentials")
)
def test_words_that_are_always_one(word: str) -> None:
    assert says_secret(word) and says_secret(f"my_{word}")
    assert variable_says_secret(f"{word.upper()}_OF_MINE"), "also in the middle of a variable's name"


@pytest.mark.parametrize("end", words("password passwords passwd passphrase apikey apikeys sshpass"))
def test_words_with_others_glued_to_them(end: str) -> None:
    assert says_secret(f"pg{end}")


ABOUT = """file path dir name names length limit limits count type ttl expiry host port endpoint size max min issuer
parallelism budget url uri enabled"""


@pytest.mark.parametrize("word", words(ABOUT))
def test_variables_about_a_secret(word: str) -> None:
    assert not variable_says_secret(f"API_TOKEN_{word.upper()}")
    assert variable_says_secret("API_TOKEN_OF_MINE")


@pytest.mark.parametrize("word", words("forward backward first second last single multi one two n num by"))
def test_a_pass_that_is_a_round(word: str) -> None:
    assert not surely_secret(f"{word}_pass") and surely_secret("db_pass") and not surely_secret("pass")


@pytest.mark.parametrize("word", words("github gh gitlab gl azure ado devops bitbucket databricks personal access"))
def test_personal_access_tokens(word: str) -> None:
    assert surely_secret(f"{word}_pat") and not surely_secret("file_pat") and not surely_secret("pat")


@pytest.mark.parametrize("word", words("pw pwd sas dsn auth jwt bearer authorization cookie creds connstr"))
def test_last_words_of_what_may_be_one(word: str) -> None:
    assert may_be_secret(f"my_{word}") and not says_secret(f"my_{word}")
    assert may_be_secret(word) is (word != "pwd"), "PWD is a shell's own"


@pytest.mark.parametrize("word", words("pem json b64 base64 raw value"))
def test_how_a_secret_is_written(word: str) -> None:
    assert surely_secret(f"client_secret_{word}") and not surely_secret(f"client_{word}")


@pytest.mark.parametrize("word", words("url uri endpoint"))
def test_webhooks_are_addresses_that_let_in(word: str) -> None:
    assert variable_says_secret(f"SLACK_WEBHOOK_{word.upper()}")
