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
_PLACE: Final = re.compile(  # with the thread before it, as of absl, or the function after it, as of loguru
    r"""(?<![\w.:/-]) (?:[ ]\d{1,20}[ ])?+
    (?: [\w./-]{1,100}\.(?:py|cpp|cc|cu|h):\d++ (?::[A-Za-z_]\w*+)?+ | [A-Za-z_][\w.]{0,100}:[A-Za-z_<][\w<>]*+:\d++
    | \([A-Za-z_][\w.]{0,60}:\d++\)(?=\s++(?:DEBUG|INFO|WARN|ERROR)) )
    (?![\w.])""",
    re.VERBOSE,
)
_LEVEL: Final = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]{1,60}:")  # the prefix of the logging module
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
"""Words of other languages with letters that English has not; `metric_words` has those without."""
_ENGLISH: Final = {word: english for english, words in _WORDS.items() for word in words.split()}
FOREIGN: Final = frozenset(_ENGLISH)
_FOREIGN: Final = re.compile(rf"(?<!\w)(?:{'|'.join(_ENGLISH)})(?!\w)", re.IGNORECASE)
_LETTER: Final = re.compile(r"[^\W\x00-\x7f]")
_PROCESS: Final = re.compile(r"\(\w{1,60} pid=\d{1,10}(?:, ip=[\d.]++)?\)")
"""The prefix of Ray for the lines of its actors."""
NO_ROW: Final = re.compile(
    r"\b(?:sav|load|restor|resum)(?:ed|ing)\s(?:from\s)?checkpoint|\d\s?[+*×]\s?\d++\s?=|\bimproved(?:\.| by | from )"
    r"|^\W*+(?:\w++\W++)?(?:params|parameters|hyperparameters|config|options|settings|args):\s[a-z]",
    re.IGNORECASE,
)
"""Lines that repeat numbers, as of a file or of the best so far, calculate, as a model's answer, or name settings."""
PATH: Final = re.compile(
    r"(?<![\w.=@%+~/-])(?:~?\.{0,2}/(?:[\w.=@%+~-]++/){2}[\w.=@%+~/-]*+|[\w=@%+~/-]*+(?:\.++[\w=@%+~/-]++)++"
    r"(?:(?<=\.pt|\.h5)|(?<=\.pth|\.bin|\.pkl|\.npz|\.npy)|(?<=\.ckpt|\.onnx)|(?<=\.keras)|(?<=\.safetensors)))"
)
_OF_EVALUATION: Final = re.compile(r"\W*+(?:\w++\W++)?(?:test|val|eval)[^.]*?\d\s?/\s?\d", re.IGNORECASE)
_OVER_MANY: Final = re.compile(r" (?:over|on|of|for|in) (?:the )?(?:last )?\d{1,7} [a-z]{1,20}(?=\s?[:=]\s?[-+]?\d)")
_NUMBER_SIGN: Final = re.compile(r"(?<=[A-Za-z] )#(?=\d)")
_FORTRAN: Final = re.compile(r"(?<=\d)D(?=[-+]\d\d)")
_WITH_MEAN: Final = re.compile(r"(?<=[:\s])-?\d++\.\d++(?:e[-+]\d++)?+ \(\s*(-?\d++\.\d++(?:e[-+]\d++)?+)\)")
_ASIDE: Final = re.compile(r"\s?\(\d{1,6}k? [a-z]{1,20}(?:, \d{1,6} [a-z]{1,20})?\)(?=\s?[:=])")
_QUOTIENT: Final = re.compile(r"\d{1,12}/\d{1,12}\s?=\s?(?=\d*+\.\d)")
_ATTACHED: Final = re.compile(r"(?<=[a-z])\(([a-z]{1,10})[ =]?(\d{1,6})\)", re.IGNORECASE)


def without_noise(text: str) -> str:
    """Return a line without dates, places in source code and wrappers such as `tensor(...)`, its words in English."""
    text = _DATE.sub(" ", _LEVEL.sub("", text) if text[:1] in "DIWEC" else text)
    if "(" in text:
        text = _ASIDE.sub("", _PROCESS.sub("", text))
        if _OF_EVALUATION.match(text):  # Test: [9/10] Loss 0.5 (0.4): the mean is the result
            text = _WITH_MEAN.sub(r"\1", text)
        text = _ATTACHED.sub(r"_\1_\2", _WRAPPER.sub(" ", _WRAPPED.sub(r"\1", text)))
    if "/" in text and "=" in text:
        text = _QUOTIENT.sub("", text)
    if _MAY_BE_PLACE.search(text):
        text = _PLACE.sub(" ", text)
    if " over " in text or " last " in text:  # Evaluation over 10 episodes: 234.2
        text = _OVER_MANY.sub("", text)
    if "#" in text:
        text = _NUMBER_SIGN.sub("", text)
    if "D-" in text or "D+" in text:
        text = _FORTRAN.sub("E", text)
    if not text.isascii() and _LETTER.search(text):
        text = _FOREIGN.sub(lambda found: _ENGLISH[found[0].lower()], text)
    return text
