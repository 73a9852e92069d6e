"""Every reader against thousands of generated files: no exception but the documented ones, no hang, no growth.

What is read here was written by another process, another version, another user, or a dying disk. The examples are the
same in every run (`derandomize`), so that a failure is one for everybody.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Audited, Printed
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

import nbtools as nt
from nbtools.cli.output import print_media_item, print_run, status_lines
from nbtools.errors import CheckpointError, FormatError, ScriptError
from nbtools.failures.failure import Failure
from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.notebook.panel.snapshot import stamp_of, take_snapshot
from nbtools.notebook.plots.media_html import static_html
from nbtools.notebook.plots.view import view_of
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import Checkpoint, newest_verified
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir import media
from nbtools.rundir.json_files import LARGEST_JSON_BYTES, read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import last_lines
from nbtools.script.script import parse_script, render
from nbtools.training.engine import flags

pytestmark = pytest.mark.timeout(1200)  # seconds of processor time, but machines are shared

# --- what is generated ----------------------------------------------------------------------------

hostile_texts = st.sampled_from(
    ["", "../../x", "/etc/passwd", "a\0b", "\ud800", "‮", "<img src=x onerror=alert(1)>", "NaN", "-Infinity", "7"]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    hostile_texts,
    st.sampled_from([10**400, -(10**400), 2**53 + 1, 2**63, -1, 0, 1e308, 5e-324, "x" * 5000]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)


def dumped(content: object) -> bytes:
    """JSON as Python writes it, with NaN and lone surrogates as they come."""
    return json.dumps(content).encode(errors="surrogatepass")


def objects_like(valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """JSON objects with the keys of a valid one, some of them with values of any other kind, and some missing."""
    wrong = st.dictionaries(st.sampled_from(sorted(valid)), values, max_size=3)
    missing = st.sets(st.sampled_from(sorted(valid)), max_size=2)
    return st.builds(
        lambda changes, gone: dumped({key: v for key, v in {**valid, **changes}.items() if key not in gone}),
        wrong,
        missing,
    )


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Valid bytes with a few of them changed, cut out, doubled or put in."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        match draw(st.sampled_from(["flip", "cut", "double", "insert", "truncate"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "truncate":
                del data[at:]
    return bytes(data)


def files_like(valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """What may be found in place of a JSON file."""
    return st.one_of(objects_like(valid), objects_like(valid), damaged(dumped(valid)), values.map(dumped), st.binary())


# --- what may happen meanwhile ---------------------------------------------------------------------


def check_events(happened: list[tuple[str, tuple[Any, ...]]], *allowed: str) -> set[Path]:
    """Refuse all that happened but for these events, and return the files that were opened.

    Python itself imports a codec for a script that names one.
    """
    strange = [
        (event, arguments)
        for event, arguments in happened
        if event not in (*allowed, "sys._getframe", "object.__getattr__") and "encodings" not in repr(arguments)
    ]
    assert not strange
    opened = [arguments[0] for event, arguments in happened if event == "open" and "encodings" not in repr(arguments)]
    return {Path(os.fsdecode(name)) for name in opened if isinstance(name, str | bytes)}


# --- run directories ------------------------------------------------------------------------------

FAILURE = {"rank": 1, "host": "h", "exitcode": -9, "signal": "SIGKILL", "message": "killed", "traceback": "Traceback"}
BEAT = {"format": 1, "rank": 0, "pid": 4_000_000, "host": "h", "step": 7, "phase": "forward", "time": 1e9}
RECORDS: dict[str, dict[str, Any]] = {
    "launch.json": {
        "format": 1,
        "name": "toy",
        "script": "/p/scripts/toy.py",
        "recipe": "mlm_pretraining",
        "argv": ["true"],
        "args": ["--max-steps", "5"],
        "cwd": "/nonexistent",  # so that files of this machine are not searched
        "env": {"OMP_NUM_THREADS": "1"},
        "launch": {"nproc_per_node": 2, "gpus": [], "shutdown_timeout_s": 0, "max_restarts": 1},
        "time": 1e9,
        "resumed_from": {"run": "2026-01-01_000000_parent", "checkpoint": "step-000003", "step": 3},
        "by_hand": False,
        "flock": False,
        "ticket": "/nonexistent/000000001.json",
        "after": "/nonexistent/run",
    },
    "config.json": {"format": 1, "recipe": "mlm_pretraining", "config": {}, "derived": {"total_steps": 9}},
    "process.json": {"format": 1, "role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json(), "start_time": 1.0},
    "exit.json": {"format": 1, "returncode": 1, "signal": None, "stopped": False, "failure": FAILURE, "time": 1e9},
    "finished.json": {"why": "failed", "step": 7, "metrics": {"a/b": 1.0}, "failure": FAILURE, "time": 1e9},
    "ranks/0.heartbeat.json": BEAT,
    "ranks/1.heartbeat.json": {**BEAT, "rank": 1},
    "attempts.jsonl": {"format": 1, "attempt": 1, "time": 1e9, "returncode": 1, "failure": FAILURE, "checkpoint": None},
    "metrics.jsonl": {"step": 7, "time": 1e9, "train/loss": 1.5},
    "rank0.log": {"step": 7, "loss": 1.5},
    "checkpoints/step-000007/manifest.json": {
        "format": 1,
        "step": 7,
        "time": 1e9,
        "metrics": {"eval/loss": 2.0},
        "files": {"state.pt": {"bytes": 1, "sha256": "0"}},
    },
}


@pytest.fixture(scope="module")
def run_files(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run directory beside its parent's, with every file that a run can have."""
    folder = tmp_path_factory.mktemp("project") / "runs"
    for name in ("2026-01-01_000000_parent", "2026-01-02_000000_toy"):
        run = RunDir(folder / name)
        for part in (run.ranks, run.checkpoints / "step-000007"):
            part.mkdir(parents=True)
        run.lock.touch()
    (folder / "2026-01-01_000000_parent" / "metrics.jsonl").write_bytes(dumped({"step": 1, "train/loss": 3.0}) + b"\n")
    for name, valid in RECORDS.items():
        (run.path / name).write_bytes(dumped(valid) + b"\n")
    return run


