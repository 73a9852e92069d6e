"""Going on from the weights that an older program saved: what is taken, what is said, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Train
from safetensors.torch import load_file

from nbtools.errors import CheckpointError
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.initial_state import read_weights

from trainings import Planted


def weights_of(files: RunDir, step: int) -> dict[str, torch.Tensor]:
    return load_file(files.checkpoint(step) / "model" / "model.safetensors")


@pytest.mark.promise("guide-L14")
def test_weights_of_an_old_checkpoint_are_loaded_and_everything_else_starts_anew(
    tiny_training: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = tiny_training()
    content = {f"_orig_mod.module.{name}": weight for name, weight in weights_of(first, 4).items()}
    old = tmp_path / "checkpoint_epoch_5.pt"
    torch.save({"epoch": 5, "model_state_dict": content, "optimizer_state_dict": {}, "vocab_size": 45}, old)
    assert "weights          random, since model_name is None; --model-name NAME starts from" in capfd.readouterr().out
    # A rate that changes nothing: what is saved is what was loaded.
    second = tiny_training(resume_from=old, learning_rate=1e-12, weight_decay=0.0, max_steps=2)
    said = capfd.readouterr().out
    assert f"note: weights only, from {old}: optimizer and place in the data start from the beginning" in said
    assert "resumed from" in said and f"from {old}; names in the files are read without '_orig_mod.', 'module.'" in said
    for name, weight in weights_of(second, 2).items():
        torch.testing.assert_close(weight, weights_of(first, 4)[name], rtol=0, atol=1e-6)
    assert (read_json(second.finished) or {})["step"] == 2


@pytest.mark.promise("guide-L14", "guide-A14")
@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model", None])
def test_weights_are_found_with_and_without_a_key(tmp_path: Path, key: str | None) -> None:
    weights = {"a.weight": torch.ones(2), "module.b": torch.zeros(1)}
    torch.save({key: weights, "epoch": 3} if key else weights, tmp_path / "old.pt")
    read = read_weights(tmp_path / "old.pt")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_weights_in_torch_s_older_format_are_read(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_weights(tmp_path / "old.pt")["a.weight"], torch.ones(2))


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {"a": torch.ones(1)}, "more": Planted(tmp_path / "pwned")}, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match=r"old\.pt: cannot be read"):
        read_weights(tmp_path / "old.pt")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model_state_dict": {}}, "it is empty"),
        ({"epoch": 5}, "'epoch' is a int"),
        ({"model_state_dict": {"a": torch.ones(1), "b": "text"}}, "'b' is a str"),
        ([1, 2], "holds no state"),
        *((content, "cannot be read") for content in (b"", b"PK\x03\x04 no archive", b"text", b"\x80\x02]q\x00.")),
    ],
)
def test_a_file_without_weights_is_refused(tmp_path: Path, content: object, said: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / "old.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match=rf"old\.pt: .*{said}"):
        read_weights(tmp_path / "old.pt")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights | {"extra": torch.ones(1)}, "extra is not part of this model"),
        (lambda weights: dict(list(weights.items())[1:]), "is missing"),
        (lambda weights: {name: torch.ones(7, 7) for name in weights}, r"is \(7, 7\), not"),
    ],
)
def test_weights_of_another_model_are_refused_before_the_first_step(
    tiny_training: Train, tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    torch.save({"model_state_dict": change(weights_of(tiny_training(), 4))}, tmp_path / "old.pt")
    with pytest.raises(SystemExit, match=f"old.pt: its weights are of another model .*{said}"):
        tiny_training(resume_from=tmp_path / "old.pt")
