"""The mixer: its losses against formulas of their own, sets without order, and only codes that exist."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import CanineConfig, CanineModel

from nbtools.data.text_classification.codes import BOS, EOS, CodeSystem
from nbtools.errors import CheckpointError, ConfigError
from nbtools.recipes import RECIPES, TextClassificationConfig
from nbtools.training.text_classification import model
from nbtools.training.text_classification.dataset import encode, padded

SYSTEM = CodeSystem.of("hisco", ["-1", "04217", "61110", "61115", "83110"], 3)
CONFIG = TextClassificationConfig(
    num_layers=1, num_heads=2, hidden_size=16, num_decoder_layers=1, num_decoder_heads=2, max_codes=3
)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def a_mixer(system: CodeSystem = SYSTEM, **changes: object) -> model.TextClassifier:
    torch.manual_seed(0)
    return model.build_classifier(CONFIG.replace(**changes), system, torch.full((len(system.codes),), 0.2)).eval()


def inputs(*texts: str) -> torch.Tensor:
    encoded = [encode(text, "en", 64) for text in texts]
    return padded(encoded, max(map(len, encoded)))


LABELS = torch.tensor([[2, -1, -1], [4, 0, 3], [1, 3, -1]])
TEXTS = ("farmer", "smith and nothing and cottager", "captain, husbandman")


def test_the_sequence_loss_is_the_mean_cross_entropy_of_all_symbols_but_the_first() -> None:
    classifier = a_mixer()
    memory, mask, _ = classifier.encode(inputs(*TEXTS))
    total = 0.0
    for row, classes in enumerate(LABELS.tolist()):
        ordered = sorted(classes, key=lambda number: number % 6)  # -1 is last: PAD
        sequence = [BOS, *SYSTEM.blocks_CS[ordered].flatten().tolist(), EOS]
        for place in range(1, len(sequence)):
            read = torch.tensor([sequence[:place]])
            log_p = classifier.decoder_logits(read, memory[row : row + 1], mask[row : row + 1])[0, -1].log_softmax(-1)
            total -= float(log_p[sequence[place]]) / (len(sequence) - 1)
    assert float(classifier(inputs(*TEXTS), LABELS)[0]) == pytest.approx(total, rel=1e-4)


def test_the_flat_loss_is_the_mean_binary_cross_entropy_of_all_codes() -> None:
    classifier = a_mixer()
    logits = classifier.flat(classifier.encode(inputs(*TEXTS))[2]).tolist()
    total = 0.0
    for scores, classes in zip(logits, LABELS.tolist(), strict=True):
        for number, value in enumerate(scores):
            p = 1 / (1 + math.exp(-value))
            total -= math.log(p if number in classes else 1 - p) / len(scores)
    assert float(classifier(inputs(*TEXTS), LABELS)[1]) == pytest.approx(total, rel=1e-4)


def test_a_set_has_no_order() -> None:
    classifier = a_mixer()
    expected = classifier(inputs(*TEXTS), LABELS)
    for order in itertools.permutations(range(3)):
        assert torch.equal(classifier(inputs(*TEXTS), LABELS[:, list(order)]), expected)


def test_the_losses_are_mixed_as_the_config_says() -> None:
    losses = (2.0, 3.0)
    default, scaled = a_mixer(seq2seq_weight=0.1), a_mixer(seq2seq_weight=0.5, flat_loss_scale=7.0)
    assert default.combine_losses(losses) == pytest.approx(0.1 * 2 + 0.9 * 5 * 3), "times the number of codes"
    assert scaled.combine_losses(losses) == pytest.approx(0.5 * 2 + 0.5 * 7 * 3)


def test_only_codes_that_exist_are_spelt_each_once_and_at_least_one() -> None:
    classifier = a_mixer()
    classifier.speller.weight.normal_()  # any sequence may come
    memory = 5 * torch.randn(200, 4, 16)
    classes_BK, probability_B = classifier.decode(memory, torch.zeros(200, 4, dtype=torch.bool))
    for classes in classes_BK.tolist():
        known = [number for number in classes if number >= 0]
        assert known
        assert len(set(known)) == len(known)
        assert classes == known + [-1] * (3 - len(known))
        assert max(known) < len(SYSTEM.codes)
    assert len({tuple(classes) for classes in classes_BK.tolist()}) > 5
    assert ((probability_B >= 0) & (probability_B <= 1)).all()


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("codes", [["a", "ab", "b", "ba"], ["04217", "61110", "61115"]])
def test_a_wide_search_finds_all_lists_of_codes_as_a_search_by_hand(codes: list[str], is_published: bool) -> None:
    """In double precision; by hand, symbols are allowed that continue a code which is not yet in the list."""
    system = CodeSystem.of("generic" if codes[0] == "a" else "hisco", codes, 2)
    classifier = a_mixer(system, max_codes=2)
    if is_published:
        more = {"published_encoder": "encoder", "num_classes": [18], "decoder_dim_feedforward": 24}
        classifier = model.OccCANINEClassifier(CanineConfig(**{**classifier.config.to_dict(), **more})).eval()
    memory, mask, _ = classifier.encode(inputs(*TEXTS))
    classifier.double().speller.weight.normal_()
    memory = memory.double()

    def log_p_by_hand(row: int, classes: tuple[int, ...]) -> float:
        read, total = [BOS], 0.0
        for place, number in enumerate(classes):
            used = set(classes[:place])
            rest = {len(codes)} if len(codes) in used else {*range(len(codes) + (place > 0))} - used
            for symbol in range(system.block_size):
                before = system.blocks_CS[number, :symbol].tolist()
                fits = [each for each in rest if system.blocks_CS[each, :symbol].tolist() == before]
                allowed = sorted({int(system.blocks_CS[each, symbol]) for each in fits})
                logits = classifier.decoder_logits(torch.tensor([read]), memory[row : row + 1], mask[row : row + 1])
                read.append(int(system.blocks_CS[number, symbol]))
                total += float(logits[0, -1, allowed].log_softmax(-1)[allowed.index(read[-1])])
        return total

    lists = [(a, b) for a in range(len(codes)) for b in range(len(codes) + 1) if a != b]
    classes_BWK, log_p_BW = classifier.search(memory, mask, width=len(lists) + 4)
    for row in range(len(TEXTS)):
        expected = {each: log_p_by_hand(row, each) for each in lists}
        found = list(zip(classes_BWK[row].tolist(), log_p_BW[row].tolist(), strict=True))
        assert [p for _, p in found[len(lists) :]] == [-math.inf] * 4
        ordered = [(first, second % (len(codes) + 1)) for (first, second), _ in found[: len(lists)]]  # -1 is PAD's
        assert ordered == sorted(expected, key=lambda each: -expected[each])
        assert [p for _, p in found[: len(lists)]] == pytest.approx([expected[each] for each in ordered], abs=1e-4)
        greedy_BK, p_B = classifier.decode(memory, mask)
        log_p = log_p_by_hand(row, tuple(each % (len(codes) + 1) for each in greedy_BK[row].tolist()))
        assert math.log(p_B[row]) == pytest.approx(log_p, abs=1e-4)
    assert log_p_BW.exp().sum(1).tolist() == pytest.approx([1.0] * len(TEXTS), abs=1e-4)


@pytest.mark.parametrize("is_trained", [False, True])
def test_kept_keys_and_values_give_the_codes_of_reading_all_again(
    is_trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision; the trained model learns the texts by heart, so that no two symbols are nearly tied."""
    classifier = a_mixer(num_decoder_layers=2)
    encoded = classifier.encode(inputs(*TEXTS))
    classifier.double()
    memory, mask, pooled = encoded[0].double(), encoded[1], encoded[2].double()
    assert mask.any(), "some texts are padded"
    if is_trained:
        optimizer = torch.optim.Adam(classifier.parameters(), 1e-2)
        for _ in range(100):
            with torch.enable_grad():
                classifier.losses(memory, mask, pooled, LABELS)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        classifier.speller.weight.normal_()
    classes_BK, probability_B = classifier.decode(memory, mask)
    assert not is_trained or classes_BK.tolist() == [[2, -1, -1], [0, 3, 4], [1, 3, -1]]

    class ReadingAgain:
        """What torch's own decoder says of all symbols up to now."""

        def __init__(self, decoder: torch.nn.TransformerDecoder, *_: object) -> None:
            self.read: list[torch.Tensor] = []

        def step(self, hidden_BH: torch.Tensor) -> torch.Tensor:
            self.read.append(hidden_BH)
            causal = torch.ones(len(self.read), len(self.read), dtype=torch.bool).triu(1)
            decoded_BLH: torch.Tensor = classifier.decoder(
                torch.stack(self.read, dim=1), memory, tgt_mask=causal, memory_key_padding_mask=mask
            )
            return decoded_BLH[:, -1]

    monkeypatch.setattr(model, "IncrementalDecoder", ReadingAgain)
    expected_BK, expected_B = classifier.decode(memory, mask)
    assert classes_BK.equal(expected_BK)
    assert probability_B.allclose(expected_B, rtol=1e-5)


