"""The files, or the dataset of the hub, that the `dataset` of a config names. No torch."""

import contextlib
import re
import stat
from pathlib import Path

from nbtools.data import hub, tables
from nbtools.errors import DataError, did_you_mean, plural, shown
from nbtools.project import expanded, find_project

_SPLIT = re.compile("(train|training|test|testing|val|valid|validation|dev)(?![a-z])")
"""Start of the name of a file or folder that holds a split."""
_MOST_NAMED = 5
_ON_HUB = re.compile(r"(?:huggingface\.co|hf:)/+datasets/([\w.-]+/[\w.-]+)")


def dataset_path(dataset: str | Path, root: str | Path | None = None) -> Path:
    """Return the absolute path of a dataset, without options behind its name.

    A relative one starts from the project root, not from the caller's cwd.
    """
    path = expanded(hub.split_options(str(dataset))[0])
    if not path.is_absolute():
        path = Path(root if root is not None else find_project().root) / path
    return path


def tables_in(dataset: str, root: str | Path | None = None) -> list[tables.Source]:
    """Return the tables that `dataset` names, or its dataset of the hub; none if it is text."""
    if (downloaded := hub.named(dataset)) is not None:
        return [downloaded]
    files = files_in(dataset_path(dataset, root))
    return list(files) if tables.suffix_of(files[0]) in tables.SUFFIXES else []


def sources_of(dataset: str, root: str | Path | None = None) -> list[tables.Source]:
    """Return the files of the table that `dataset` names, of a recipe whose fields name its columns.

    Raises:
        DataError: a column is named behind it, or there is no such file, or it is no table.
    """
    if "column" in hub.split_options(dataset)[1]:
        raise DataError(f"dataset={dataset!r}: leave out ,column=; this recipe has fields for columns (text_col, ...)")
    if (downloaded := hub_dataset(dataset, root)) is not None:
        return [downloaded]
    path = dataset_path(dataset, root)
    files = files_in(path, wanted=f"a table ({' '.join(tables.SUFFIXES)}) or a folder of tables")
    if path.is_dir() and tables.suffix_of(files[0]) not in tables.SUFFIXES:
        raise DataError(f"dataset {str(path)!r}: a text folder; this recipe reads tables: {' '.join(tables.SUFFIXES)}")
    return list(files)


def hub_dataset(dataset: str | None, root: str | Path | None = None) -> hub.HubDataset | None:
    """Return the dataset of the hub that `dataset` names; None for a path.

    Raises:
        DataError: as `hub.named`; or a file or folder is called like it, which recipes that knew no hub used to read.
    """
    found = hub.named(dataset)
    name = hub.split_options(dataset or "")[0]
    if found is not None and "/" not in name and dataset_path(name, root).exists():
        raise DataError(
            f"dataset={dataset!r}: {name} is a file or folder here, and a dataset of the hub: write ./{name} or "
            f"hf/{found.path}{f':{found.config}' if found.config else ''}"
        )
    return found


def files_in(path: Path, *, wanted: str = "a text file, a table or a folder of .txt files") -> list[Path]:
    """Return the files of a dataset: itself, or every `.txt` below it, else every table, in the order of their paths.

    Beside `.txt` files, `.json` files may hold anything and are not read. Tables in hidden folders are not read.
    `wanted` says in an error what the recipe reads.

    Raises:
        DataError: there is no such path; or a folder has no such file, text and tables, several kinds of tables, or
            tables of several splits.
    """
    why, hint, kind = "neither a file nor a folder", "", 0
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        why, hint = "no such file or folder", _on_hub(path) or _near(path)
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        why = str(error)[:60]
    if stat.S_ISREG(kind):
        if (what := tables.NOT_READ.get(tables.suffix_of(path))) is not None:
            kinds = f"text and tables ({' '.join(tables.SUFFIXES)}; but for the first also .gz)"
            raise DataError(f"dataset {str(path)!r}: {what}, which is not read; unpack it, or save it as {kinds}")
        return [path]
    if not stat.S_ISDIR(kind):
        raise DataError(f"dataset {str(path)[:200]!r}: {why}; give {wanted}{hint}")
    _check_saved_dataset(path)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".txt" and file.is_file())
    found = _one_kind_of_tables(path, is_beside_text=bool(files))
    if files and found:
        raise DataError(
            f"dataset {str(path)!r}: holds text files ({files[0].name}, ...) and tables ({found[0].name}, ...); name "
            "one file, or move the others away"
        )
    files = files or found
    if not files:
        raise DataError(
            f"dataset {str(path)!r}: no .txt file in this folder or below, and no table ({' '.join(tables.SUFFIXES)}); "
            "rename the text files to *.txt"
        )
    return files


