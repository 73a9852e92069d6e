"""Documents of a dataset as a list, and their division by `split.divide` as texts."""

from pathlib import Path

from nbtools.data import corpus, split


def read_documents(
    dataset: str | None, min_words: int = 1, *, clean: corpus.Clean = "none", root: Path | None = None
) -> list[str]:
    return list(corpus.documents(dataset, min_words, clean=clean, root=root))


def split_documents(documents: list[str], test_fraction: float = 0.0) -> tuple[list[str], list[str]]:
    """Return the training documents and the held-out ones."""
    parts_N = split.divide(split.keys_of(documents), [len(document) for document in documents], test_fraction)
    parts: tuple[list[str], list[str]] = ([], [])
    for document, part in zip(documents, parts_N.tolist(), strict=True):
        parts[part != split.TRAIN].append(document)
    return parts


def num_sequences(documents: list[str], sequence_length: int) -> int:
    """Full sequences in the stream of all words, with one separator after each document."""
    return sum(corpus.num_words(document) + 1 for document in documents) // sequence_length
