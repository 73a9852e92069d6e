"""Reading tracebacks and what else a failed run leaves behind."""

import json
import os
from pathlib import Path
from traceback import format_exc

import pytest

from nbtools.failures import evidence
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

PACKAGE = Path(evidence.__file__).parents[1]
SITE = "/opt/env/lib/python3.11/site-packages/torch"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "r")
    made.ranks.mkdir(parents=True)
    return made


def traceback(*frames: tuple[str, int, str, str], error: str = "ValueError: boom") -> str:
    shown = "".join(f'  File "{file}", line {line}, in {name}\n    {source}\n' for file, line, name, source in frames)
    return f"Traceback (most recent call last):\n{shown}{error}\n"


def test_the_deepest_frame_of_the_training_code_is_named_and_none_below_or_above_it(run: RunDir) -> None:
    project = run.path.parent.parent
    script = (f"{project}/scripts/toy.py", 9, "<module>", "main(config)")
    record = (f"{SITE}/distributed/elastic/multiprocessing/errors/__init__.py", 367, "wrapper", "return f(*args)")
    worker = (f"{PACKAGE}/training/engine/worker.py", 66, "recorded", "train(worker, flags.config)")
    recipe = (f"{PACKAGE}/training/mlm_pretraining/train.py", 97, "train", "(loss_sum / num_predicted).backward()")
    inside = (f"{SITE}/_tensor.py", 623, "backward", "torch.autograd.backward(")
    stdlib = ("/usr/lib/python3.11/contextlib.py", 81, "inner", "return func(*args, **kwds)")
    whole = traceback(script, record, worker, recipe, inside, stdlib)
    assert evidence.training_frame(whole, run) == (
        "nbtools/training/mlm_pretraining/train.py:97 in train: (loss_sum / num_predicted).backward()"
    )
    assert evidence.training_frame(traceback(script, record), run) == "scripts/toy.py:9 in <module>: main(config)"
    elsewhere = traceback(script, ("/home/me/lib/model.py", 3, "Block.forward", "return x @ w"), inside)
    assert evidence.training_frame(elsewhere, run) == "/home/me/lib/model.py:3 in Block.forward: return x @ w"
    assert evidence.training_frame(traceback(record, worker, stdlib), run) is None
    assert evidence.training_frame("", run) is None


def test_in_a_chain_the_frame_is_that_of_the_last_exception_that_has_one(run: RunDir) -> None:
    cause = traceback(("/home/me/data.py", 5, "__getitem__", "raise KeyError"), error="KeyError: 'x'")
    inside = traceback((f"{SITE}/_utils.py", 794, "reraise", "raise exception"), error="ValueError: Caught ValueError")
    assert (
        evidence.training_frame(inside + "Original " + cause, run)
        == "/home/me/data.py:5 in __getitem__: raise KeyError"
    )
    handled = cause + "\nDuring handling of the above exception, another exception occurred:\n\n" + inside
    assert evidence.training_frame(handled, run) == "/home/me/data.py:5 in __getitem__: raise KeyError"


def test_of_nbtools_a_real_traceback_shows_recipes_but_not_their_plumbing(run: RunDir) -> None:
    from nbtools.training.process import launchers
    from nbtools.training.text_classification import metrics

    found = []
    plumbing = {"ACCELERATE_MIXED_PRECISION": None}
    for call in (lambda: metrics.prefixes(None), lambda: launchers.precision(plumbing)):  # type: ignore[arg-type]
        try:
            call()
        except AttributeError:
            found.append(evidence.training_frame(format_exc(), run) or "")
    recipe, caller = found
    assert recipe.startswith("nbtools/training/text_classification/metrics.py:")
    assert recipe.endswith(' in prefixes: if system.formatter != "hisco":')
    assert caller.partition(":")[0].endswith("tests/failures/test_evidence.py"), "the deepest frame was in launchers.py"


WORKERS = traceback((f"{SITE}/utils/data/dataloader.py", 725, "__next__", "data = self._next_data()")).replace(
    "ValueError: boom", "ValueError: Caught ValueError in DataLoader worker process 0."
)
ORIGINAL = traceback(("/home/me/data.py", 5, "__getitem__", "raise ValueError"), error="ValueError: bad sample 17")


def test_the_last_output_is_a_whole_chain_and_its_own_exception() -> None:
    older = traceback(("a.py", 1, "f", "g()"), error="KeyError: 'an earlier one, survived'")
    said, found = evidence.last_output(f"{older}went on\n{WORKERS}Original {ORIGINAL}\n", 1)
    assert said == ": ValueError: Caught ValueError in DataLoader worker process 0."
    assert found == f"{WORKERS}Original {ORIGINAL}".strip()
    assert evidence.exceptions(found) == [
        "ValueError: Caught ValueError in DataLoader worker process 0.",
        "ValueError: bad sample 17",
    ]
    chained = f"{older}\nDuring handling of the above exception, another exception occurred:\n\n{ORIGINAL}"
    said, found = evidence.last_output(f"noise\n{chained}", 1)
    assert (said, found) == (": ValueError: bad sample 17", chained.strip())


def test_the_lines_that_torch_marks_with_their_rank_are_read_as_they_were(run: RunDir) -> None:
    marked = "".join(f"[rank0]: {line}\n" for line in ORIGINAL.splitlines())
    torchruns = "E1121 13:41:06.298000 7914 torch/distributed/elastic/multiprocessing/api.py:1002] failed\nTraceback"
    printed = evidence.printed_by(run, 0, f"step 1\n{marked}{torchruns}")
    assert printed == f"step 1\n{ORIGINAL}"


def test_the_end_of_a_file_is_never_what_stood_before_the_attempt(run: RunDir) -> None:
    run.log.write_text("before|after")
    assert evidence.text_end(run.log, since=7) == "after"
    assert evidence.text_end(run.log, since=99) == ""
    os.mkfifo(run.path / "pipe")
    assert evidence.text_end(run.path / "missing") == evidence.text_end(run.path / "pipe") == ""


def test_rows_and_heartbeats_are_read_as_far_as_they_can_be(run: RunDir) -> None:
    row = '{"step": 1, "note": "a\u2028b\x85c"}'  # other ends of lines
    run.metrics.write_text(f'{row}\n{{"torn\n[1]\n\n{{"step": 2}}\n', encoding="utf-8")
    assert evidence.last_rows(run.metrics) == [json.loads(row), {"step": 2}]
    assert evidence.last_rows(run.system) == []
    beat = {"rank": 0, "pid": 1, "host": "h", "step": 4, "phase": "data", "time": 1.0}
    write_json(run.heartbeat(0), beat)
    run.heartbeat(1).write_text("{torn")
    assert [found.step for found in read_heartbeats(run)] == [4]
    run.heartbeat(2).write_text(json.dumps({**beat, "format": 99}))
    assert [found.step for found in read_heartbeats(run)] == [4]


def test_an_exception_that_python_prints_without_its_stderr_is_read() -> None:
    text = (
        'Traceback (most recent call last):\n  File "loads.py", line 16, in <module>\n    for batch in loader:'
        "object address  : 0x7f3c5a1b2c40\nobject refcount : 2\nobject type     : 0x9a1ce0\n"
        "object type name: RuntimeError\n"
        "object repr     : RuntimeError('DataLoader worker (pid 812) is killed by signal: Killed. ')\nlost sys.stderr\n"
    )
    message, traceback = evidence.last_output(text, 1)
    assert message == ": RuntimeError('DataLoader worker (pid 812) is killed by signal: Killed. ')"
    assert traceback is not None
    assert "object refcount" not in traceback
