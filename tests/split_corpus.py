"""Documents of a dataset as a list, and the split of `corpus.held_out_documents` as texts."""

from pathlib import Path

from nbtools.data import corpus


def read_documents(
    dataset: str | None, min_words: int = 1, *, clean: corpus.Clean = "none", root: Path | None = None
) -> list[str]:
    return list(corpus.documents(dataset, min_words, clean=clean, root=root))


def split_documents(documents: list[str], seed: int = 0) -> tuple[list[str], list[str]]:
    """Return the training documents and the held-out ones."""
    held_out_N = corpus.held_out_documents([len(document) for document in documents], seed).tolist()
    parts: tuple[list[str], list[str]] = ([], [])
    for document, is_held_out in zip(documents, held_out_N, strict=True):
        parts[is_held_out].append(document)
    return parts


def num_sequences(documents: list[str], sequence_length: int) -> int:
    """Full sequences in the stream of all words, with one separator after each document."""
    return sum(corpus.num_words(document) + 1 for document in documents) // sequence_length
