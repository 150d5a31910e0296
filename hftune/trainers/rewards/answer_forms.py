"""Final answers in one spelling, and numbers with units read out of them."""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

_SIGNS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u2044": "/", "、": ",", "∞": r"\infty ", "π": r"\pi ", "≤": r"\le ", "≥": r"\ge "}
    | {"≠": r"\ne ", "\u00d7": r"\times ", "·": r"\cdot ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\{\}", "°": r"^\circ "}
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPELLINGS = [
    (re.compile(pattern), written)
    for pattern, written in (
        (r"(?<!\\)\$((?:\\.|[^$\\])+)(?<!\\)\$", r" \1 "),
        (r"\\!|\\(?=[%$])|(?<=\d)(?:\{,\}|\\,)(?=\d{3})", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(le|ge|ne)q(?![a-z])", r"\\\1"),
        (r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])|(?<!\\)\\[,;:! ]|\\q?quad(?![a-z])|~", " "),
        (r"\\(?:text|mathrm|mathbf|mathit|mbox|operatorname)(?:bf|it|rm)?\s*\{([^{}]*)\}", r" \1 "),
        (r"\^\s*\{\s*\\circ\s*\}|\\degree(?![a-z])", r"^\\circ "),
        (r"\\(?:emptyset|varnothing)(?![a-z])", r"\\{\\}"),
        (r"\\lbrace(?![a-z])", r"\\{"),
        (r"\\rbrace(?![a-z])", r"\\}"),
        (r"√\s*\(([^()]*)\)|(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)|√\s*(\w+)|\\sqrt\s*(\w)", r"\\sqrt{\1\2\3\4}"),
        (r"\\frac\s*(\w)\s*(\w)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\w)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}"),
        (r"([_^])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|log|ln|exp)(?=[\s({\\^_])", r"\\\1"),
        (r"(^|[(\[,{])\s*\+\s*(?=[\d\\.])", r"\1"),
    )
]
_WRAPPED = re.compile(
    r"\$\$(.+)\$\$|\$((?:\\.|[^$\\])+)\$|\\\((.+)\\\)|\\\[(.+)\\\]|\*\*(.+)\*\*|`(.+)`|[\"“](.+)[\"”]|\(([^(),]+)\)",
    re.DOTALL,
)
_QUANTITY = re.compile(
    r"(?P<sign>-?)\s*(?P<money>[$€£¥]?)\s*(?P<minus>-?)\s*"
    r"(?:(?:(?P<whole>\d+)\s*)?\\frac\s*\{\s*(?P<up>-?\d+)\s*\}\s*\{\s*(?P<down>\d+)\s*\}"
    r"|(?:(?P<count>\d+)\s+)?(?P<above>\d+)\s*/\s*(?P<below>\d+)"
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
    r"(?:[eE](?P<power>[-+]?\d{1,3})|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{?\s*(?P<ten>-?\d{1,3})\s*\}?)?)"
    r"(?P<unit>.*)",
    re.DOTALL,
)
_NAMES = r"""
    m meter metre 米, cm centimeter centimetre 厘米, mm millimeter millimetre 毫米, km kilometer kilometre 千米 公里,
    in inch inche, ft foot feet, mi mile, g gram 克, kg kilogram 千克 公斤, lb, l liter litre 升,
    ml milliliter millilitre 毫升, s sec second 秒, min minute 分钟, h hr hour 小时, day 天, week 周, month 月, year 年,
    $ dollar usd 美元, ¥ yuan rmb 元, € euro eur, £ gbp, cent 美分, % percent pct, ^\circ degree deg 度,
    ^\circc celsius 摄氏度, ^\circf fahrenheit, km/h kph kmh, mph, n, j, w, v, a, k, kw, hz, mol
"""
_UNITS = {name: names.split()[0] for names in _NAMES.split(",") for name in names.split()}
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "百万": 6, "亿": 8}
_SCALED = re.compile(rf"\s*({'|'.join(_SCALES)})s?(?![a-z])(?:\s*of\b)?", re.IGNORECASE)
_UNIT = re.compile(r"[^\W\d_]+|\^\\circ[cf]?|[%$€£¥]")
_FUNCTIONS = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|mod|max|min|and|or|to|if|for|pi)\b")
_COUNTED = re.compile(r"(?:\s[a-zA-Z]{3}[a-zA-Z ]*|\s*[\u4e00-\u9fff]+)(?:\s*\^?[23])?\.?")


@dataclass(frozen=True)
class Quantity:
    """A number.

    Args:
        value: Of 50 % it is 50.
        unit: In one spelling; empty without one.
    """

    value: Fraction
    unit: str

    @property
    def share(self) -> Fraction:
        """The value, of 50 % a half."""
        return self.value / 100 if self.unit == "%" else self.value


def spelled(text: str) -> str:
    """An answer in the one of its spellings that LaTeX and math-verify know, without what it is wrapped in."""
    # Before NFKC, which makes x² to x2 and 5½ to 51/2.
    text = re.sub("[⁰¹²³⁴-⁹⁻]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
    text = unicodedata.normalize("NFKC", re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text))
    text = _unwrapped(text).translate(_SIGNS)
    for pattern, written in _SPELLINGS:
        text = pattern.sub(written, text)
    return re.sub(r"^\{([^{}]*)\}$", r"\\{\1\\}", _unwrapped(text))


def quantity(text: str) -> Quantity | None:
    """The number, fraction, mixed number, percentage or amount that a spelled answer is; None where it is more."""
    found = _QUANTITY.fullmatch(text)
    scale = None if found is None else _SCALED.match(found["unit"])
    unit = None if found is None else _unit(found["unit"][scale.end() if scale else 0 :], found["money"])
    if found is None or unit is None or int(found["down"] or found["below"] or 1) == 0:
        return None
    if found["number"]:
        value = Fraction(found["number"].replace(",", "").rstrip(".")) * Fraction(10) ** int(
            found["power"] or found["ten"] or 0
        )
    else:
        part = Fraction(int(found["up"] or found["above"]), int(found["down"] or found["below"]))
        value = int(found["whole"] or found["count"] or 0) + part
    value *= 10 ** _SCALES[scale[1].casefold()] if scale else 1
    return Quantity(-value if found["sign"] or found["minus"] else value, unit)


def _unwrapped(text: str) -> str:
    """Without dollars, quotes and the like around all of it, and without a last full stop."""
    while True:
        text = re.sub(r"(?<!\\)[\s.,;。]+$", "", text.strip())
        if (found := _WRAPPED.fullmatch(text)) is None:
            return text
        text = next(group for group in found.groups() if group)


def _unit(text: str, money: str) -> str | None:
    """What follows a number, as a unit; None where it makes the number a part of something else."""
    plain = re.sub(r"[\s{}]", "", text).casefold()
    if not plain:
        return _UNITS.get(money, "")
    # 5m may be five times m, as 5x is five times x.
    if not text[0].isspace() and len(plain) == 1 and plain in string.ascii_lowercase:
        return None
    known = _UNIT.sub(lambda name: _UNITS.get(name[0]) or _UNITS.get(name[0].removesuffix("s"), "?"), plain)
    if "?" not in known and re.fullmatch(rf"(?:{_UNIT.pattern})(?:{_UNIT.pattern}|[/^23])*", plain):
        return known
    return plain.removesuffix("s") if _COUNTED.fullmatch(text) and not _FUNCTIONS.search(text) else None
