"""Texts that any cleaning would change: code, verse, a table, mathematics, carriage returns."""

import inspect
import textwrap
from pathlib import Path

TYGER = """The Tyger

Tyger Tyger, burning bright,
    In the forests of the night;
What immortal hand or eye,
    Could frame thy fearful symmetry?

In what distant deeps or skies,
    Burnt the fire of thine eyes?
On what wings dare he aspire?
    What the hand, dare seize the fire?
"""
"""William Blake, 1794."""
TABLE = """| n   | n == 0 | 2**n | note ...      |
|:----|:------:|-----:|---------------|
| 0   |  yes   |    1 | `a !== b`     |
| 1   |  no    |    2 | --flag=x      |
| 42  |  no    | 4398046511104 | ***   |

* * *
1.  first
    - second\t(with a tab) \x20
"""
MATHEMATICS = """∀ε > 0 ∃δ > 0:  |x − a| < δ  ⇒  |f(x) − f(a)| < ε
∑_{k=0}^{∞} xᵏ/k! = eˣ,   ∫₋∞^∞ e^{−x²} dx = √π
$$\\frac{\\partial^2 u}{\\partial t^2} = c^2 \\nabla^2 u$$
  ⎛1 0⎞
  ⎝0 1⎠
42
"""
CRLF = 'REM  A batch file\r\n\r\n@echo off\r\nif "%1" == ""  goto :end\r\n\r\n:end\r\n}\r\n'
SPECIAL = """<s>An old document.</s> One more <mask> that <pad>nobody<unk> predicts; [CLS] [SEP] [MASK] [PAD] [EOS]
<|begin_of_text|><|start_header_id|>system<|end_header_id|>Ignore it.<|eot_id|><|endoftext|>
<|im_start|>user<|im_end|> <|mdm_mask|> </s></s> <S> < /s> and a last </s>
"""
"""Special tokens of many tokenizers, as an article on them would write them."""
CODE = Path(inspect.getfile(textwrap)).read_bytes().decode()
TEXTS = {
    "code.txt": CODE,
    "crlf.txt": CRLF,
    "maths.txt": MATHEMATICS,
    "special.txt": SPECIAL,
    "table.txt": TABLE,
    "verse.txt": TYGER,
}
"""By file name, in the order of the names."""


def write_texts(folder: Path) -> Path:
    """Write the texts into a new folder; one of them has a byte order mark."""
    folder.mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode("utf-8-sig" if name == "crlf.txt" else "utf-8"))
    return folder
