"""Records and edits for tests of the check, made from a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = (
    "river stone carries morning light under old bridge while people walk slowly toward market square near church "
    "where farmers sell bread apples cheese honey wool candles paper every spring autumn winter summer children "
    "learn reading numbers music painting history science teachers explain why planets move around bright stars "
    "engineers build roads engines towers ships with steel copper glass wood doctors treat patients using medicine "
    "careful hands writers tell stories about kings sailors thieves forests oceans deserts mountains villages"
)
ENGLISH = WORDS.split()
CHINESE = (
    "春天河流石头早晨阳光桥梁人们慢慢走向市场教堂农民出售面包苹果奶酪蜂蜜羊毛蜡烛纸张秋冬夏孩学习阅读数字"
    "音乐绘画历史科学老师解释行星运动星造道路引擎塔船钢铜玻璃木医生治疗病患药物作家讲述国王水手森林海洋沙漠山脉村庄故事"
)


def sentence(rng: random.Random, words: int, *, chinese: bool = False) -> str:
    chosen = rng.choices(CHINESE if chinese else ENGLISH, k=words)
    return "".join(chosen) + "。" if chinese else " ".join(chosen).capitalize() + "."


def conversation(rng: random.Random, *, words: int = 40, chinese: bool = False) -> dict[str, Any]:
    asked, said = (sentence(rng, count, chinese=chinese) for count in (words // 2, words))
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


def edited(rng: random.Random, text: str, how: str, *, one_in: int = 10) -> str:
    """A text with another case, other punctuation, one word in so many replaced, or a sentence more."""
    if how == "case":
        return text.upper()
    if how == "punctuation":
        return text.replace(" ", ", ").replace(".", " !").replace("。", "！！")
    if how == "appended":
        return f"{text} {sentence(rng, 8, chinese=text[0] > '一')}"
    parts = text.split() if " " in text else list(text)
    for place in rng.sample(range(len(parts)), max(1, len(parts) // one_in)):
        parts[place] = rng.choice(CHINESE if parts[place] > "一" else ENGLISH)
    return (" " if " " in text else "").join(parts)


EDITS = ("case", "punctuation", "words", "appended")


def write(file: Path, *records: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return file
