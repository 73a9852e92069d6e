"""Names of datasets on the Hugging Face hub, as a config's `dataset` gives them. Nothing is downloaded here."""

import importlib.util
import re
from dataclasses import dataclass

from nbtools.errors import DataError

PACKAGE = "datasets"
_NAME = re.compile(r"hf/(?P<path>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.-]+))?", re.ASCII)


@dataclass(frozen=True)
class HubDataset:
    """A dataset to download, with the split "train" of its texts."""

    dataset: str
    """As in the config."""
    path: str
    """On the hub, such as "allenai/c4"."""
    config: str | None = None
    """Configuration of a dataset with several, such as "en"."""
    max_samples: int | None = None
    """Default number of documents; None for all."""

    def title(self, max_samples: int | None, *, streaming: bool = True) -> str:
        """What is downloaded, in words."""
        config = f" ({self.config})" if self.config else ""
        most = max_samples or self.max_samples
        part = f"its first {most:,} documents" if most else "all its documents"
        whole = part if streaming else "all its files" + (f", of which {part} are taken" if most else "")
        return f"{self.path}{config} from the Hugging Face hub, a download of {whole}"


def named(dataset: str | None) -> HubDataset | None:
    """Return the dataset of the hub that `dataset` names: `imdb`, `hf`, `hf/OWNER/NAME` or `hf/OWNER/NAME:CONFIG`.

    Returns:
        None for a path. A file or folder that is called like these can be given as `./imdb`.

    Raises:
        DataError: it starts with hf/ and is not such a name.
    """
    if dataset == "imdb":
        return HubDataset(dataset, "stanfordnlp/imdb")
    if dataset == "hf":
        return HubDataset(dataset, "allenai/c4", "en", 500_000)
    if dataset is None or not dataset.startswith("hf/"):
        return None
    found = _NAME.fullmatch(dataset)
    if found is None:
        raise DataError(
            f"dataset={dataset[:200]!r}: a dataset of the Hugging Face hub is named hf/OWNER/NAME or "
            "hf/OWNER/NAME:CONFIG; a file or folder in hf/ is named ./hf/..."
        )
    return HubDataset(dataset, found["path"], found["config"])


def check_package(dataset: HubDataset) -> None:
    """Check that the package for downloads is installed, without an import.

    Raises:
        DataError: it is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise missing_package(dataset)


def missing_package(dataset: HubDataset) -> DataError:
    """Return the error that states how to install the package for downloads."""
    return DataError(
        f"dataset={dataset.dataset!r}: downloading needs the package {PACKAGE}, which is not installed: "
        f"bash scripts/lab.sh --setup-only installs it (or pip install {PACKAGE}); "
        "dataset=None trains on the text that ships with Python"
    )
