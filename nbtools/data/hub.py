"""Datasets as a config's `dataset` names them, with options; rows of datasets on the Hugging Face hub. No torch."""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.errors import DataError, needs_package

PACKAGE = "datasets"
_PART = r"(?![^/:]*(?:--|\.\.))\w(?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"hf/(?P<path>(?:{_PART}/)?{_PART}(?<!\.git))(?::(?P<config>\w[\w.-]*))?", re.ASCII)
"""The rules of the hub's own client."""
_OPTION = re.compile(r',(column|split|revision)=("(?:[^"]|"")+"|[^,="][^,=]*)\Z')
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_FIRST_ROWS = re.compile(r"([\w.-]+)\[:(\d+)\]", re.ASCII)


@dataclass(frozen=True)
class HubDataset:
    """A dataset to download."""

    dataset: str
    """The `dataset` of the config."""
    path: str
    """Repository on the hub, such as "allenai/c4"."""
    config: str | None = None
    """Configuration of a dataset with several, such as "en"."""
    max_samples: int | None = None
    """Default number of documents; None for all."""
    split: str = "train"
    revision: str | None = None
    """Branch, tag or commit; None for the newest version."""
    column: str | None = None
    """Column with the text; None if the user did not name it."""

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        """Name for messages, like `Path.name`."""
        return self.path

    @property
    def first_rows(self) -> tuple[str, int] | None:
        """Split and number of rows of a split such as "train[:5000]", which can be streamed."""
        found = _FIRST_ROWS.fullmatch(self.split)
        return None if found is None else (found[1], int(found[2]))

    @property
    def is_part(self) -> bool:
        """Whether only the first rows are read, so that a download of all files would be waste."""
        return self.first_rows is not None or self.max_samples is not None

    def title(self, max_samples: int | None = None, *, streaming: bool = True) -> str:
        """A description of the download."""
        given = [self.config, None if self.split == "train" else f"split {self.split}", self.revision]
        named = ", ".join(filter(None, given))
        most = max_samples or self.max_samples or (self.first_rows or ("", None))[1]
        part = f"its first {most:,} documents" if most else "all its documents"
        whole = part if streaming else "all its files" + (f", of which {part} are used" if most else "")
        return f"{self.path}{f' ({named})' if named else ''} from the Hugging Face hub, a download of {whole}"


def split_options(dataset: str) -> tuple[str, dict[str, str]]:
    """Return the name in `dataset`, and the options behind it: `NAME,column=body,split=test,revision=v2`.

    As in CSV, a value with a comma or =, and a name that ends like an option, stand in double quotes.
    """
    options: dict[str, str] = {}
    while not _QUOTED.fullmatch(dataset) and (found := _OPTION.search(dataset)):
        if found[1] in options:
            raise DataError(f"dataset={dataset[:200]!r}: has {found[1]}= twice; keep one")
        options[found[1]] = _without_quotes(found[2])
        dataset = dataset[: found.start()]
    return _without_quotes(dataset), options


def with_options(name: str, options: Mapping[str, str]) -> str:
    """Return the text that `split_options` reads as a name and options."""
    first = _quoted(name) if _OPTION.search(name) or name.startswith('"') else name
    plain = re.compile('[^,="][^,=]*')
    return first + "".join(f",{key}={v if plain.fullmatch(v) else _quoted(v)}" for key, v in options.items())


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _without_quotes(text: str) -> str:
    return text[1:-1].replace('""', '"') if _QUOTED.fullmatch(text) else text