def look_at(path: Path) -> None:
    """Ask for everything that panel, table and command line ask for."""
    run = Run(path)
    assert run.state in RunState
    summary = run.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) is not None, "not strict JSON"
    print_run(summary)
    status_lines(run)
    repr(run)
    shown = run._repr_html_() + nt.runs(Project(path.parent.parent))._repr_html_()
    assert "<img" not in shown
    records = run.records
    for look in (run.failure, run.checkpoints, run.config, records.process, records.ended_at, run.parent, run.history):
        repr(look)
    run.log()
    newest_verified(run.files.checkpoints)
    facts = take_snapshot(run, run.state)
    repr((stamp_of(run), facts, facts.remaining_s(1e9), facts.warnings, view_of(run)))


@contextlib.contextmanager
def replaced(run: RunDir, found: dict[str, bytes | None]) -> Iterator[None]:
    """Put other bytes, or nothing, in the place of some files, and the valid ones back."""
    for name, content in found.items():
        if content is None:
            (run.path / name).unlink()
        else:
            (run.path / name).write_bytes(content)
    yield
    for name in found:
        (run.path / name).write_bytes(dumped(RECORDS[name]) + b"\n")


named_files = st.one_of(
    [st.tuples(st.just(name), st.one_of(st.none(), files_like(valid))) for name, valid in RECORDS.items()]
)


@given(st.lists(named_files, min_size=1, max_size=3).map(dict))
@examples(100)
def test_any_run_directory_is_shown(run_files: RunDir, capsys: Printed, found: dict[str, bytes | None]) -> None:
    with replaced(run_files, found):
        try:
            look_at(run_files.path)
        except FormatError:
            assert any(b'"format"' in (content or b"") for content in found.values())
    capsys.readouterr()


