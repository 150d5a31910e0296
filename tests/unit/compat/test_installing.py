"""Something is replaced only where it is as listed; otherwise a notice or an error names the feature."""

from __future__ import annotations

import pytest

from hftune.compat import installing
from hftune.compat.installing import method_replaced, replace_method, require, usable
from hftune.compat.symbols import UpstreamSymbol
from hftune.errors import UserError

SYMBOL = "transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE"


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if upstream had renamed what the list names."""
    entry = UpstreamSymbol("transformers.dynamic_module_utils.GONE", None, ">=5", "why", "--made_up_flag")
    monkeypatch.setattr(installing, "entry_of", lambda symbol: entry)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notices."""
    lines: list[str] = []
    monkeypatch.setattr(installing, "notice", lines.append)
    return lines


def test_as_listed(said: list[str]) -> None:
    assert usable(SYMBOL)
    require(SYMBOL)
    assert said == []


def test_unlisted_symbols_are_our_mistake() -> None:
    with pytest.raises(KeyError):
        usable("transformers.Trainer.train")


def test_a_notice_names_what_is_off(changed: None, said: list[str]) -> None:
    assert not usable(SYMBOL)
    assert said[0].startswith("off: --made_up_flag; transformers.dynamic_module_utils.GONE is not in transformers")


def test_an_error_where_going_on_is_wrong(changed: None) -> None:
    with pytest.raises(UserError, match=r"GONE is not in transformers(.|\n)*hftune doctor"):
        require(SYMBOL)


class Layer:
    """Made up."""

    def forward(self, x: int) -> int:
        """Made up."""
        return x

    attribute = 1


def test_one_object_runs_another_method() -> None:
    layer, other = Layer(), Layer()
    replace_method(layer, "forward", lambda self, x: (self, x))
    assert layer.forward(2) == (layer, 2)  # type: ignore[comparison-overlap]  # replaced
    assert other.forward(2) == 2


@pytest.mark.parametrize("name", ["gone", "attribute"])
def test_only_methods_are_replaced(name: str) -> None:
    with pytest.raises(UserError, match=f"Layer has no method {name}"):
        replace_method(Layer(), name, lambda self: None)


def test_in_a_block() -> None:
    layer = Layer()
    with pytest.raises(RuntimeError), method_replaced(layer, "forward", lambda self, x: -x):
        assert layer.forward(2) == -2
        with method_replaced(layer, "forward", lambda self, x: 10 * x):
            assert layer.forward(2) == 20
        assert layer.forward(2) == -2
        raise RuntimeError
    assert layer.forward(2) == 2
    assert "forward" not in vars(layer)
