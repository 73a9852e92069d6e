"""Texts that any cleaning would change: code, verse, a table, mathematics, carriage returns."""

import inspect
import textwrap
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

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


NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
"""Special tokens of RoBERTa, in the order of their ids."""


def byte_level(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer as RoBERTa's, whose file asks for truncation and padding."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    options = {"special_tokens": [*NAMES.values()], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    backend.train_from_iterator(texts, BpeTrainer(vocab_size=vocab_size, show_progress=False, **options))
    backend.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    backend.enable_truncation(16)
    backend.enable_padding(pad_id=1, pad_token="<pad>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES)
