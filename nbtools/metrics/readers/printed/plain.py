"""A line without what says nothing of the training: times, places in source code, and what is around a number."""

import re
from typing import Final

_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d)?+(?:[.,]\d++)?+"
_DATE: Final = re.compile(  # also one of digits alone, but only beside a clock: 11/20 10:00:01
    rf"""\b\d{{4}}[-/]\d\d[-/]\d\d(?:[T_ ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)?+
    | \b\d{{1,4}}([-/.])\d{{1,2}}(?:\1\d{{1,4}})?+[ T]{_CLOCK}
    | \b\d{{1,2}}([/.])\d{{1,2}}\2\d{{2,4}}\b | \b\d{{8}}[-_ T]\d{{6}}\b | \b[IWEFD]\d{{4}}[ ]{_CLOCK}
    | (?<![\w.])(?:\d++[ ]days?,?[ ])?{_CLOCK}(?![\w.:]) """,
    re.VERBOSE,
)
_PLACE: Final = (
    re.compile(  # with the thread before it, as of absl, or the function after it, as of loguru and DeepSpeed
        r"""(?<![\w.:/-]) (?:[ ]\d{1,20}[ ])?+
    (?: [\w./-]{1,100}\.(?:py|cpp|cc|cu|h):\d++ (?::[A-Za-z_]\w*+)?+ | [A-Za-z_][\w.]{0,100}:[A-Za-z_<][\w<>]*+:\d++ )
    (?![\w.])""",
        re.VERBOSE,
    )
)
_LEVEL: Final = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]{1,60}:")
"""What the logging module puts before a line."""
_MAY_BE_PLACE: Final = re.compile(r"[a-z_>]:\d")
_NUMBER: Final = r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:e[-+]?\d++)?+|[-+]?(?:nan|inf)"
_WRAPPED: Final = re.compile(
    rf"\b(?:tensor|array|(?:(?:np|numpy|jnp)\.)?float\d\d)\(\[?\s?({_NUMBER})\]?(?:,[^()]{{0,200}})?\)", re.IGNORECASE
)
_WRAPPER: Final = re.compile(r"\b(?:tensor|array|(?:(?:np|numpy|jnp)\.)?float\d\d)\(\[?", re.IGNORECASE)
_WORDS: Final = {
    "epoch": "époque époques época эпоха 轮次 エポック",
    "step": "étape шаг 步数 ステップ 反復",
    "loss": "pérdida 损失 損失",
    "accuracy": "précision 准确率 精度 正解率",
    "train": "entraînement 训练集 学習",
    "val": "validación éval évaluation 验证集 検証",
    "test": "测试集 テスト",
    "learning_rate": "学习率 学習率",
    "grad_norm": "勾配ノルム 梯度范数",
}
"""Words of other languages with letters that English has not; `names` has those without."""
_ENGLISH: Final = {word: english for english, words in _WORDS.items() for word in words.split()}
FOREIGN: Final = frozenset(_ENGLISH)
_FOREIGN: Final = re.compile(rf"(?<!\w)(?:{'|'.join(_ENGLISH)})(?!\w)", re.IGNORECASE)
_LETTER: Final = re.compile(r"[^\W\x00-\x7f]")
_OF: Final = re.compile(r"(?<=\d) (?:de|von|sur) (?=\d)")
_CHINESE_EPOCH: Final = re.compile(r"第\s?(\d++)\s?轮(?:\s?/\s?共?\s?(\d++)\s?轮)?+")


_ASIDE: Final = re.compile(r"\s?\(\d{1,6} [a-z]{1,20}\)(?=\s?[:=])")
_RATIO: Final = re.compile(r"(?<=%)\s?\(\d{1,12}/\d{1,12}\)")
_QUOTIENT: Final = re.compile(r"\d{1,12}/\d{1,12}\s?=\s?(?=\d*+\.\d)")
_ATTACHED: Final = re.compile(r"(?<=[a-z])\(([a-z]{1,10})[ =]?(\d{1,6})\)", re.IGNORECASE)


def plain_text(text: str) -> str:
    """Return a line without dates, places in source code and wrappers such as `tensor(...)`, its words in English."""
    if "(" in text:
        text = _RATIO.sub("", _ASIDE.sub("", text))
        text = _ATTACHED.sub(r"_\1_\2", _WRAPPER.sub(" ", _WRAPPED.sub(r"\1", text)))
    text = _DATE.sub(" ", _LEVEL.sub("", text) if text[:1] in "DIWEC" else text)
    if " de " in text or " von " in text or " sur " in text:
        text = _OF.sub("/", text)
    if "/" in text:
        text = _QUOTIENT.sub("", text)
    if _MAY_BE_PLACE.search(text):
        text = _PLACE.sub(" ", text)
    if not text.isascii() and _LETTER.search(text):
        text = _CHINESE_EPOCH.sub(lambda found: f"epoch {found[1]}" + (f"/{found[2]}" if found[2] else ""), text)
        text = _FOREIGN.sub(lambda found: _ENGLISH[found[0].lower()], text)
    return text
