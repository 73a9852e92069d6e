"""The text of the recipes that train an encoder: their common fields, its source, and how much of it there is."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nbtools.data import corpus, data_files, hub
from nbtools.data.first_rows import FirstRows
from nbtools.recipes import built_models, lora, named_model
from nbtools.recipes.recipe import SampleCounts, Source
from nbtools.settings import setting

PYTHON_TEXT = Source("the English text that ships with Python")
MODEL_NAME: Any = setting(
    None,
    "A local folder or hub id to start from (`from_pretrained`); None builds a ModernBERT of the size below.",
    shapes=True,
)
KEEP_MODEL_DROPOUT: Any = setting(
    False, "Keep the dropout that the config of `model_name` sets; otherwise `dropout` replaces it.", before=True
)
CLEAN: Any = setting(
    "none",
    "none keeps every character of your text; light drops lines without a letter, and repeated punctuation and "
    "spaces. The text that ships with Python is always cleaned.",
    before="light",
)
SPECIAL_TOKENS: Any = setting(
    "text",
    "Special tokens of `model_name` that are written in your text, such as </s>: text reads them as characters; "
    "tokens gives them their ids, for texts that a template wrote before.",
    before="tokens",
)
MIN_WORDS: Any = setting(5, "Files or rows with fewer words are left out.", "words", ge=1, le=1_000_000)


def check_encoder(config: Any) -> None:
    """Check that text, model and adapter fit together, or raise ValueError."""
    lora.check_adapter(config)
    hub.named(config.dataset)
    if config.model_name is None:
        built_models.check_modernbert_width(config.hidden_size, config.num_heads)


def text_source(config: Any, root: Path | None) -> Source:
    """Return the text of a config, without reading it; DataError if it is missing."""
    if config.dataset is None:
        return PYTHON_TEXT
    if (downloaded := hub.named(config.dataset)) is not None:
        hub.check_package(downloaded)
        streaming = getattr(config, "streaming", True)
        return Source(downloaded.title(getattr(config, "max_samples", None), streaming=streaming))
    return Source(config.dataset, tuple(data_files.files_in(data_files.dataset_path(config.dataset, root))))


def table_source(names: Sequence[str], root: Path | None) -> Source:
    """Return the tables of a config, without reading them; DataError if one is missing."""
    sources = [source for name in names for source in data_files.sources_of(name, root)]
    downloads = [source for source in sources if isinstance(source, hub.HubDataset)]
    for each in downloads:
        hub.check_package(each)
    titles = {each.dataset: each.title(streaming=each.is_part) for each in downloads}
    shown = [titles.get(name, name) for name in names[:3]]
    files = tuple(source for source in sources if isinstance(source, Path))
    return Source(", ".join(shown) + (", …" if len(names) > 3 else ""), files)


def guess_column(first: FirstRows) -> dict[str, str | tuple[str, ...] | None]:
    """Return the option `column` behind the dataset that a table most likely needs; None for the column `text`."""
    found = first.text_column()
    return {"column": None if found == "text" else found}


def count_samples(config: Any, root: Path | None, num_tokens: Callable[[str], int]) -> SampleCounts | None:
    """Return the numbers of sequences; None if they depend on a model's tokenizer, or on a download."""
    if config.model_name is not None or hub.named(config.dataset) is not None:
        return None
    documents = corpus.documents(config.dataset, config.min_words, clean=config.clean, root=root)
    taken = islice(documents, getattr(config, "max_samples", None))
    *sizes, note = corpus.count_tokens(taken, num_tokens, config.test_fraction)
    return SampleCounts.of(sizes, note, config.sequence_length)


def num_parameters_of(config: Any, vocab_size: int | None) -> int | None:
    """Return the number of weights of the model that a config names, else of the one that it builds."""
    if config.model_name is not None:
        return named_model.num_parameters(config)
    return built_models.num_modernbert_parameters(config, config.vocab_size if vocab_size is None else vocab_size)