def named(dataset: str | None) -> HubDataset | None:
    """Return the dataset of the hub that `dataset` names: `imdb`, `hf`, `hf/OWNER/NAME` or `hf/OWNER/NAME:CONFIG`.

    Each may be followed by options (see `split_options`).

    Returns:
        None for a path. A file or folder that is called like these can be given as `./imdb`.

    Raises:
        DataError: it starts with hf/ and is not such a name, or a path has a split or revision.
    """
    if dataset is None:
        return None
    name, options = split_options(dataset)
    if name == "imdb":
        return HubDataset(dataset, "stanfordnlp/imdb", None, None, **options)
    if name == "hf":
        return HubDataset(dataset, "allenai/c4", "en", 500_000, **options)
    if not name.startswith("hf/"):
        if wrong := options.keys() - {"column"}:
            raise DataError(
                f"dataset={dataset[:200]!r}: {min(wrong)}= belongs to a dataset of the Hugging Face hub "
                "(hf/OWNER/NAME); name the file or folder of the split"
            )
        return None
    found = _NAME.fullmatch(name)
    if found is None:
        raise DataError(
            f"dataset={dataset[:200]!r}: a dataset of the Hugging Face hub is named hf/OWNER/NAME or "
            "hf/OWNER/NAME:CONFIG, then options such as ,split=test,column=body,revision=main. Each part begins with a "
            "letter, a digit or _, and has - and . beside these inside, but no -- and no .., not .git at the end, and "
            "at most 96 characters. A file or folder in hf/ is named ./hf/..."
        )
    return HubDataset(dataset, found["path"], found["config"], None, **options)


def check_package(dataset: HubDataset) -> None:
    """Check that the package for downloads is installed, without an import; DataError if it is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        lacks = needs_package(f"dataset={dataset.dataset!r}: downloading", PACKAGE)
        raise DataError(f"{lacks}; dataset=None trains on the text that ships with Python")


def hub_rows(dataset: HubDataset, *, streaming: bool = True) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a split, in the hub's order.

    Args:
        dataset: its split may be a part in the notation of `datasets`; only `NAME[:NUMBER]` can be streamed.
        streaming: download while reading; False downloads all files first and keeps them.

    Raises:
        DataError: the library is missing, the hub is unreachable, or the dataset, split or revision does not exist.
    """
    check_package(dataset)
    first = dataset.first_rows if streaming else None
    options: dict[str, Any] = {"split": first[0] if first else dataset.split, "revision": dataset.revision}
    options["streaming"] = streaming and (first is not None or "[" not in dataset.split)
    try:
        import datasets  # takes a hundred megabytes: loaded only when needed

        datasets.disable_progress_bars()
        rows = datasets.load_dataset(dataset.path, dataset.config, **options)
        yield from rows.take(first[1]) if first else rows
    except Exception as error:  # of any library that takes part in a download
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        choice = f"; choose another split than {dataset.split}: ,split=NAME" if "split" in str(error).lower() else ""
        config = f" ({dataset.config})" if dataset.config else ""
        raise DataError(
            f"dataset={dataset.dataset!r}: {dataset.path}{config} cannot be read from the Hugging Face hub "
            f"({why}){choice}; check its name and the network (HF_ENDPOINT names a "
            "mirror), or train on a file or folder of text: dataset=PATH"
        ) from error


def commits_of(*datasets: str | None) -> dict[str, str]:
    """Return the known commits of the latest downloads of these datasets, by name on the hub."""
    found: dict[str, str] = {}
    for dataset in filter(None, map(named, datasets)):
        commit = cached_commit(dataset.path, "README.md", revision=dataset.revision, repo_type="dataset")
        found |= {dataset.path: commit} if commit else {}
    return found


def cached_commit(repository: str, file: str, **options: Any) -> str | None:
    """Return the commit of the latest download of a file: README.md of a dataset, config.json of a model."""
    path = cached_file(repository, file, **options)
    return None if path is None else path.parent.name  # snapshots/COMMIT/FILE


def cached_file(repository: str, file: str, **options: Any) -> Path | None:
    """Return the latest download of a file of the hub, if there is one; asks the hub's cache alone."""
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(repository, file, **options)
    except (ImportError, ValueError, OSError):  # no package, or the name of a local folder
        return None
    return Path(path) if isinstance(path, str) else None