def test_the_flat_head_picks_what_is_likelier_than_not_and_never_nothing() -> None:
    classifier = a_mixer()
    classifier.flat.weight.zero_()
    classifier.flat.bias.copy_(torch.tensor([1.0, -1.0, 2.0, -3.0, -1.0]))
    assert classifier.flat_predictions(torch.zeros(1, 16)).tolist() == [[1, 0, 1, 0, 0]]
    classifier.flat.bias.copy_(torch.tensor([-1.0, -0.5, -2.0, -3.0, -1.0]))
    assert classifier.flat_predictions(torch.zeros(1, 16)).tolist() == [[0, 1, 0, 0, 0]]


def test_the_flat_head_begins_at_the_frequency_of_each_code() -> None:
    classifier = model.build_classifier(CONFIG, SYSTEM, torch.tensor([0.5, 0.1, 0.0, 0.2, 0.2]))
    assert classifier.flat.bias.sigmoid().tolist() == pytest.approx([0.5, 0.1, 0.0, 0.2, 0.2], abs=1e-5)


@pytest.mark.parametrize("changes", [{}, {"num_layers": 3, "hidden_size": 24, "max_codes": 5, "num_hash_buckets": 300}])
def test_the_form_knows_the_number_of_parameters(changes: dict[str, int]) -> None:
    config = CONFIG.replace(**changes)
    system = CodeSystem.of("hisco", SYSTEM.codes, config.max_codes)
    count = RECIPES["text_classification"].num_parameters(config, len(system.codes))
    assert count == model.build_classifier(config, system, torch.ones(5) / 5).num_parameters()


