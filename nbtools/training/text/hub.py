"""Texts of datasets on the Hugging Face hub, downloaded with the `datasets` library."""

from collections.abc import Iterator, Mapping
from typing import Any

from nbtools.data.hub import HubDataset, missing_package
from nbtools.errors import DataError
from nbtools.training.text.pretrained import first_line

TEXT = "text"


def texts(dataset: HubDataset, *, streaming: bool = True) -> Iterator[str]:
    """Yield the texts of the split "train", in the hub's order.

    Args:
        streaming: download while reading; False downloads all files first and keeps them.

    Raises:
        DataError: the library is missing, the hub is unreachable, the dataset does not exist, or has no text.
    """
    column = None
    for row in _rows(dataset, streaming=streaming):
        if column is None:
            column = text_column(row, dataset)
        text = row[column]
        if text is not None and not isinstance(text, str):
            raise DataError(
                f"dataset={dataset.dataset!r}: column {column!r} of {dataset.path} holds {type(text).__name__} "
                "beside text; choose a dataset of plain texts"
            )
        yield text or ""


def text_column(row: Mapping[str, Any], dataset: HubDataset) -> str:
    """Return the column to train on: `text`, else the only column of text; DataError if there is none, or several."""
    columns = [name for name, value in row.items() if isinstance(value, str)]
    if TEXT in columns or (TEXT in row and row[TEXT] is None):
        return TEXT
    if len(columns) == 1:
        return columns[0]
    found = f"several columns of text ({', '.join(columns)})" if columns else f"no text, only {', '.join(row)}"
    raise DataError(
        f"dataset={dataset.dataset!r}: {dataset.path} has {found} and none called {TEXT!r}; choose a dataset with one, "
        "or write its texts into .txt files and give their folder"
    )


def _rows(dataset: HubDataset, *, streaming: bool) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets  # takes a hundred megabytes: loaded only when needed
    except ImportError as error:
        raise missing_package(dataset) from error
    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(dataset.path, dataset.config, split="train", streaming=streaming)
    except Exception as error:  # of any library that takes part in a download
        config = f" ({dataset.config})" if dataset.config else ""
        raise DataError(
            f"dataset={dataset.dataset!r}: {dataset.path}{config} cannot be read from the Hugging Face hub "
            f"({type(error).__name__}: {first_line(error)}); check its name and the network (HF_ENDPOINT names a "
            "mirror), or train on a file or folder of text: dataset=PATH"
        ) from error
