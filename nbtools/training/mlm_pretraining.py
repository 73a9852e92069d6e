"""BERT-style masked language modelling: predict words that were hidden, from the words around them.

Training hides 15% of the tokens (80% [MASK], 10% a random word, 10% left as they are; Devlin et al. 2018,
arXiv 1810.04805). Evaluation replaces all of the chosen tokens by [MASK]: a token left visible would let a model that
ignores all context look better than the word frequencies. The head runs at the chosen positions only.

Shape suffixes: B batch, T positions, K predicted positions, H width, V vocabulary.
"""

import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForMaskedLM, ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from nbtools.errors import CheckpointError, ConfigError
from nbtools.recipes import MLMPretrainingConfig, Schedule, modernbert_settings
from nbtools.training import checkpoint, data, flags
from nbtools.training.data import IGNORED, MaskedTraining, Masking, SampleOrder, TokenizedText
from nbtools.training.step import accumulating, adamw, autocast, set_learning_rate, update
from nbtools.training.worker import Worker, run


def main(config: MLMPretrainingConfig) -> None:
    """Train with the values of a script, as changed by the command line."""
    run(train, flags.parse(config))


def train(worker: Worker, config: MLMPretrainingConfig) -> None:
    """Train from the start, or on from a checkpoint, to the last step or a stop."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    worker.phase("data")
    text = tokenized(worker, config)
    masking = Masking.of(text, config.mask_probability, config.seed)
    plan = Schedule.of(config, worker.world_size, len(text.train_NT), len(text.eval_NT))
    num_samples, effective_batch = plan.num_train_samples, plan.effective_batch
    masked_lm = MaskedLM(worker.in_turn(lambda: build_model(config, text)))
    evaluation = Evaluation(worker, config, text, masking)
    tally = torch.zeros(2, dtype=torch.float64)  # loss and number of predictions since the last metric row

    resumed = worker.resumed()
    if resumed is not None:
        check_vocabulary(text, resumed.weights)
        checkpoint.load_weights(masked_lm.model, resumed.weights)
    model = worker.wrap(masked_lm)
    optimizer = adamw(model, config, betas=(0.9, 0.98))  # as RoBERTa: the plateau at word frequencies is shorter
    if resumed is not None:
        checkpoint.load_optimizer(optimizer, resumed.state["optimizer"])
        tally = resumed.rank_state.get("tally", tally)
    tally = tally.to(worker.device)

    progress = worker.progress
    progress.settle(effective_batch, num_samples)
    total_steps = progress.step + progress.steps_left(effective_batch, num_samples, config.epochs)
    total_steps = min(total_steps, config.max_steps or total_steps)
    derived = {**asdict(plan), "world_size": worker.world_size, "total_steps": total_steps}
    derived |= {"num_parameters": masked_lm.model.num_parameters(), "vocab_size": len(text.tokenizer)}
    worker.describe(derived, dataset=config.dataset or "the English text that ships with Python")
    order = SampleOrder(
        num_samples,
        config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        rank=worker.rank,
        world_size=worker.world_size,
        seed=config.seed,
        epoch=progress.epoch,
        position=progress.position,
    )
    batches = data.load(
        MaskedTraining(text.train_NT, masking), order, config.num_workers, pin_memory=worker.device.type == "cuda"
    )
    # Every pass predicts the same number of positions, so dividing by it is exact over ranks and accumulated passes.
    num_predicted = config.gradient_accumulation_steps * config.batch_size * masking.num_predicted
    if resumed is not None:
        resumed.restore_random_state()
    worker.start_clock()

    model.train()
    for step in range(progress.step + 1, total_steps + 1):
        rate = set_learning_rate(optimizer, config, step, total_steps)
        for micro_step in range(1, config.gradient_accumulation_steps + 1):
            worker.phase("data")
            inputs_BT, positions_BK, labels_BK = (part.to(worker.device, non_blocking=True) for part in next(batches))
            with accumulating(model, is_last=micro_step == config.gradient_accumulation_steps):
                worker.phase("forward")
                with autocast(worker.device, config.precision):
                    loss_sum = model(inputs_BT, positions_BK, labels_BK)
                worker.phase("backward")
                (loss_sum / num_predicted).backward()
            tally += torch.stack([loss_sum.detach(), (labels_BK != IGNORED).sum()])
        gradient_norm = update(model, optimizer, config.gradient_clip)
        saves_epoch = progress.advance(effective_batch, num_samples) and config.checkpoint_epochs
        stop, is_last = worker.stop_agreed(), step == total_steps

        row: dict[str, float] = {}
        if step % config.log_every == 0 or is_last:
            loss, count = worker.sum(tally)
            tally.zero_()
            row["train/loss"] = loss / max(count, 1)
            row["train/learning_rate"] = rate
            row["train/grad_norm"] = float(gradient_norm)
            row["train/tokens_per_s"] = worker.samples_per_s() * config.sequence_length
            row["train/epoch"] = progress.epoch + progress.position / num_samples
        if step % config.eval_every == 0 or is_last:
            row |= evaluation.measure(masked_lm)
        worker.log(row, total_steps)

        if step % config.checkpoint_every == 0 or saves_epoch or stop or is_last:
            state = {"optimizer": optimizer.state_dict()["state"], "effective_batch": effective_batch}
            worker.save(writer(masked_lm.model, text), state, {"tally": tally.cpu()})
        if stop:
            break


class MaskedLM(nn.Module):
    """Any masked language model of `transformers`, with its head at chosen positions only."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs_BT: torch.Tensor, positions_BK: torch.Tensor, labels_BK: torch.Tensor) -> torch.Tensor:
        """Return the sum of the cross-entropies of all predictions, in nats; labels that are `IGNORED` add nothing."""
        logits_BKV = self.logits(inputs_BT, positions_BK)
        return nn.functional.cross_entropy(
            logits_BKV.flatten(0, 1).float(), labels_BK.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def logits(self, inputs_BT: torch.Tensor, positions_BK: torch.Tensor) -> torch.Tensor:
        """Return the scores of all words at the chosen positions. Shape (B, K, V)."""
        head = self._head()
        if head is None:  # an unknown architecture: the whole head, then the positions
            all_BTV = self.model(input_ids=inputs_BT).logits
            return torch.gather(all_BTV, 1, positions_BK[:, :, None].expand(-1, -1, all_BTV.shape[2]))
        hidden_BTH = self.model.base_model(input_ids=inputs_BT)[0]
        chosen_BKH = hidden_BTH.gather(1, positions_BK[:, :, None].expand(-1, -1, hidden_BTH.shape[2]))
        return head(chosen_BKH)

    def _head(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The part of the model behind its encoder."""
        model = self.model
        if isinstance(model, ModernBertForMaskedLM):
            return lambda hidden: model.decoder(model.head(hidden))
        for name in ("cls", "lm_head"):  # BERT and its kin, RoBERTa and its kin
            if isinstance(getattr(model, name, None), nn.Module):
                return getattr(model, name)  # type: ignore[no-any-return]
        return None


class Evaluation:
    """Held-out text with all chosen positions masked, always the same ones."""

    def __init__(self, worker: Worker, config: MLMPretrainingConfig, text: TokenizedText, masking: Masking) -> None:
        self.worker = worker
        self.config = config
        self.text = text
        self.masking = masking
        self.log_p_V = data.unigram_log_probabilities(text.train_NT, masking.maskable_ids, masking.vocab_size)

    @torch.no_grad()
    def measure(self, masked_lm: MaskedLM) -> dict[str, float]:
        """Return loss and accuracy over all ranks, and the loss of the word frequencies at the same positions."""
        worker, config = self.worker, self.config
        with worker.aside("evaluation"):
            masked_lm.eval()
            sums = torch.zeros(4, dtype=torch.float64)  # loss, right ones, unigram loss, predictions
            for batch in data.evaluation_batches(
                self.text.eval_NT, self.masking, config.batch_size, rank=worker.rank, world_size=worker.world_size
            ):
                inputs_BT, positions_BK, labels_BK = (part.to(worker.device) for part in batch)
                with autocast(worker.device, config.precision):
                    logits_BKV = masked_lm.logits(inputs_BT, positions_BK).float()
                chosen = labels_BK != IGNORED
                labels_P, logits_PV = labels_BK[chosen], logits_BKV[chosen]
                sums[0] += nn.functional.cross_entropy(logits_PV, labels_P, reduction="sum").cpu()
                sums[1] += (logits_PV.argmax(-1) == labels_P).sum().cpu()
                sums[2] -= self.log_p_V[labels_P.cpu()].sum()
                sums[3] += len(labels_P)
            masked_lm.train()
            loss, right, unigram, count = worker.sum(sums)
        count = max(count, 1)
        return {"eval/loss": loss / count, "eval/accuracy": right / count, "eval/unigram_loss": unigram / count}


def tokenized(worker: Worker, config: MLMPretrainingConfig) -> TokenizedText:
    """Let rank 0 tokenize the text, or find it tokenized by an earlier run, and open the result on every rank."""
    folder = worker.from_main(
        lambda: data.tokenize(
            worker.files.path.parent / ".cache",
            dataset=config.dataset,
            min_words=config.min_words,
            vocab_size=config.vocab_size,
            model_name=config.model_name,
            root=worker.project.root,
        )
    )
    return data.open_tokenized(folder, config.sequence_length)


def build_model(config: MLMPretrainingConfig, text: TokenizedText) -> PreTrainedModel:
    """Build a ModernBERT of the config's size, or load the model that it names.

    Raises:
        ConfigError: the named model cannot be loaded, or does not fit the tokenizer or the sequences.
    """
    if config.model_name is None:
        return ModernBertForMaskedLM(ModernBertConfig(**modernbert_settings(config, len(text.tokenizer))))
    try:
        model: PreTrainedModel = AutoModelForMaskedLM.from_pretrained(
            config.model_name, dtype=torch.float32, trust_remote_code=False, weights_only=True
        )
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"model_name={config.model_name!r}: its weights are a pickle that holds more than tensors, which could run "
            "code: refused; give a folder with model.safetensors"
        ) from error
    except (OSError, ValueError, ImportError, RuntimeError, EOFError, SafetensorError) as error:
        raise ConfigError(
            f"model_name={config.model_name!r}: cannot be loaded as a masked language model ({data.first_line(error)})"
        ) from error
    longest = getattr(model.config, "max_position_embeddings", config.sequence_length)
    if config.sequence_length > longest:
        raise ConfigError(f"sequence_length={config.sequence_length}: {config.model_name} takes at most {longest}")
    if len(text.tokenizer) > model.config.vocab_size:
        raise ConfigError(f"model_name={config.model_name!r}: its tokenizer has more words than the model")
    return model


def check_vocabulary(text: TokenizedText, weights: Path) -> None:
    """Refuse a checkpoint whose words have other numbers: its weights would load and mean nothing."""
    if data.open_vocabulary(weights) != text.tokenizer.get_vocab():
        raise CheckpointError(f"{weights}: its vocabulary is of another text; resume with the dataset of its run")


def writer(model: PreTrainedModel, text: TokenizedText) -> Callable[[Path], None]:
    """Return what writes model and tokenizer into a folder that `from_pretrained` loads."""

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        text.tokenizer.save_pretrained(folder)

    return write
