"""Special tokens written in a text, such as `</s>`: characters of it, or ids that control a model."""

import json
import re
import secrets

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_SIGN = f"\uffff{secrets.token_hex(8)}\uffff"
"""Stands before the name of a special token that a chat template wrote; no text can hold it."""
_PLACE = re.compile(_SIGN + "([0-9]+);")


class SpecialTokens:
    """The special tokens of a tokenizer, by the names that a text may hold."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._names = sorted({*added, *map(str, tokenizer.all_special_tokens)}, key=len, reverse=True)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._pattern = re.compile("|".join(map(re.escape, self._names)))
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return how many special tokens are written in a text."""
        return len(self._pattern.findall(text))

    def hidden(self, text: str) -> str:
        """Return a user's text for a chat template, with a place for each special token written in it."""
        return self._pattern.sub(lambda found: f"{_SIGN}{self._numbers[found[0]]};", text)

    def signed(self, rendered: str) -> str:
        """Return the chat template's output around `hidden` texts, for `text_backend` to encode.

        The template's own special tokens get a sign before them; those of the texts stand in their places again.
        """
        signed = self._pattern.sub(lambda found: _SIGN + found[0], rendered)
        return _PLACE.sub(lambda place: self._names[int(place[1])], signed)

    def text_backend(self) -> Tokenizer:
        """Return a copy of the tokenizer's backend, which reads special tokens without a sign as characters.

        In the copy their names begin with the sign. With `encode_special_tokens`, some models would still find "</s>"
        in their vocabulary (Unigram), and a template would have no special tokens.
        """
        content = json.loads(self._tokenizer.backend_tokenizer.to_str())
        signed = {name: _SIGN + name for name in self._names}
        for added in content["added_tokens"]:
            if added["content"] in signed:
                added |= {"content": signed[added["content"]], "special": True}
        model = content["model"]
        if isinstance(vocab := model["vocab"], dict):
            model["vocab"] = {signed.get(token, token): number for token, number in vocab.items()}
        else:
            model["vocab"] = [[signed.get(token, token), score] for token, score in vocab]
        if "merges" in model:  # a few vocabularies spell a special token by merges
            model["merges"] = [pair for pair in model["merges"] if not signed.keys() & {*pair, "".join(pair)}]
        if model.get("unk_token") in signed:
            model["unk_token"] = signed[model["unk_token"]]
        backend = Tokenizer.from_str(json.dumps(content))
        backend.no_truncation()
        backend.no_padding()
        return backend


def has_backend(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer's ids are those of its fast backend."""
    return bool(tokenizer.is_fast) and type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
