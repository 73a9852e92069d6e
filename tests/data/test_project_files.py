"""The files of a project that a form offers: which are found, and where the walk ends."""

import json
from pathlib import Path

from nbtools.data.project_files import find_data, find_files


def write(path: Path, text: str = "text\nx\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_tables_are_found_near_the_root_first(tmp_path: Path) -> None:
    for name in ("a/b/c/deep.csv", "data/z.TSV", "reviews.csv.gz", "notes.md", "book.txt", "data/x.parquet"):
        write(tmp_path / name)
    assert find_data(tmp_path, has_text=False).names == (
        "reviews.csv.gz",
        "data/x.parquet",
        "data/z.TSV",
        "a/b/c/deep.csv",
    )


def test_text_files_and_folders_of_several_are_found_for_a_recipe_that_reads_text(tmp_path: Path) -> None:
    for name in ("book.txt", "books/1.txt", "books/2.txt", "one/1.txt"):
        write(tmp_path / name)
    assert find_data(tmp_path, has_text=True).names == ("book.txt", "books", "books/1.txt", "books/2.txt", "one/1.txt")
    assert find_data(tmp_path, has_text=False).names == ()


def test_folders_without_data_of_the_users_are_not_entered(tmp_path: Path) -> None:
    for folder in (".git", "runs/2026", "node_modules/x", "scripts", "a/b/c/d", "mine/lib"):
        write(tmp_path / folder / "table.csv")
    write(tmp_path / "mine" / "pyvenv.cfg", "home = /usr/bin")
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    assert find_data(tmp_path, has_text=True).names == ()


def test_json_files_that_hold_no_rows_are_not_offered(tmp_path: Path) -> None:
    write(tmp_path / "package.json", json.dumps({"name": "x", "scripts": {}}, indent=2))
    write(tmp_path / "list.json", json.dumps([{"text": "a"}], indent=2))
    write(tmp_path / "lines.json", '{"text": "a"}\n{"text": "b"}\n')
    write(tmp_path / "numbers.json", "[1, 2]")
    assert find_data(tmp_path, has_text=False).names == ("lines.json", "list.json")


def test_walk_through_many_files_ends_and_says_so(tmp_path: Path) -> None:
    for number in range(2500):
        (tmp_path / f"{number:04}.log").touch()
    write(tmp_path / "z.csv")
    asked: list[Path] = []
    found = find_files(tmp_path, lambda path: bool(asked.append(path)))
    assert not found.is_complete
    assert len(asked) == 2000
    assert find_files(tmp_path / "absent", lambda path: True).names == ()