def _check_saved_dataset(folder: Path) -> None:
    """Refuse a folder that `save_to_disk` of the library `datasets` wrote."""
    is_dict = (folder / "dataset_dict.json").is_file()
    if is_dict or all((folder / name).is_file() for name in ("dataset_info.json", "state.json")):
        part = '["train"]' if is_dict else ""
        raise DataError(
            f"dataset {str(folder)!r}: a folder of save_to_disk, which is not read; save it as Parquet: "
            f'datasets.load_from_disk({str(folder)!r}){part}.to_parquet("NAME.parquet"), or name a dataset of the '
            "Hugging Face hub: hf/OWNER/NAME"
        )


def _near(path: Path) -> str:
    """Return the file or folder beside a missing path that its name may be meant as."""
    with contextlib.suppress(OSError):
        if near := did_you_mean(path.name, (each.name for each in path.parent.iterdir())):
            return f"; {near}"
    return ""


def _on_hub(path: Path) -> str:
    """Return how to name the dataset of the hub that a missing path may be meant as."""
    found = _ON_HUB.search(path.as_posix())
    name = "/".join(path.parts[-2:]) if found is None else found[1]
    is_meant = found is not None or (not path.suffix and not path.parent.exists() and path.parent.parent.is_dir())
    return f"; a dataset of the Hugging Face hub is named hf/{name}" if is_meant else ""


def _one_kind_of_tables(folder: Path, *, is_beside_text: bool) -> list[Path]:
    suffixes = set(tables.SUFFIXES) - ({".json"} if is_beside_text else set())
    found = sorted(file for file in folder.rglob("*") if tables.suffix_of(file) in suffixes and file.is_file())
    parts = {file: file.relative_to(folder).parts for file in found}
    files = [file for file in found if not any(part.startswith(".") for part in parts[file])]
    if is_beside_text:
        return files
    splits = {split[0][:3]: file for file in files for part in parts[file] if (split := _SPLIT.match(part.lower()))}
    if len(splits) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in splits.values())
        raise DataError(
            f"dataset {str(folder)!r}: has tables of {len(splits)} splits ({names}); name one file, or move those to "
            "train on into a folder of their own"
        )
    if len(kinds := sorted({tables.suffix_of(file) for file in files})) > 1:
        raise DataError(f"dataset {str(folder)!r}: has tables of {len(kinds)} kinds ({' '.join(kinds)}); name one file")
    return files


def not_read(folder: Path) -> list[str]:
    """Return a sentence on the files of a folder that are not read; hidden ones are not counted."""
    if not folder.is_dir():
        return []
    read = set(files_in(folder))
    found = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file not in read and file.is_file())
    names = [str(name) for name in found if not any(part.startswith(".") for part in name.parts)]
    more = ", ..." if len(names) > _MOST_NAMED else ""
    count = plural(len(names), "file")
    return [f"{count} of other types left out: {', '.join(names[:_MOST_NAMED])}{more}"] if names else []


def only_name(table: tables.Source) -> list[str]:
    """Return a sentence on the first line of a CSV file with one column, unless it is `text`."""
    if not isinstance(table, Path) or tables.suffix_of(table) not in (".csv", ".tsv"):
        return []
    with tables.opened(table) as (header, _):
        if len(header) > 1 or header[0] == "text":
            return []
        return [f"the first line of {table.name}, {shown(header[0])}, is the name of its column; add one if it is text"]
