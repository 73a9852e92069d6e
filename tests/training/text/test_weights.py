"""Weights that do not fit: names that a wrapper changed are read, a hole is refused, a new part is told."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from nbtools import recipes
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.errors import CheckpointError, ConfigError
from nbtools.training.algorithm_distillation.model import build_action_transformer
from nbtools.training.engine.checkpoint import fill, open_model
from nbtools.training.llm_gan.dataset import alphabet_of
from nbtools.training.llm_gan.pretrained import load_discriminator, load_generator
from nbtools.training.masked_diffusion.model import build_denoiser, load_pretrained
from nbtools.training.mlm_pretraining.train import build_model
from nbtools.training.text.pretrained_models import load_model
from nbtools.training.text.weights import Renaming
from nbtools.training.text_classification.model import build_classifier

from trainings import TINY, save_pair

LLADA = Path(__file__).parents[1] / "masked_diffusion" / "llada_tiny"
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = transformers.BertConfig(vocab_size=40, max_position_embeddings=32, **SIZE)
SYSTEM = CodeSystem.of("hisco", ["61110", "83110"], 2)


def saved(make: Callable[[], transformers.PreTrainedModel], folder: Path) -> Path:
    torch.manual_seed(0)
    make().save_pretrained(folder)
    return folder


def bert(folder: Path) -> Path:
    return saved(lambda: transformers.BertForMaskedLM(BERT), folder)


def modernbert(folder: Path) -> Path:
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    return saved(
        lambda: transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(vocab_size=40, **SIZE, **ids)), folder
    )


def canine(folder: Path) -> Path:
    config = transformers.CanineConfig(num_hash_buckets=50, max_position_embeddings=64, **SIZE)
    return saved(lambda: transformers.CanineModel(config), folder)


def llada(folder: Path) -> Path:
    return Path(shutil.copytree(LLADA, folder))


def pair(folder: Path, part: str) -> Path:
    save_pair(folder)
    return folder / part


def gan(folder: Path) -> recipes.LLMGANConfig:
    names = {"model_name": str(folder.parent / "writer"), "judge_name": str(folder.parent / "judge")}
    return recipes.LLMGANConfig(dataset="data.csv", sequence_length=8, prompt_length=24, **names)


def masked_lm(folder: Path) -> transformers.PreTrainedModel:
    config = recipes.MLMPretrainingConfig(**{**TINY["mlm_pretraining"], "model_name": str(folder)})
    return build_model(config, SimpleNamespace(tokenizer=range(40)))  # type: ignore[arg-type]


def denoiser(folder: Path) -> transformers.PreTrainedModel:
    return load_pretrained(str(folder), trust_remote_code=False, dropout=None)


def classifier(folder: Path) -> transformers.PreTrainedModel:
    size = {"num_decoder_layers": 1, "num_decoder_heads": 2, "max_codes": 2, "sequence_length": 64}
    config = recipes.TextClassificationConfig(model_name=str(folder), **size)
    return build_classifier(config, SYSTEM, torch.full((2,), 0.2)).canine


RECIPES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], transformers.PreTrainedModel]]] = {
    "mlm_pretraining-bert": (bert, masked_lm),
    "masked_diffusion-modernbert": (modernbert, denoiser),
    "masked_diffusion-llada": (llada, denoiser),
    "text_classification-canine": (canine, classifier),
    "llm_gan-gpt2": (lambda folder: pair(folder, "writer"), lambda folder: load_generator(gan(folder))),
    "llm_gan-judge": (lambda folder: pair(folder, "judge"), lambda folder: load_discriminator(gan(folder))),
}


def rename(folder: Path, change: Callable[[str], str | None]) -> dict[str, torch.Tensor]:
    """Rename tensors of a folder's file, or drop those named None; returns the tensors under their first names."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    named = {change(name): weight for name, weight in weights.items()}
    save_file({name: weight for name, weight in named.items() if name}, path, metadata={"format": "pt"})
    return weights


def assert_loaded(model: nn.Module, weights: dict[str, torch.Tensor], but: str = "lm_head.") -> None:
    own = model.state_dict()
    for name, weight in weights.items():
        if not name.startswith(but):
            assert torch.equal(own[name], weight), name


