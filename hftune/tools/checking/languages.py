"""Which language a text is in: by its script, and where several share one, by their most frequent words."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np

from hftune.tools.checking.shingles import hash_of_word

UNKNOWN = "other"

# Ranges of code points; what stands alone for a script is its language.
_SCRIPTS = (
    ("latin", ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF))),
    ("cyrillic", ((0x400, 0x52F),)),
    ("han", ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))),
    ("ja", ((0x3040, 0x30FF),)),
    ("ko", ((0xAC00, 0xD7AF), (0x1100, 0x11FF))),
    ("ar", ((0x600, 0x6FF), (0x750, 0x77F))),
    ("he", ((0x590, 0x5FF),)),
    ("hi", ((0x900, 0x97F),)),
    ("bn", ((0x980, 0x9FF),)),
    ("ta", ((0xB80, 0xBFF),)),
    ("th", ((0xE00, 0xE7F),)),
    ("el", ((0x370, 0x3FF),)),
)
_WORDS = {
    "en": "the and of to is that it for with was are you this have not be by from which or can will what how an",
    "de": "der die das und ist nicht ein eine mit von zu den dem sich auf für auch es werden wie sie wir ich",
    "fr": "le la les et est une des dans pour que qui pas sur du il avec vous sont ce au nous mais",
    "es": "el los las y es una del para que por con no se su como más pero está son lo al muy",
    "pt": "o os uma do da em para que não com por mais como são dos das ao você é mas seu",
    "it": "il gli e è una della per che non con sono di del come più nel alla anche questo ma si",
    "nl": "het een en van is niet op te dat met voor zijn aan ook als maar er bij deze je wordt",
    "pl": "i w na nie się jest do to że z jak o ale przez dla są po czy tak co od",
    "tr": "ve bir bu için ile da de olarak çok daha olan gibi ne var mi ama kadar sonra her",
    "vi": "và là của có không được một cho các trong với những người để này đã về từ bạn tôi",
    "id": "yang dan di untuk dengan ini itu dari tidak adalah dalam pada ke akan atau anda oleh juga",
    "ru": "и в не на что с по это как для я он из но у его то так мы же вы бы",
    "uk": "і в не на що з як та для це у до він але його ми за від є й про",
}
_SAMPLE, _SAMPLE_WORDS = 600, 200


def language_of(text: str, words: np.ndarray) -> str:
    """The code of a text's language, `UNKNOWN` where nothing tells it.

    Args:
        words: Their hashes, as `shingles_of` has them.
    """
    codes = np.frombuffer(text[:_SAMPLE].encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(_table()[np.minimum(codes, 0xFFFF)], minlength=len(_SCRIPTS) + 1)[1:]
    if not counts.any():
        return UNKNOWN
    # Japanese is written in both; a tenth of its characters are kana in any text.
    names = [name for name, _ in _SCRIPTS]
    kana = counts[names.index("ja")]
    name = names[int(counts.argmax())]
    if name == "han":
        return "ja" if kana * 10 > counts.sum() else "zh"
    if name not in ("latin", "cyrillic"):
        return name
    # Some words belong to several languages, and count for each.
    spoken = Counter(code for word in words[:_SAMPLE_WORDS].tolist() for code in _languages().get(word, ()))
    return spoken.most_common(1)[0][0] if spoken else UNKNOWN


@functools.cache
def _table() -> np.ndarray:
    found = np.zeros(0x10000, np.uint8)
    for number, (_, ranges) in enumerate(_SCRIPTS, start=1):
        for first, last in ranges:
            found[first : last + 1] = number
    return found


@functools.cache
def _languages() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for code, words in _WORDS.items():
        for word in words.split():
            found.setdefault(hash_of_word(word), []).append(code)
    return found