MEDIA: list[dict[str, Any]] = [
    {"step": 1, "time": 1.0, "kind": "text", "title": "t", "text": "once"},
    {"step": 1, "time": 1.0, "kind": "table", "title": "t", "columns": ["a", "b"], "rows": [["1", "2"], ["3", "4"]]},
    {"step": 1, "time": 1.0, "kind": "frames", "title": "t", "frames": ["__", "_b", "ab"]},
    {"step": 1, "time": 1.0, "kind": "frames", "title": "t", "frames": ["..\n.@", "..\n@."], "keeps_lines": True},
    {"step": 1, "time": 1.0, "kind": "series", "title": "t", "x": [1, 2], "lines": {"y": [1, 2]}, "x_label": "x"},
]


@given(st.lists(st.one_of([files_like(valid) for valid in MEDIA]), min_size=1, max_size=3))
@examples(200)
def test_any_media_are_shown(tmp_path_factory: pytest.TempPathFactory, capsys: Printed, found: list[bytes]) -> None:
    folder = tmp_path_factory.getbasetemp() / "media"
    folder.mkdir(exist_ok=True)
    (folder / "it.jsonl").write_bytes(b"\n".join([dumped(MEDIA[0]), *found]) + b"\n")
    items = media.read(folder, "it")
    assert items[0].text == "once", "a damaged line hides no other"
    for item in items:
        json.dumps(media.to_json(item), allow_nan=False).encode()
        print_media_item(item)
        static_html(item).encode()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("exit.json", unit) for unit in (b"[", b'{"a":')),
        *((name, unit) for name in ("metrics.jsonl", "rank0.log") for unit in (b"[", b"x\r", b"\0")),
        *(("attempts.jsonl", b"\0"), ("ranks/0.heartbeat.json", b"[")),
    ],
    ids=repr,
)
def test_a_line_of_a_hundred_megabytes_is_not_held_in_memory(run_files: RunDir, name: str, unit: bytes) -> None:
    path = run_files.path / name
    content = path.read_bytes()
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from nbtools.run.run import Run\n"
        # Not ru_maxrss: that of a new process begins with what its parent had.
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "run, before = Run(sys.argv[1]), peak()\n"
        "run.summary(), run.log(), run._repr_html_()\n"
        "after, text = peak(), Path(sys.argv[2]).read_bytes()\n"
        "print(after - before, peak() - before)\n"
    )
    try:
        path.write_bytes(unit * (100 * 2**20 // len(unit)))
        command = [sys.executable, "-c", program, str(run_files.path), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        path.write_bytes(content)
    assert done.returncode == 0, done.stderr
    grown_kib, whole_kib = map(int, done.stdout.split())
    assert grown_kib < 64 * 1024 < 90 * 1024 < whole_kib


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'{"format":1,"a":[', b"[],", b"-", b"1", b'"'], ids=repr)
@pytest.mark.parametrize("num_bytes", [100_000, LARGEST_JSON_BYTES, LARGEST_JSON_BYTES + 1])
def test_deep_and_long_json_reads_as_nothing(tmp_path: Path, unit: bytes, num_bytes: int) -> None:
    path = tmp_path / "exit.json"
    path.write_bytes((unit * (num_bytes // len(unit) + 1))[:num_bytes])
    assert read_json(path) is None


def test_json_that_is_larger_than_any_of_ours_reads_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    text = '{"format": 1, "a": "%s"}'
    path.write_text(text % ("x" * (LARGEST_JSON_BYTES - len(text) + 2)))
    content = read_json(path)
    assert content is not None and path.stat().st_size == LARGEST_JSON_BYTES
    path.write_text(path.read_text() + " ")
    assert read_json(path) is None


def test_a_huge_error_leaves_the_record_of_the_end_readable(tmp_path: Path) -> None:
    path, flood = tmp_path / "exit.json", "x" * LARGEST_JSON_BYTES
    write_json(
        path, {"returncode": 1, "failure": Failure(0, "h", 1, None, flood, flood + "ValueError: boom").to_json()}
    )
    found = Failure.from_json((read_json(path) or {}).get("failure"))
    assert found.traceback.endswith("xValueError: boom")


# --- metrics and logs -----------------------------------------------------------------------------

ROWS = [dumped({"step": step, "time": 1e9 + step, "train/loss": 1 / step, "eval/loss": "NaN"}) for step in range(1, 9)]


@given(damaged(b"\n".join(ROWS) + b"\n"), st.lists(st.integers(0, 700), max_size=5))
@examples(400)
def test_damaged_rows_cost_no_other_row_however_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    whole, pieces = History(), History()
    whole.extend(data)
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        pieces.extend(data[start:stop])
    complete = data.split(b"\n")[:-1]
    assert whole.num_rows >= sum(line in ROWS for line in complete)
    assert whole.num_rows + whole.num_skipped <= len(complete)
    assert (whole.keys(), whole.num_rows, whole.num_skipped) == (pieces.keys(), pieces.num_rows, pieces.num_skipped)
    for name in whole:
        steps = whole[name].steps.tolist()
        assert steps == sorted(set(steps)) == pieces[name].steps.tolist()
        assert repr(whole[name].values.tolist()) == repr(pieces[name].values.tolist())


LOG = (
    b"W1121 13:35:05.123 torch/distributed/run.py:774] Setting OMP_NUM_THREADS\n"
    b"step 10 loss 2.31 lr 1e-3\n\x1b[31mred\x1b[0m {'loss': 2.3, 'epoch': 0.1}\n"
    b" 50%|#####     | 5/10 [00:01<00:01, 4.9it/s, loss=1.5]\r100%|##########| 10/10 loss=nan\n"
    b"Epoch [1/10], Step [5/100], Loss: 0.5 \xe6\x9d\xb1\xe4\xba\xac\nTraceback (most recent call last):\n"
)


@given(damaged(LOG))
@examples(300)
def test_a_damaged_log_is_plain_text_and_perhaps_numbers(run_files: RunDir, data: bytes) -> None:
    path = run_files.path / "other.log"
    path.write_bytes(data)
    lines = last_lines(path, 200)
    assert len(lines) <= data.count(b"\n") + 1
    assert all(
        character == "\t" or character.isprintable() for line in lines for character in line if character.isascii()
    )
    assert not any(character in "\u202e\u2066\u200f\ufeff\x9b" for line in lines for character in line)
    for series in LogMetrics(path).poll().values():
        steps = series.steps.tolist()
        assert steps == sorted(set(steps))
    path.unlink()


# --- scripts --------------------------------------------------------------------------------------

RECIPE_SCRIPTS = {key: render(recipe.config_class(), "plain") for key, recipe in RECIPES.items()}
SNIPPETS = (
    *("__import__('os').system('touch canary')", "open('canary', 'w')", "exec(\"open('canary', 'w')\")"),
    *("(lambda: open('canary', 'w'))()", "[open('canary', 'w') for _ in '1']", "f\"{open('canary', 'w')}\""),
    *("(x := open('canary', 'w'))", "*[open('canary', 'w')]", "**{'batch_size': open('canary', 'w')}"),
    *("@open('canary', 'w')\ndef f(): pass", "class A(metaclass=open('canary', 'w')): pass", "import antigravity"),
    *("from nbtools.recipes import *", "config = config", "launch = Launch(*[2])"),
    *("if __name__ == '__main__':\n    main(config)", "batch_size=" + "9" * 5000, "batch_size=1e400"),
    *("batch_size=" + "-" * 300 + "1", "(" * 300, "# coding: hex\n", "# coding: rot13\n", "# coding: undefined\n"),
    *("\0", "\x0c", "\ufeff", "\\", '"""', ""),
)


@st.composite
def scripts(draw: st.DrawFn) -> bytes:
    """Scripts of ours with lines put in, taken out, changed and exchanged, and bytes damaged."""
    text = draw(st.sampled_from(sorted(RECIPE_SCRIPTS.values())))
    lines = text.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        snippet = draw(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=20)))
        match draw(st.sampled_from(["before", "replace", "value", "exchange", "drop"])):
            case "before":
                lines.insert(at, f"{snippet}\n")
            case "replace":
                lines[at] = f"{snippet}\n"
            case "value":
                name, sign, _ = lines[at].partition("=")
                lines[at] = f"{name}{sign}{snippet},\n"
            case "exchange":
                lines[at] = lines[draw(st.integers(0, len(lines) - 1))]
            case "drop":
                lines[at] = "\n"
    data = "".join(lines).encode(errors="surrogatepass")
    return draw(st.one_of(st.just(data), damaged(data)))


@given(st.one_of(scripts(), scripts(), scripts(), st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@examples(500)
def test_whatever_a_script_says_reading_it_runs_nothing(audited: Audited, data: bytes) -> None:
    path = Path("/nowhere/plain.py")  # its bytes are given; Python looks for the line of a SyntaxError in it
    said = None
    with audited() as happened:
        try:
            script = parse_script(path, data)
        except ScriptError as error:
            said = str(error)
    assert check_events(happened, "compile", "open") <= {path}
    if said is None:
        again = render(script.config, "plain", script.launch).encode()
        assert parse_script(path, again).config == script.config
    else:
        assert said.startswith(f"{path}:")
        assert len(said) < 4000


# --- checkpoints ----------------------------------------------------------------------------------

STRANGE_FILES = [
    *("state.pt", "state.pt/", "model//../state.pt", "manifest.json", "model", "link", "loop", "pipe"),
    *("../secret", "../../secret", "a/../../secret", "../step-000007", "..", ".", "~", ""),
    *("/etc/passwd", "/dev/zero", "/proc/self/mem", "\0", "\ud800", "x" * 5000),
]
CLAIM = {"bytes": 3, "sha256": sha256(b"abc").hexdigest()}


@pytest.fixture(scope="module")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with links that lead out of it, and a pipe."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints" / "step-000007"
    (folder / "model").mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"abc")
    (folder.parent / "secret").write_bytes(b"abc")
    (folder / "link").symlink_to("../secret")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


claims = st.dictionaries(
    st.one_of(st.sampled_from(STRANGE_FILES), st.text(max_size=6)),
    st.one_of(st.just(CLAIM), st.fixed_dictionaries({}, optional={"bytes": values, "sha256": values}), values),
    max_size=3,
)
manifests = st.one_of(
    st.builds(lambda files: dumped({"format": 1, "step": 7, "time": 1.0, "files": files}), claims),
    files_like(RECORDS["checkpoints/step-000007/manifest.json"]),
)


@given(manifests)
@examples(500)
def test_any_checkpoint_opens_no_file_outside(audited: Audited, checkpoint_folder: Path, manifest: bytes) -> None:
    (checkpoint_folder / "manifest.json").write_bytes(manifest)
    said = ""
    with audited() as happened:
        try:
            checkpoint = Checkpoint.read(checkpoint_folder)
            json.dumps(checkpoint.to_json(), allow_nan=False)
            checkpoint.verify()
        except CheckpointError as error:
            said = str(error)
        newest, reasons = newest_verified(checkpoint_folder.parent)
    opened = check_events(happened, "open", "os.listdir", "os.scandir")
    assert all(path.is_relative_to(checkpoint_folder) for path in opened)
    assert (newest is None) == bool(said) == bool(reasons)
    if newest is not None:
        assert {Path(name) for name in newest.manifest["files"]} <= {Path("state.pt"), Path("model/../state.pt")}


# --- flags ----------------------------------------------------------------------------------------

FLAGS = [f"--{name.replace('_', '-')}" for name in RECIPES["mlm_pretraining"].config_class.model_fields]
words = st.one_of(
    st.sampled_from([*FLAGS, "--resume-from", "--lr", "--local-rank", "--distributed", "--help", "--", "-h", "--no-x"]),
    st.sampled_from(
        ["1", "-1", "1e-3", "none", "None", "true", "fp32", "9" * 400, "1e400", "nan", "", "=", "--=", "---"]
    ),
    hostile_texts.filter(lambda text: "\0" not in text and "\ud800" not in text),  # no command line holds those
    st.text(max_size=6),
)


@given(st.lists(words, max_size=5))
@examples(50)
def test_flags_of_anything_are_values_or_one_refusal(capsys: Printed, args: list[str]) -> None:
    config, code = RECIPES["mlm_pretraining"].config_class(), None
    try:
        parsed = flags.parse(config, args, prog="toy.py")
        assert type(parsed.config) is type(config)
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert (code, bool(said.err)) in {(None, False), (0, False), (2, True)}
