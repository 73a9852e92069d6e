"""OccCANINE's published layouts: models built here from the names and shapes of its files, by code of their own."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Train
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CanineConfig, CanineModel

from nbtools.cli.export import export
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.errors import CheckpointError, ConfigError, DataError
from nbtools.project import Project
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.predict_settings import TextClassificationPredict
from nbtools.recipes.text_classification import load_samples
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json
from nbtools.training.merge_checkpoint import merge_parts
from nbtools.training.text_classification import model
from nbtools.training.text_classification.dataset import encode, padded
from nbtools.training.text_classification.predict import Predictor
from nbtools.training.text_classification.published import published_model

from trainings import OCCUPATIONS, TINY, ByHand, assert_same_checkpoints, rows, write_inputs

LENGTH = 40
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZE |= {"num_hash_buckets": 50, "max_position_embeddings": LENGTH}
CODES = sorted({code for row in OCCUPATIONS for code in row.codes} | {"-1", "01110", "99999"}, reverse=True)
"""In the order of the rows of the flat head, which is not that of nbtools."""
HISCO = {"num_classes": [18] * 27, "n_classes": len(CODES), "num_classes_flat": len(CODES)}
TYPES = {"flat": "canine", "seq2seq": "seq2seq", "mixer": "seq2seq_mixer"}


class Hub(nn.Module, PyTorchModelHubMixin):
    """A published model, of a layout in `TYPES`; the mixin of the hub writes and reads its folder."""

    def __init__(self, config: dict[str, Any], layout: str) -> None:
        super().__init__()
        width, encoder = SIZE["hidden_size"], CanineModel(CanineConfig(**SIZE))
        if layout == "flat":
            self.basemodel, self.out = encoder, nn.Linear(width, config["n_classes"])
            return
        num_symbols, inner = max(config["num_classes"]) + 1, config.get("decoder_dim_feedforward", width)
        self.encoder, self.decoder = encoder, nn.Module()
        self.decoder.token_emb, self.decoder.positional_encoding = nn.Module(), nn.Module()
        self.decoder.token_emb.embedding = nn.Embedding(num_symbols, width)
        table = torch.zeros(128, 1, width)
        for place in range(128):
            for pair in range(0, width, 2):
                angle = place * math.exp(-pair * math.log(10000) / width)
                table[place, 0, pair : pair + 2] = torch.tensor([math.sin(angle), math.cos(angle)])
        self.decoder.positional_encoding.register_buffer("pos_embedding", table)
        self.decoder.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 8, inner, dropout=0.0), 3)
        self.decoder.head = nn.Linear(width, num_symbols)
        if layout == "mixer":
            self.linear_decoder = nn.Linear(width, config["num_classes_flat"])

    def flat(self, texts: Tensor) -> Tensor:
        encoder, head = (self.basemodel, self.out) if hasattr(self, "out") else (self.encoder, self.linear_decoder)
        logits: Tensor = head(encoder(input_ids=texts, attention_mask=(texts > 0).long()).pooler_output)
        return logits

    def spelled(self, texts: Tensor, symbols: Tensor) -> Tensor:
        """Logits of the decoder, which reads the whole memory; sequence first."""
        memory = self.encoder(input_ids=texts, attention_mask=(texts > 0).long()).last_hidden_state
        length = symbols.shape[1]
        read = self.decoder.token_emb.embedding(symbols.T) * math.sqrt(SIZE["hidden_size"])
        read = read + self.decoder.positional_encoding.pos_embedding[:length]
        mask = torch.full((length, length), -math.inf).triu(1)
        logits: Tensor = self.decoder.head(self.decoder.decoder(read, memory.permute(1, 0, 2), tgt_mask=mask))
        return logits.permute(1, 0, 2)


def write(folder: Path, layout: str, codes: Sequence[str] = CODES, **changes: Any) -> Hub:
    torch.manual_seed(0)
    config = {"model_domain": "Multilingual_CANINE", "model_type": TYPES[layout], "dropout_rate": 0}
    config |= {**HISCO, **SIZE, **changes}
    hub = Hub(config, layout).eval()
    hub.save_pretrained(folder, config=config)
    (folder / "key.json").write_text(json.dumps({code: row for row, code in enumerate(codes)}))
    return hub


def config_of(folder: Path, **changes: Any) -> TextClassificationConfig:
    values = {"model_name": str(folder), "sequence_length": LENGTH, "dropout": 0.0, "num_decoder_heads": 2, **changes}
    return TextClassificationConfig(**{**TINY["text_classification"], **values})


def build(folder: Path, **changes: Any) -> model.TextClassifier:
    config = config_of(folder, **changes)
    heads = published_model(config, print)
    assert heads is not None
    return model.build_classifier(config, heads.system, torch.full((len(heads.system.codes),), 0.2), heads).eval()


def texts(width: int) -> Tensor:
    return padded([encode(text, "en", LENGTH) for text in ("smith and farmer", "no work", "captain")], width)


@pytest.mark.promise("safety-weights")
@pytest.mark.parametrize("layout", [*TYPES, "other codes"])
@torch.no_grad()
def test_both_heads_compute_what_the_published_model_computes_and_are_saved_as_it(tmp_path: Path, layout: str) -> None:
    folder, back, codes, more = tmp_path / "occ", tmp_path / "back", CODES, {}
    if layout == "other codes":
        layout, codes, more = "mixer", ["120", "77", "5"], {"formatter": "generic"}
        sizes = {"num_classes": [16] * 8, "num_classes_flat": 3, "decoder_dim_feedforward": 24}
        hub = write(folder, layout, codes, **sizes)
        (folder / "chars.json").write_text(json.dumps([*"0123456789-"]))
    else:
        hub = write(folder, layout)
    mine = build(folder, **more)
    assert mine.system.codes == tuple(codes)
    memory, mask, pooled = mine.encode(texts(32))
    if layout != "seq2seq":
        assert (mine.flat(pooled) - hub.flat(texts(LENGTH))).abs().max() < 1e-5
    if layout != "flat":
        found, _ = mine.decode(memory, mask)
        symbols = mine.sequences(found)
        logits = hub.spelled(texts(LENGTH), symbols[:, :-1])
        assert (mine.decoder_logits(symbols[:, :-1], memory, mask) - logits).abs().max() < 1e-5
    if more:
        assert mine.sequences(torch.tensor([[2, -1]])).tolist() == [[2, 10, 3, 3, 1, 1, 1, 3]]  # EOS fills the block
    mine.save_pretrained(back)
    first, second = (load_file(each / "model.safetensors") for each in (folder, back))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    assert layout != "mixer" or first.keys() == second.keys()
    again = Hub.from_pretrained(back, layout=layout).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in hub.state_dict().items())
    for other in (model.open_classifier(back).eval(), build(back, **more)):
        assert torch.equal(other.flat(other.encode(texts(32))[2]), mine.flat(pooled))


def test_an_adapter_of_a_published_model_predicts_and_is_exported_in_its_layout(
    trained: Train, cpu_project: Project
) -> None:
    write_inputs("text_classification", cpu_project)
    hub = write(cpu_project.root / "occ", "flat")
    files = trained(config_of(cpu_project.root / "occ", max_steps=12, learning_rate=3e-3, adapter="lora"))
    losses = [row["train/loss"] for row in rows(files) if "train/loss" in row]
    assert losses[-1] < losses[0]
    weights = (read_json(files.config) or {})["weights"]["model_name"]
    assert weights["fitting"] == len(hub.state_dict()) and "missing" in weights
    with pytest.warns(UserWarning, match="OccCANINE's own classes load it"):
        out = export(Run(files.path), None, None, lambda run, *parts: merge_parts(run, False, *parts))
    card, last = (out / "README.md").read_text(encoding="utf-8"), [row for row in rows(files) if "eval/loss" in row][-1]
    scores = {f"| {name} | {value:.5g} |" for name, value in last.items() if name.startswith("eval/")}
    assert len(scores) > 5 and scores <= {*card.split("\n")}
    assert "| max_steps | 12 |" in card and "…/occ" in card and str(cpu_project.root) not in card.replace(str(out), "")
    inputs = ["smith", "farmer and smith"]
    found, again = ([*Predictor(each).predict(inputs, TextClassificationPredict())] for each in (files.path, out))
    assert [row["codes"] for row in found] == [row["codes"] for row in again]
    theirs, mine = Hub.from_pretrained(out, layout="flat").eval(), model.open_classifier(out).eval()
    assert any(not torch.equal(weight, hub.state_dict()[name]) for name, weight in theirs.state_dict().items())
    assert (mine.flat(mine.encode(texts(32))[2]) - theirs.flat(texts(LENGTH))).abs().max() < 1e-5


@pytest.mark.slow
def test_a_published_model_in_shards_is_resumed_and_exported_in_its_layout(start: ByHand, cpu_project: Project) -> None:
    write_inputs("text_classification", cpu_project)
    write(cpu_project.root / "occ", "mixer")
    config = config_of(cpu_project.root / "occ", strategy="fsdp", batch_size=4)
    files, whole = (start.forked(each).files for each in (config, config.replace(strategy="ddp")))
    losses = [[row["train/loss"] for row in rows(each) if "train/loss" in row] for each in (files, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    resumed = start.forked(config, "--resume-from", files.checkpoint(3)).files
    assert_same_checkpoints(files.checkpoint(6), resumed.checkpoint(6))
    with pytest.warns(UserWarning, match="OccCANINE's own classes load it"):
        out = export(Run(files.path), None, None, lambda run, *parts: merge_parts(run, False, *parts))
    theirs, mine = (Hub.from_pretrained(each, layout="mixer").eval() for each in (out, whole.outputs / "model"))
    assert torch.allclose(theirs.flat(texts(LENGTH)), mine.flat(texts(LENGTH)), atol=1e-3)


@pytest.mark.parametrize(
    ("lacking", "more", "said"),
    [
        ("decoder.head.bias", {}, r"decoder\.head\.bias is missing; decoder\.more is not part of this model"),
        ("linear_decoder.bias", {}, r"linear_decoder\.bias is missing"),
        ("", {"max_codes": 6}, "max_codes=6: num_classes .* has room for 5 codes"),
        ("", {"formatter": "generic"}, r"decoder\.head\.weight has 19 rows, for 2\d\d\d symbols"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_by_name(
    tmp_path: Path, lacking: str, more: dict[str, Any], said: str
) -> None:
    write(tmp_path, "mixer")
    weights = load_file(tmp_path / "model.safetensors") | {"decoder.more": torch.ones(1)}
    save_file({name: each for name, each in weights.items() if name != lacking}, tmp_path / "model.safetensors")
    with pytest.raises((ConfigError, CheckpointError), match=said):
        build(tmp_path, **more)
    write(tmp_path, "mixer", [*CODES, "12345", "12346"])
    with pytest.raises(ConfigError, match=r"key\.json has \d+ codes, up to row \d+, for a flat head of \d+ rows"):
        build(tmp_path)
    (tmp_path / "key.json").unlink()
    said: list[str] = []
    assert published_model(config_of(tmp_path), said.append) is None
    assert "its heads are left out: no key.json or Key.csv" in said[0]
    with pytest.raises(DataError, match=r"\d+ codes of the data, such as .* are not in the key of "):
        load_samples(TextClassificationConfig(), None, CodeSystem.of("hisco", ["99999"], 5))