@pytest.mark.promise("safety-weights")
@pytest.mark.parametrize("prefix", ["_orig_mod.module.", "model.", "encoder.", "a.b.", "none"])
@pytest.mark.parametrize("key", RECIPES)
def test_weights_under_any_prefix_load_and_other_names_are_refused(tmp_path: Path, key: str, prefix: str) -> None:
    make, load = RECIPES[key]
    folder = make(tmp_path / "m")
    places: dict[str, str] = {}
    change = {"none": lambda name: places.setdefault(name, f"w{len(places)}")}.get(prefix, lambda name: prefix + name)
    weights = rename(folder, change)
    if prefix == "none":
        with pytest.raises(ConfigError, match=r"missing weights, such as \w+\..* the files have \d+ others \(w0"):
            load(folder)
        return
    model = load(folder)
    assert_loaded(model, weights, but="lm_head." if key == "llm_gan-judge" else "-")
    model.save_pretrained(tmp_path / "again")
    assert_loaded(model, load_file(tmp_path / "again" / "model.safetensors"), but="-")
    note = str(model.weights_report)
    assert str(folder) in note
    own = {part.split(".")[0] for part in weights} | {model.base_model_prefix}
    if prefix.split(".")[0] not in own:  # else transformers itself takes the prefix of the base model off
        assert f"without {', '.join(repr(f'{part}.') for part in prefix[:-1].split('.'))}" in note.replace(
            "a.b", "a.', 'b"
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "all 42 weights are from {folder}"),
        (
            {"cls": None},
            "37 of 42 weights .*; 5 weights (cls.predictions.bias, .*) of a new part, .*: started at random",
        ),
        ({"bert.encoder.layer.1": None}, "refused: 16 missing weights, such as bert.encoder.layer.1.attention"),
        ({"bert.embeddings": "bert.embeddings.x"}, "refused: 5 missing weights, .*; the files have 5 others (bert.emb"),
        ({"bert": "ema.bert", "cls": "ema.cls"}, "all 42 .*; names in the files are read without 'ema.'"),
        ({"bert.encoder.layer": "bert.encoder.layer._orig_mod"}, "all 42 .* without '_orig_mod.'"),
        ({"bert": "bert.module", "cls": "_orig_mod.cls"}, "all 42 .* without '_orig_mod.', 'module.'"),
        ({"bert": "encoder", "cls": None}, "37 of 42 .* without 'encoder.' and with 'bert.' before them"),
    ],
)
def test_a_report_says_what_is_missing_and_a_hole_is_refused(
    tmp_path: Path, change: dict[str, str | None], said: str
) -> None:
    folder = bert(tmp_path / "bert")

    def changed(name: str) -> str | None:
        for old, new in change.items():
            if name.startswith(f"{old}."):
                return None if new is None else new + name[len(old) :]
        return name

    rename(folder, changed)
    read = functools.partial(load_model, transformers.AutoModelForMaskedLM, str(folder), "a masked language model")
    try:
        told = str(read().weights_report)
    except ConfigError as error:
        told = f"refused: {str(error).partition(': ')[2]}"
    parts = said.format(folder=folder).split(".*")
    assert all(part in told for part in parts), told


def test_a_weight_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"] = torch.zeros(7, 16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    said = r"bert\.embeddings\.word_embeddings\.weight has the shape \(7, 16\), not \(40, 16\)"
    with pytest.raises(ConfigError, match=said):
        load_model(transformers.AutoModelForMaskedLM, str(folder), "a masked language model")


def test_a_score_head_of_another_number_of_labels_is_new(tmp_path: Path) -> None:
    model = transformers.BertForTokenClassification(transformers.BertConfig(vocab_size=40, num_labels=9, **SIZE))
    model.save_pretrained(tmp_path / "ner")
    loaded = load_model(transformers.BertForTokenClassification, str(tmp_path / "ner"), "a judge", num_labels=1)
    assert "2 weights (classifier.bias, classifier.weight) of a new part" in str(loaded.weights_report)
    assert_loaded(loaded, load_file(tmp_path / "ner" / "model.safetensors"), but="classifier.")


