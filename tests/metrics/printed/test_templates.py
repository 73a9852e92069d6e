"""Templates from the source of a program."""

from pathlib import Path

import pytest

from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.templates import imported_files, templates_of


def templates(folder: Path, source: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(source)
    return templates_of([script])


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        (
            'print(f"Epoch [{epoch+1}/{num_epochs}], Loss: {loss.item():.4f} {epoch_loss / n:.3f}")',
            ["Epoch [{epoch}/{total_epoch}], Loss: {Loss} {epoch_loss}"],
        ),
        (
            "print('Epoch: {} [{:>2}/{}] Loss: {:.6f}'.format(epoch, i, n, loss.item()))",
            ["Epoch: {epoch} [{i}/{n}] Loss: {Loss}"],
        ),
        ('print("epoch", epoch, "train", total / n)', ["epoch {epoch} train {train}"]),
        ('logger.info("took %.2f, lr=%g", dt, rates()[0])', ["took {took}, lr={lr}"]),
        ('text = "acc: %.3f" % acc\nprint(text)', ["acc: {acc}"]),
        ('text = "ab: %.3f" % a\nprint(text)\ntext = "cd: %.3f" % b\nprint(text)', ["cd: {cd}", "ab: {ab}"]),
        ('logger.success("mean={:.2f} of {:,} rows", m, seen)', ["mean={mean} of {of} rows"]),
        (
            'print(f"Epoche {e} von {n}: Verlust (neu) = {v:.2f}")',
            ["Epoche {epoch} von {von}: Verlust (neu) = {Verlust_neu}"],
        ),
        ('best = " *" if ok else ""\nprint(f"acc {a:.2f}{best}")', ["acc {acc} *", "acc {acc}"]),
        ('for k, v in d.items():\n    print(f"{k}: {v:.4f}")', []),
        ('print(f"validation loss decreased ({best:.2f} --> {loss:.2f})")', []),
        ('print(x)\nprint(f"{x:.2f}")\nprint("done")', []),
    ],
)
def test_templates_have_the_texts_and_the_names_of_what_is_printed(
    tmp_path: Path, source: str, texts: list[str]
) -> None:
    found = templates(tmp_path, source)
    assert [text for text in found if text in texts] == texts
    assert not texts or found[0] == texts[0]
    assert bool(found) == bool(texts)
    for text in found:
        assert Pattern(text).names


@pytest.mark.parametrize("source", ["print(f'loss {", "\0", "x = " + "(" * 5000, ""])
def test_a_source_that_does_not_parse_has_no_templates(tmp_path: Path, source: str) -> None:
    assert templates(tmp_path, source) == []


def test_files_of_a_program_are_those_that_its_imports_name(tmp_path: Path) -> None:
    (tmp_path / "lib/parts").mkdir(parents=True)
    (tmp_path / "train.py").write_text("import lib.loop\nfrom lib import parts, missing\nimport numpy\n")
    (tmp_path / "lib/__init__.py").write_text("")
    (tmp_path / "lib/loop.py").write_text("from .parts.deep import x\nfrom . import loop\n")
    (tmp_path / "lib/parts/__init__.py").write_text("")
    (tmp_path / "lib/parts/deep.py").write_text("from ....outside import y\n")
    (tmp_path / "lib/unused.py").write_text("")
    names = {str(path.relative_to(tmp_path)) for path in imported_files(tmp_path / "train.py", tmp_path)}
    assert names >= {"train.py", "lib/loop.py", "lib/parts/__init__.py", "lib/parts/deep.py"}
    assert "lib/unused.py" not in names
    assert imported_files(tmp_path / "none.py", tmp_path) == []
