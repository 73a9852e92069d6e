"""Algorithm Distillation: a transformer trained on learning histories improves in context with frozen weights.

A causal transformer predicts the actions of learning histories, from windows that span several episodes of one history.
The actions improve within a window, so the model must infer the goal from the rewards that it contains (Laskin et al.
2022, arXiv 2210.14215). The loss is the mean cross-entropy of all actions of a window. Evaluation measures it on
histories of unseen goals, and runs the model on these goals (see `rollout`): its return should rise over the episodes.

Shape suffixes: B batch, T steps of a window, S rollouts, E episodes; 4 as in `model`.
"""

import numpy as np
import numpy.typing as npt

from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.rundir import media
from nbtools.training.algorithm_distillation import rollout
from nbtools.training.algorithm_distillation.dataset import LearningHistories, Windows, open_histories
from nbtools.training.algorithm_distillation.model import ActionTransformer, build_action_transformer
from nbtools.training.engine.optimizer import Optimizer, autocast
from nbtools.training.engine.sampler import batches_of_rank, spread
from nbtools.training.engine.worker import Worker
from nbtools.training.outputs.tally import Tally
from nbtools.training.process.step_clock import training_flops
from nbtools.training.text.causal_sampling import at_rest

Floats = npt.NDArray[np.float64]

_FIRST = 3
"""Number of first episodes of a rollout whose mean return is a metric."""


def train(worker: Worker, config: AlgorithmDistillationConfig) -> None:
    """Train from scratch or from a checkpoint, to the last step or a stop."""
    histories = open_histories(worker, config)
    windows = Windows(histories.train_HL4, config.horizon, config.window_steps, config.compress_interval)
    num_goals = config.num_goals_for_test(len(histories.test_goals_G2))
    for_evaluation, for_test = histories.divided(num_goals)
    evaluation = Evaluation(worker, config, for_evaluation)
    num_test = evaluation.num_held_out * num_goals // len(for_evaluation.test_goals_G2)
    data = worker.ranks.from_main(histories.digest)
    plan = worker.plan(len(windows), evaluation.num_held_out, num_test, data)
    transformer = worker.build(lambda: build_action_transformer(config, histories.test_goals_G2))
    model = worker.wrap(transformer)
    worker.initial_state.load_weights(transformer.model)
    optimizer = Optimizer(model, config, plan.total_steps, worker.device)
    batches = worker.batches(windows, plan.order)
    num_actions = config.gradient_accumulation_steps * config.batch_size * config.window_steps
    tally = Tally("loss", "actions", device=worker.device)
    flops = training_flops(transformer.model, config.window_tokens, config.window_tokens)
    num_parameters = transformer.model.num_parameters()
    worker.begin(plan, optimizer, tally, num_parameters=num_parameters, flops_per_sample=flops)

    model.train()
    for step in worker.steps(plan):
        for (tokens_BT4, actions_BT), is_last in worker.passes(batches):
            with worker.forward(model, is_last=is_last):
                loss_sum = model(tokens_BT4, actions_BT)
            worker.backward(optimizer, loss_sum / num_actions)
            tally.add(loss=loss_sum, actions=len(actions_BT) * config.window_steps)
        worker.update(optimizer, step)
        due = worker.advance(plan)

        row: dict[str, float] = {}
        if due.log:
            sums = tally.reduce(worker.sum)
            row = {"train/loss": sums["loss"] / max(sums["actions"], 1), **optimizer.metrics()}
            row["train/samples_per_s"] = worker.samples_per_s()
            row["train/epoch"] = plan.epochs(worker.progress)
        if due.evaluation:
            row |= evaluation.measure(transformer)
        worker.end_step(row, plan.total_steps)

        if due.checkpoint:
            worker.save({"": transformer.model}, optimizer.state_dict(), tally.state_dict())

    if (checkpoint := worker.begin_test(plan)) is not None:
        checkpoint.load_weights(transformer.model)
        worker.end_test(Evaluation(worker, config, for_test).measure(transformer))


class Evaluation:
    """Metrics on unseen goals: the loss on their histories, and the returns of the model's own rollouts."""

    def __init__(self, worker: Worker, config: AlgorithmDistillationConfig, histories: LearningHistories) -> None:
        self.worker = worker
        self.config = config
        self.darkroom = histories.darkroom
        self.windows = Windows(histories.test_HL4, config.horizon, config.window_steps, config.compress_interval)
        places_N = np.arange(len(self.windows)) % config.windows_per_history
        windows_N = np.flatnonzero(places_N % config.windows_apart == 0)  # those that do not overlap
        self.num_held_out = len(windows_N)
        self.windows_N = windows_N[spread(len(windows_N), config.num_evaluated(len(windows_N)))]
        self.goals_S2, self.numbers_S = rollout.repeat_goals(histories.test_goals_G2, config.eval_rollouts)
        self.settings = rollout.RolloutSettings(config.eval_episodes, config.seed, num_at_once=config.eval_batch_size)
        self.best_return = float(self.darkroom.best_returns(histories.test_goals_G2).mean())

    def measure(self, transformer: ActionTransformer) -> dict[str, float]:
        """Return loss in nats per action and returns of the first and last episodes, over all ranks, and show them."""
        worker = self.worker
        with worker.aside("evaluation"), at_rest(transformer):
            loss = self._loss(transformer)
            batches = batches_of_rank(len(self.goals_S2), self.settings.num_at_once, worker.rank, worker.world_size)
            share = np.concatenate([places_B for places_B, _ in batches])
            num_own = len(range(worker.rank, len(self.goals_S2), worker.world_size))
            with autocast(worker.device, self.config.precision):
                rollouts = rollout.run_rollouts(transformer, self.goals_S2[share], self.numbers_S[share], self.settings)
            loss, *returns = worker.sum([loss, *rollouts.returns_SE[:num_own].sum(axis=0)])
            returns_E = np.array(returns) / len(self.goals_S2)
            if worker.is_main:
                self._show(rollouts, returns_E)
        return {
            "eval/loss": loss / (len(self.windows_N) * self.config.window_steps),
            "eval/return_last": float(returns_E[-rollout.LAST :].mean()),
            "eval/return_first": float(returns_E[:_FIRST].mean()),
            "eval/return_best": self.best_return,
        }

    def _loss(self, transformer: ActionTransformer) -> float:
        """Return the sum of the cross-entropies of this rank's share of the held-out windows."""
        worker, config, total = self.worker, self.config, 0.0
        batches = batches_of_rank(len(self.windows_N), config.eval_batch_size, worker.rank, worker.world_size)
        for places_B, is_own in batches:
            batch = self.windows[0, self.windows_N[places_B]]
            with autocast(worker.device, config.precision):
                loss_sum = transformer(*(part.to(worker.device) for part in batch))
            total += float(loss_sum) if is_own else 0.0
        return total

    def _show(self, rollouts: rollout.Rollouts, returns_E: Floats) -> None:
        """Show the return of every episode, and the rollout of rank 0 with the median final return."""
        num_episodes = len(returns_E)
        lines = {"unseen goals": returns_E.tolist(), "best possible": [self.best_return] * num_episodes}
        title, episodes = "Return of each episode on goals never seen", range(1, num_episodes + 1)
        self.worker.show("returns", media.series(title, episodes, lines, x_label="episode", y_label="return"))
        middle = rollouts.median()
        title = f"One unseen goal being found ({rollout.AGENT} agent, {rollout.GOAL} goal)"
        frames = rollout.rollout_frames(rollouts, middle, self.darkroom, rollout.episodes_to_show(num_episodes))
        self.worker.show("search", media.frames(title, frames, keep_lines=True))
