"""Writes texts with the trained generator of an LLM GAN.

Shape suffixes: N or B texts, P positions of a prompt, T positions of a text.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from nbtools.recipes import LLMGANConfig
from nbtools.recipes.predict_settings import Input, LLMGANPredict
from nbtools.training.engine.checkpoint import open_model
from nbtools.training.engine.optimizer import autocast
from nbtools.training.engine.sampler import numbers_of, told_apart, uniforms
from nbtools.training.llm_gan.dataset import alphabet_of, prompt_rows, prompt_template
from nbtools.training.llm_gan.gan_data import as_text, markov_alphabet, markov_prompts
from nbtools.training.text.causal_sampling import write
from nbtools.training.text.tokenizers import encode_all, load_tokenizer


class Predictor:
    """A loaded generator, and its tokenizer unless it was trained on the Markov chain."""

    def __init__(self, folder: Path, config: LLMGANConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.model = open_model(folder / "generator").to(device)  # type: ignore[arg-type]
        self.num_parameters = self.model.num_parameters()
        self.tokenizer: PreTrainedTokenizerBase | None = None
        if config.dataset is not None:
            self.tokenizer = load_tokenizer(str(folder / "generator"))
            self.template = prompt_template(config, self.tokenizer)

    def predict(self, inputs: Sequence[Input], settings: LLMGANPredict) -> Iterator[dict[str, Any]]:
        """Yield for each prompt its texts, `texts`, and all of them in one, `text`.

        The random numbers of a text depend on the seed, its prompt and its number among the texts of the prompt alone:
        equal prompts have equal texts, whatever the batch. Rows without a prompt are distinguished by their number.
        """
        num_texts, keys = settings.num_texts, told_apart(map(str, inputs))
        at_once = max(settings.predict_batch_size // num_texts, 1)
        for start in range(0, len(inputs), at_once):
            encoded = self._encoded([str(text) for text in inputs[start : start + at_once]])
            rows = [{"error": self._too_long(tokens)} for tokens in encoded]
            readable = [place for place, row in enumerate(rows) if not row["error"]]
            drafts = [(place, number) for place in readable for number in range(num_texts)]
            numbers_N = numbers_of(f"{number} {keys[start + place]}" for place, number in drafts)
            written = self._written([encoded[place] for place, _ in drafts], numbers_N, settings)
            for index, place in enumerate(readable):
                texts = written[index * num_texts : (index + 1) * num_texts]
                rows[place] = {"text": "\n\n".join(texts), "texts": texts}  # type: ignore[dict-item]
            yield from rows

    def _encoded(self, prompts: Sequence[str]) -> list[Sequence[int]]:
        """Return the tokens of prompts; the Markov chain has none."""
        if self.tokenizer is None:
            return [()] * len(prompts)
        level = self.config.tokenizer if self.config.model_name is None else "model"
        return [list(map(int, tokens)) for tokens in encode_all(prompts, self.tokenizer, level)]

    def _too_long(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        room = self.config.prompt_length - len(self.template.before) - len(self.template.after)
        if len(tokens) <= room:
            return ""
        return f"the prompt has {len(tokens)} tokens, and the model was trained with at most {room}; shorten it"

    def _written(
        self, prompts: Sequence[Sequence[int]], numbers_N: np.ndarray[Any, Any], settings: LLMGANPredict
    ) -> list[str]:
        """Return one text for each prompt, from the random numbers with its number."""
        config, tokenizer = self.config, self.tokenizer
        uniforms_NT = uniforms(settings.seed, "predict", 0, numbers_N, config.sequence_length)
        if tokenizer is None:
            whole: list[Sequence[int]] = [row.tolist() for row in markov_prompts(len(prompts))]
            alphabets = [markov_alphabet(config)] * len(whole)
        else:
            whole = [self.template.around(prompt, config.prompt_length) for prompt in prompts]
            unknown = {tokenizer.unk_token_id} if config.model_name is None else set()  # texts may have held it
            of_all = config, tokenizer, self.model.config.vocab_size
            alphabets = [alphabet_of(*of_all, {*tokens}, unknown) for tokens in whole]  # of each prompt alone
        texts = [""] * len(whole)
        for alphabet in dict.fromkeys(alphabets):
            some = [row for row, own in enumerate(alphabets) if own == alphabet]
            chosen = [whole[row] for row in some]
            prompts_NP = prompt_rows(chosen, max(map(len, chosen)), alphabet.pad_id)
            prompts_BP = torch.from_numpy(prompts_NP.astype(np.int64)).to(self.device)
            uniforms_BT = torch.from_numpy(uniforms_NT[some]).to(self.device)
            with autocast(self.device, config.precision):
                texts_BT = write(self.model, prompts_BP, uniforms_BT, alphabet, temperature=settings.temperature)
            for row, tokens, is_token in zip(some, texts_BT.cpu(), alphabet.mask(texts_BT).cpu(), strict=True):
                texts[row] = as_text(tokens[is_token].tolist(), tokenizer)
        return texts