def test_what_was_saved_is_a_canine_with_two_more_heads(tmp_path: Path) -> None:
    classifier = a_mixer()
    classifier.save_pretrained(tmp_path)
    again = model.open_classifier(tmp_path).eval()
    assert torch.equal(again(inputs(*TEXTS), LABELS), classifier(inputs(*TEXTS), LABELS))
    encoder = CanineModel.from_pretrained(tmp_path).eval()
    assert torch.equal(
        encoder(input_ids=inputs("farmer")).last_hidden_state,
        classifier.canine(input_ids=inputs("farmer")).last_hidden_state,
    )


def test_training_starts_from_any_canine(tmp_path: Path) -> None:
    torch.manual_seed(1)
    canine = CanineModel(CanineConfig(**model.canine_settings(CONFIG.replace(hidden_size=32))))
    canine.save_pretrained(tmp_path / "canine")
    classifier = a_mixer(model_name=str(tmp_path / "canine"), dropout=0.25)
    for name, weight in canine.state_dict().items():
        assert torch.equal(classifier.canine.state_dict()[name], weight)
    assert classifier.flat.in_features == 32
    assert {part.p for part in classifier.modules() if isinstance(part, torch.nn.Dropout)} == {0.25}
    classifier.save_pretrained(tmp_path / "mixer")
    assert torch.equal(model.open_classifier(tmp_path / "mixer").flat.weight, classifier.flat.weight)
    assert classifier(inputs(*TEXTS), LABELS).isfinite().all()
    for changes, said in (
        ({"num_decoder_heads": 5}, "must divide the width of .*, 32"),
        ({"sequence_length": 128}, "takes at most 64"),
    ):
        with pytest.raises(ConfigError, match=said):
            a_mixer(model_name=str(tmp_path / "canine"), **changes)


def test_a_model_that_is_no_canine_or_not_there_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    BertModel(
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).save_pretrained(tmp_path / "bert")
    for name in ("bert", "nowhere"):
        with pytest.raises(ConfigError, match=name):
            a_mixer(model_name=str(tmp_path / name))


def test_a_checkpoint_of_other_codes_is_refused(tmp_path: Path) -> None:
    a_mixer().save_pretrained(tmp_path)
    model.check_codes(SYSTEM, tmp_path)
    with pytest.raises(CheckpointError, match=r"codes are of other data .*differ in 64100"):
        model.check_codes(CodeSystem.of("hisco", [*SYSTEM.codes, "64100"], 3), tmp_path)
    with pytest.raises(CheckpointError, match="no text classifier"):
        model.check_codes(SYSTEM, tmp_path / "nowhere")
