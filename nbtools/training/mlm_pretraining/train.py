"""BERT-style masked language modelling: predict masked words from their context.

Training selects 15% of the tokens (80% become [MASK], 10% a random word, 10% stay; Devlin et al. 2018,
arXiv 1810.04805). Evaluation replaces all selected tokens by [MASK]: if some stayed visible, a model without context
would beat the word frequencies. The head runs at the selected positions only.

Shape suffixes: B batch, T positions, K predicted positions, H width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel

from nbtools.recipes import MLMPretrainingConfig
from nbtools.recipes.built_models import modernbert_settings
from nbtools.training.engine.optimizer import Optimizer, autocast
from nbtools.training.engine.sampler import IGNORED, batches_of_rank, spread
from nbtools.training.engine.worker import Worker
from nbtools.training.mlm_pretraining.dataset import MLMText, open_tokenized, tokenize
from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking, unigram_log_probabilities
from nbtools.training.outputs.tally import Tally
from nbtools.training.process.step_clock import training_flops
from nbtools.training.text import pretrained_models
from nbtools.training.text.adapter import add_adapter
from nbtools.training.text.causal_sampling import at_rest
from nbtools.training.text.chunked_logits import head_of, in_chunks


def train(worker: Worker, config: MLMPretrainingConfig) -> None:
    """Train from scratch or from a checkpoint, to the last step or a stop."""
    text = tokenized(worker, config)
    masking = Masking.of(text, config.mask_probability, config.seed)
    plan = worker.plan(len(text.train), len(text.evaluation), len(text.test), text.data)
    masked_lm = MaskedLM(worker.build(lambda: build_model(config, text)))
    model = worker.wrap(masked_lm, find_unused_parameters=masked_lm.has_unused_weights)
    worker.initial_state.load_weights(masked_lm.model, text.tokenizer)
    optimizer = Optimizer(model, config, plan.total_steps, worker.device)
    evaluation = Evaluation(worker, config, text, masking)
    batches = worker.batches(MaskedTraining(text.train, masking), plan.order)
    # Every pass predicts the same number of positions, so dividing by it is exact over ranks and accumulated passes.
    num_predicted = config.gradient_accumulation_steps * config.batch_size * masking.num_predicted
    tally = Tally("loss", "predictions", device=worker.device)
    num_parameters = masked_lm.model.num_parameters()
    sizes = {"vocab_size": len(text.tokenizer), "flops_per_sample": masked_lm.flops(config.sequence_length, masking)}
    worker.begin(plan, optimizer, tally, num_parameters=num_parameters, hub_commits=text.commits, **sizes)

    model.train()
    for step in worker.steps(plan):
        for (inputs_BT, positions_BK, labels_BK), is_last in worker.passes(batches):
            with worker.forward(model, is_last=is_last):
                loss_sum = model(inputs_BT, positions_BK, labels_BK)
            worker.backward(optimizer, loss_sum / num_predicted)
            tally.add(loss=loss_sum, predictions=(labels_BK != IGNORED).sum())
        worker.update(optimizer, step)
        due = worker.advance(plan)

        row: dict[str, float] = {}
        if due.log:
            sums = tally.reduce(worker.sum)
            row = {"train/loss": sums["loss"] / max(sums["predictions"], 1), **optimizer.metrics()}
            row["train/tokens_per_s"] = worker.samples_per_s() * config.sequence_length
            row["train/epoch"] = plan.epochs(worker.progress)
        if due.evaluation:
            row |= evaluation.measure(masked_lm)
        worker.end_step(row, plan.total_steps)

        if due.checkpoint:
            state, more = optimizer.state_dict(), text.tokenizer.save_pretrained
            worker.save({"": masked_lm.model}, state, tally.state_dict(), write_more=more)

    if (best := worker.begin_test(plan)) is not None:
        best.load_weights(masked_lm.model)
        test = Evaluation(worker, config, dataclasses.replace(text, evaluation=text.test), masking)
        worker.end_test(test.measure(masked_lm))


class MaskedLM(nn.Module):
    """Any masked language model of `transformers`, with its head at chosen positions only."""

    forward_methods = ("scores",)

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs_BT: Tensor, positions_BK: Tensor, labels_BK: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all predictions, in nats; labels that are `IGNORED` add nothing."""
        return self._sums(inputs_BT, positions_BK, labels_BK, counts_correct=False)

    def scores(self, inputs_BT: Tensor, positions_BK: Tensor, labels_BK: Tensor) -> Tensor:
        """Return what `forward` does, and the number of correct predictions. Shape (2,)."""
        return self._sums(inputs_BT, positions_BK, labels_BK, counts_correct=True)

    def _sums(self, inputs_BT: Tensor, positions_BK: Tensor, labels_BK: Tensor, *, counts_correct: bool) -> Tensor:
        chosen_BKH, head = self._chosen(inputs_BT, positions_BK)

        def sums(chosen_NH: Tensor, labels_N: Tensor) -> Tensor:
            logits_NV = head(chosen_NH)
            # A half would lose the sum over the vocabulary.
            logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
            loss = nn.functional.cross_entropy(logits_NV, labels_N, ignore_index=IGNORED, reduction="sum")
            if not counts_correct:
                return loss
            return torch.stack([loss, (logits_NV.argmax(-1) == labels_N).sum().to(loss.dtype)])

        parts = chosen_BKH.flatten(0, 1), labels_BK.flatten()
        return torch.stack(in_chunks(sums, self.model.config.vocab_size, *parts)).sum(0)

    def has_unused_weights(self) -> bool:
        """Whether the loss does not depend on some of the weights, such as a pooler's or another head's."""
        if isinstance(self.model, ModernBertForMaskedLM):
            return False
        return pretrained_models.has_unused_weights(self, lambda ones: self(ones, ones[:, :1], ones[:, :1]))

    def flops(self, num_tokens: int, masking: Masking) -> float:
        """Return the FLOPs of a training step on one sequence."""
        num_logits = num_tokens if head_of(self.model) is None else masking.num_predicted
        return training_flops(self.model, num_tokens, num_logits)

    def logits(self, inputs_BT: Tensor, positions_BK: Tensor) -> Tensor:
        """Return the scores of all words at the chosen positions. Shape (B, K, V)."""
        chosen_BKH, head = self._chosen(inputs_BT, positions_BK)
        return head(chosen_BKH)

    def _chosen(self, inputs_BT: Tensor, positions_BK: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return hidden states at the chosen positions, and the head; of an unknown architecture logits, and none."""
        head = head_of(self.model)
        model = self.model if head is None else self.model.base_model
        all_BTH = model(input_ids=inputs_BT)[0]
        chosen_BKH = all_BTH.gather(1, positions_BK[:, :, None].expand(-1, -1, all_BTH.shape[2]))
        return chosen_BKH, head or (lambda logits: logits)


class Evaluation:
    """Loss and accuracy on held-out text, always with the same positions masked."""

    def __init__(self, worker: Worker, config: MLMPretrainingConfig, text: MLMText, masking: Masking) -> None:
        self.worker = worker
        self.config = config
        self.text = text
        self.masking = masking
        self.samples_N = spread(len(text.evaluation), config.num_evaluated(len(text.evaluation)))
        self.log_p_V = unigram_log_probabilities(text.train, masking.maskable_ids, masking.vocab_size)

    def measure(self, masked_lm: MaskedLM) -> dict[str, float]:
        """Return loss and accuracy over all ranks, and the loss of the word frequencies at the same positions."""
        worker, config = self.worker, self.config
        with worker.aside("evaluation"), at_rest(masked_lm):
            sums = torch.zeros(4, dtype=torch.float64)  # loss, correct predictions, unigram loss, predictions
            batches = batches_of_rank(len(self.samples_N), config.batch_size, worker.rank, worker.world_size)
            for places_B, is_own in batches:
                samples_B = self.samples_N[places_B]
                batch = self.masking.for_evaluation(self.text.evaluation[samples_B], samples_B)
                with autocast(worker.device, config.precision):
                    scores = masked_lm.scores(*(part.to(worker.device) for part in batch)).cpu()
                if not is_own:
                    continue
                labels_P = batch[2][batch[2] != IGNORED]
                sums[:2] += scores
                sums[2] -= self.log_p_V[labels_P].sum()
                sums[3] += len(labels_P)
            loss, correct, unigram, count = worker.sum(sums)
        count = max(count, 1)
        return {"eval/loss": loss / count, "eval/accuracy": correct / count, "eval/unigram_loss": unigram / count}


def tokenized(worker: Worker, config: MLMPretrainingConfig) -> MLMText:
    """Tokenize the text on rank 0, or reuse the result of an earlier run, and open it on every rank."""
    cache = worker.files.path.parent / ".cache"
    made = worker.ranks.from_main(lambda: tokenize(cache, config, worker.project.root, worker.say))
    has_template = config.model_name is not None and config.add_special_tokens
    text = open_tokenized(made.folder, config.sequence_length, with_template=has_template)
    return dataclasses.replace(text, commits=made.commits)


def build_model(config: MLMPretrainingConfig, text: MLMText) -> PreTrainedModel:
    """Build a ModernBERT of the config's size, or load the pretrained model that the config names.

    Raises:
        ConfigError: the named model cannot be loaded, or does not fit the tokenizer or the sequences.
    """
    if config.model_name is None:
        return ModernBertForMaskedLM(ModernBertConfig(**modernbert_settings(config, len(text.tokenizer))))
    kind, dropout = "a masked language model", None if config.keep_model_dropout else config.dropout
    model = pretrained_models.load_model(AutoModelForMaskedLM, config.model_name, kind, dropout=dropout)
    pretrained_models.check_length(model, config.model_name, config.sequence_length)
    pretrained_models.check_vocabulary_size(config.model_name, len(text.tokenizer), model.config.vocab_size)
    add_adapter(model, config)
    return model
