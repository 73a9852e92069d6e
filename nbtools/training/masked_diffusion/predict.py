"""Writes with a trained masked diffusion model: texts and their continuations, or answers to prompts.

Prompts of equal length are unmasked together. The random numbers of an answer depend on the seed and its prompt alone:
equal prompts have equal answers, whatever the batch; rows without a prompt are distinguished by their number. (Batches
of other sizes differ in the rounding of the arithmetic, which can decide between two tokens that are equally likely.)

Shape suffixes: B batch, P prompt, T positions.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbtools.data.masked_diffusion.pairs import Pair
from nbtools.errors import ConfigError, NbtoolsError
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.predict_settings import Input, MaskedDiffusionPredict
from nbtools.training.engine.optimizer import autocast
from nbtools.training.engine.sampler import numbers_of, told_apart
from nbtools.training.masked_diffusion.chat_template import render_pair
from nbtools.training.masked_diffusion.model import open_denoiser
from nbtools.training.masked_diffusion.sampling import Unmasking, end_ids, rendered, unmask, unmasking_of
from nbtools.training.text.special_tokens import SpecialTokens, has_backend
from nbtools.training.text.tokenizers import encode_all, load_tokenizer

_AT_ONCE = 1024
"""Prompts among which those of equal length are found."""


class Predictor:
    """A loaded masked diffusion model and its tokenizer."""

    def __init__(self, folder: Path, config: MaskedDiffusionConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.tokenizer = load_tokenizer(str(folder), trust_remote_code=config.trust_remote_code)
        self.denoiser = open_denoiser(folder, config, self.tokenizer).to(device)
        self.denoiser.eval()
        self.num_parameters = self.denoiser.model.num_parameters()

    def predict(self, inputs: Sequence[Input], settings: MaskedDiffusionPredict) -> Iterator[dict[str, Any]]:
        """Yield for each prompt its continuation, `text`, and with `num_frames` the intermediate states, `frames`."""
        keys = told_apart(map(str, inputs))
        for start in range(0, len(inputs), _AT_ONCE):
            rows: dict[int, dict[str, Any]] = {}
            prompts: dict[int, Sequence[int]] = {}
            for place, given in enumerate(inputs[start : start + _AT_ONCE]):
                try:
                    prompts[place] = self._encoded(str(given), settings)
                    self._unmasking(len(prompts[place]), settings)
                except NbtoolsError as error:
                    rows[place] = {"error": str(error)}
            readable = sorted(prompts.keys() - rows.keys(), key=lambda place: len(prompts[place]))
            for length, group in groupby(readable, key=lambda place: len(prompts[place])):
                unmasking, places = self._unmasking(length, settings), list(group)
                for first in range(0, len(places), settings.predict_batch_size):
                    some = places[first : first + settings.predict_batch_size]
                    seeds = numbers_of(f"{settings.seed} {keys[start + place]}" for place in some).tolist()
                    written = self._written([prompts[place] for place in some], unmasking, settings, seeds)
                    rows |= dict(zip(some, written, strict=True))
            yield from (rows[place] for place in sorted(rows))

    def _encoded(self, prompt: str, settings: MaskedDiffusionPredict) -> Sequence[int]:
        """Return the tokens of a prompt, in the tokenizer's chat template if there is one."""
        reads, special = self.config.special_tokens, None
        if prompt and settings.chat_template and self.tokenizer.chat_template is not None:
            if has_backend(self.tokenizer) and reads == "text":
                special = SpecialTokens(self.tokenizer)
            else:
                reads = "tokens"  # the template has special tokens
            prompt, _ = render_pair(self.tokenizer, Pair(prompt, "", 1), "", special)
        return list(next(encode_all([prompt], self.tokenizer, "model", reads)))

    def _unmasking(self, prompt_length: int, settings: MaskedDiffusionPredict) -> Unmasking:
        """Return the sampling settings for a prompt of `prompt_length` tokens; ConfigError if it leaves no room."""
        longest, block = self.config.sequence_length, settings.sample_block_length
        room = longest - prompt_length
        length = settings.sample_length or min(room, 64) // (block or 1) * (block or 1)
        if length > room or length < 1:
            raise ConfigError(
                f"the prompt has {prompt_length} tokens, which leaves {max(room, 0)} of the {longest} that the model "
                f"was trained with; shorten it, or lower {'sample_length' if settings.sample_length else 'the block'}"
            )
        steps = settings.sample_steps or length
        return unmasking_of(settings, self.tokenizer, (length, steps, block or length))

    def _written(
        self, prompts: Sequence[Sequence[int]], unmasking: Unmasking, settings: MaskedDiffusionPredict, seeds: list[int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of prompts of equal length, each from the random numbers of its seed."""
        tokenizer, mask_id = self.tokenizer, self.denoiser.mask_id
        prompts_BP = torch.tensor(prompts, dtype=torch.long, device=self.device)
        wanted = set(np.linspace(0, unmasking.steps, settings.num_frames).astype(int)) if settings.num_frames else set()
        kept, generators = [], [torch.Generator(self.device).manual_seed(seed) for seed in seeds]
        with autocast(self.device, self.config.precision):
            states = unmask(self.denoiser.logits, prompts_BP, unmasking, mask_id=mask_id, generator=generators)
            for step, tokens_BT in enumerate(states):
                if step in wanted or step == unmasking.steps:
                    kept.append(tokens_BT[:, prompts_BP.shape[1] :].cpu())
        for row in range(len(prompts)):
            tokens = kept[-1][row].tolist()
            end = next((place for place, token in enumerate(tokens) if token in end_ids(tokenizer)), len(tokens))
            is_chat = settings.chat_template and tokenizer.chat_template is not None
            found: dict[str, Any] = {"text": self._behind([] if is_chat else list(prompts[row]), tokens[:end])}
            if wanted:
                found["frames"] = [rendered(tokenizer, state[row], mask_id) for state in kept]
            yield found

    def _behind(self, prompt: list[int], tokens: list[int]) -> str:
        """Return tokens as text as it follows that of `prompt`: between words it begins with a space."""
        decode = partial(self.tokenizer.decode, clean_up_tokenization_spaces=False)
        before, whole = str(decode(prompt)), str(decode(prompt + tokens))
        return whole.removeprefix(before) if whole.startswith(before) else str(decode(tokens))
