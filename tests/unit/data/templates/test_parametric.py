"""Proven templates write their outline for any contents; a template that looks at contents is never proven."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.data.templates.parametric import Content
from hftune.data.templates.rendering import Renderer
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, TEMPLATES, make_tokenizer, template

pytestmark = pytest.mark.long

ROLES = ("system", "user", "assistant", "user", "assistant")
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def _outlines() -> dict[tuple[str, tuple[str, ...]], tuple[Renderer, list[Any]]]:
    found = {}
    for name in NAMES:
        renderer = Renderer(make_tokenizer(template(name)))
        for roles in (ROLES, ROLES[1:], ROLES[1:3]):
            parts = renderer.outline(roles)
            if parts is not None:
                found[name, roles] = renderer, parts
    return found


OUTLINES = _outlines()


def test_popular_templates_are_proven() -> None:
    assert {"qwen2_5", "llama3", "phi3", "gemma", "qwen3_instruct_2507"} <= {name for name, _ in OUTLINES}
    # It looks for </think> in what the assistant said.
    assert "qwen3" not in {name for name, _ in OUTLINES}


PIECES = [*" \n\ta{%}<>|/你🙂", "<think>", "</think>", "<|im_end|>", "<tool_response>", "</tool_response>", "/think"]


@pytest.mark.parametrize(("name", "roles"), sorted(OUTLINES))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_outline_is_what_is_rendered(name: str, roles: tuple[str, ...], data: st.DataObject) -> None:
    renderer, parts = OUTLINES[name, roles]
    said = [data.draw(st.lists(st.sampled_from(PIECES), max_size=6).map("".join)) for _ in roles]
    messages = [{"role": role, "content": content} for role, content in zip(roles, said, strict=True)]
    assert renderer(messages) == "".join(_filled(part, said) for part in parts)


def _filled(part: str | Content, said: list[str]) -> str:
    if isinstance(part, str):
        return part
    text = said[part.index] if part.keeps_left else said[part.index].lstrip()
    return text if part.keeps_right else text.rstrip()


COPIES = {
    "chatml": CHATML,
    "tilde": "{% for m in messages %}{{ '<' ~ m.role ~ m.content ~ 1 }}{% endfor %}",
    "macro": "{% macro f(x) %}[{{ x | trim }}]{% endmacro %}{% for m in messages %}{{ f(m['content']) }}{% endfor %}",
    "set block": "{% for m in messages %}{% set x %}{{ m.content }}!{% endset %}{{ x }}{% endfor %}",
    "namespace": "{% set n = namespace(x='') %}"
    "{% for m in messages %}{% set n.x = n.x ~ m.content %}{% endfor %}{{ n.x }}",
    "type": "{% for m in messages %}{% if m.content is string %}{{ m.content.strip() }}{% endif %}{% endfor %}",
    "roles": "{% for m in messages if m.role in ['user', 'assistant'] or 'x' in m %}{{ m.content }}{% endfor %}",
    "marks": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "get": "{% for m in messages[:1] + messages[1:] %}{{ m.get('content') | default('') }}{% endfor %}",
}
LOOKS = {
    "truth": "{% if c %}x{% endif %}{{ c }}",
    "not": "{{ c if not c else c }}",
    "or": "{{ c or 'x' }}",
    "equal": "{% if c == 'x' %}y{% endif %}{{ c }}",
    "equal, turned": "{% if 'x' == c %}y{% endif %}{{ c }}",
    "less": "{% if 'x' < c %}y{% endif %}{{ c }}",
    "holds": "{% if 'x' in c %}y{% endif %}{{ c }}",
    "is held": "{% if c in 'xyz' %}y{% endif %}{{ c }}",
    "is not held": "{% if c not in 'xyz' %}y{% endif %}{{ c }}",
    "in a list": "{% if c in ['x'] %}y{% endif %}{{ c }}",
    "in a chain": "{% if 'a' < 'b' in c %}y{% endif %}{{ c }}",
    "key": "{{ {'x': 1}[c] }}{{ c }}",
    "first": "{{ c[0] }}{{ c }}",
    "slice": "{{ c[:3] }}",
    "length": "{{ c | length }}{{ c }}",
    "loop": "{% for x in c %}{{ x }}{% endfor %}",
    "upper": "{{ c | upper }}",
    "method": "{{ c.upper() }}",
    "starts": "{% if c.startswith('x') %}y{% endif %}{{ c }}",
    "split": "{{ c.split('x')[0] }}",
    "replace": "{{ c | replace('x', 'y') }}",
    "replaced by": "{{ 'x' | replace('x', c) }}",
    "join": "{{ [c, c] | join }}",
    "join by method": "{{ ''.join([c]) }}",
    "format": "{{ '%s' % c }}",
    "format a list": "{{ '%s' % (c,) }}",
    "format by method": "{{ '{}'.format(c) }}",
    "format by filter": "{{ '%s' | format(c) }}",
    "json": "{{ messages | tojson }}",
    "strip of more": "{{ c.strip('x') }}",
    "trim of more": "{{ c | trim('x') }}",
    "strip what is joined": "{{ (c + ' x') | trim }}",
    "seen through a macro": "{% macro f(x) %}{{ x }}{% endmacro %}{% if 'x' in f(c) %}y{% endif %}{{ c }}",
    "seen through a block": "{% set x %}{{ c }}{% endset %}{% if x.startswith('x') %}y{% endif %}{{ c }}",
    "seen through ~": "{% if (c ~ '') == 'x' %}y{% endif %}{{ c }}",
    "a filter block": "{% filter upper %}{{ c }}{% endfilter %}",
    "a list of characters": "{{ c | list | length }}",
    "test by name": "{% if c is eq('x') %}y{% endif %}{{ c }}",
    "among messages": "{% if messages | selectattr('content', 'equalto', 'x') | list %}y{% endif %}{{ c }}",
    "sequence": "{% if c is sequence %}y{% endif %}{{ c }}",
    "times": "{{ c * 2 }}",
    "number": "{{ c | int }}",
    "values": "{{ messages[0].values() | join }}",
    "changed": "{% for m in messages %}{% if loop.changed(m.content) %}y{% endif %}{% endfor %}",
    "clock": "{{ strftime_now('%H:%M') }}{{ c }}",
}


@pytest.mark.parametrize("name", COPIES)
def test_copying_is_proven(name: str) -> None:
    renderer = Renderer(make_tokenizer(COPIES[name]))
    parts = renderer.outline(("user", "assistant"))
    assert parts is not None
    for said in itertools.product(("", " a\n", "b"), repeat=2):
        messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), said, strict=True)]
        assert renderer(messages) == "".join(_filled(part, list(said)) for part in parts)


@pytest.mark.parametrize("name", LOOKS)
def test_looking_is_not(name: str) -> None:
    renderer = Renderer(make_tokenizer("{% set c = messages[0].content %}" + LOOKS[name]))
    assert renderer.outline(("user",)) is None


def test_a_template_that_refuses_has_no_outline() -> None:
    renderer = Renderer(make_tokenizer("{{ raise_exception('no') }}"))
    assert renderer.outline(("user",)) is None
    with pytest.raises(DataError):
        renderer([{"role": "user", "content": "a"}])