@pytest.mark.promise("safety-weights")
def test_the_published_layout_of_occcanine_gives_its_encoder(tmp_path: Path) -> None:
    folder = canine(tmp_path / "occ")
    weights = rename(folder, lambda name: f"encoder.{name}")
    more = {"decoder.layers.0.norm1.weight": torch.ones(16), "linear_decoder.weight": torch.ones(3, 16)}
    path = folder / "model.safetensors"
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    model = classifier(folder)
    assert_loaded(model, weights)
    told = model.weights_report.to_json()
    assert told["unexpected"] == {"count": 2, "names": sorted(more)} and told["fitting"] == len(weights)
    assert told["renamed"] == "names in the files are read without 'encoder.'"


def test_weights_that_fit_under_two_prefixes_are_refused(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert")
    path = folder / "model.safetensors"
    weights = load_file(path)
    both = {f"{part}.{name}": weight + 0 for part in ("student", "teacher") for name, weight in weights.items()}
    save_file(both, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"prefixes 'student\.', 'teacher\.': save those of one alone"):
        masked_lm(folder)


def test_a_checkpoint_without_some_of_its_weights_is_not_used(tmp_path: Path) -> None:
    folder = saved(lambda: transformers.BertModel(BERT), tmp_path / "bert")
    config = transformers.BertConfig(**{**BERT.to_dict(), "architectures": ["BertForMaskedLM"]})
    config.save_pretrained(folder)
    with pytest.raises(CheckpointError, match=r"lacks 5 of the model's weights, such as cls\."):
        open_model(folder)


@pytest.mark.parametrize(
    "old", [{}, {"attn.bias": torch.ones(2, dtype=torch.bool), "attn.masked_bias": torch.tensor(-1e4)}]
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "model.", "policy."])
def test_weights_of_an_older_program_fit_under_any_prefix(prefix: str, old: dict[str, torch.Tensor]) -> None:
    config = recipes.AlgorithmDistillationConfig(**TINY["algorithm_distillation"])
    goals = torch.zeros(1, 2, dtype=torch.long).numpy()
    source, target = (build_action_transformer(config, goals).model for _ in range(2))
    stored = {name: weight.clone() for name, weight in source.state_dict().items()}
    more = {f"transformer.h.0.{name}": weight for name, weight in old.items()}
    report = fill(target, {prefix + name: weight for name, weight in (stored | more).items()}, Path("old.pt"))
    assert_loaded(target, stored, but="-")
    assert (str(report.renaming) != "") == (prefix != "") and len(report.unexpected) == len(old)
    with pytest.raises(CheckpointError, match=r"transformer\..* is missing; x\d+ is not part of this model"):
        fill(target, {f"x{place}": weight for place, weight in enumerate(stored.values())}, Path("old.pt"))


@pytest.mark.parametrize(
    ("stored", "own", "old", "new"),
    [
        (("a.x", "a.y"), ("x", "y"), "a.", ""),
        (("x", "y"), ("a.x", "a.y"), "", "a."),
        (("m.h.0.x", "m.h.1.x", "m.out"), ("h.0.x", "h.1.x", "head"), "m.", ""),
        (("x", "y", "a.x"), ("x", "y"), "", ""),
    ],
)
def test_a_renaming_is_the_shortest_change_that_fits(
    stored: tuple[str, ...], own: tuple[str, ...], old: str, new: str
) -> None:
    assert Renaming.between(stored, own) == (Renaming(old=old, new=new),)


def longer_mlm(folder: Path) -> object:
    config = recipes.MLMPretrainingConfig(**{**TINY["mlm_pretraining"], "model_name": str(bert(folder))})
    return build_model(config, SimpleNamespace(tokenizer=range(42)))  # type: ignore[arg-type]


def longer_denoiser(folder: Path) -> object:
    config = recipes.MaskedDiffusionConfig(**{**TINY["masked_diffusion"], "model_name": str(bert(folder))})
    return build_denoiser(config, type("Words", (list,), {"mask_token_id": 4})(range(42)))


def longer_generator(folder: Path) -> object:
    return alphabet_of(gan(folder), save_pair(folder), 5, {41}, {3})


@pytest.mark.parametrize("load", [longer_mlm, longer_denoiser, longer_generator])
def test_a_tokenizer_longer_than_its_model_says_how_to_add_rows(tmp_path: Path, load: Callable[[Path], object]) -> None:
    said = r"(42 words, more than the model, whose table has 40 rows|the number 41, but the model has 5 tokens); .*"
    with pytest.raises(ConfigError, match=said + r"resize_token_embeddings\(len\(tokenizer\)\); .*save_pretrained"):
        load(tmp_path / "m")
