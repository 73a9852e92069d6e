"""The script is the config, both ways."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import python

from nbtools import __version__
from nbtools.config import Launch
from nbtools.errors import HandEditedError, NotPlainError, ProjectError, ScriptError
from nbtools.launcher.preflight import preflight
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.script.script import PLAIN, differences, parse_script, read_script, render, write_script

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTILE_TEXTS = [
    '"""\nimport os\n"""',
    "'''",
    "\\",
    '\\"',
    "'\"",
    "a\nb\r\nc\rd",
    "\0",
    "\ud800",
    "\u202e\u2066\u200f\ufeff",
    "$(touch p)`touch p`; touch p",
    "-x",
    "{config}",
    "%s",
    "#",
    "x" * 10_000,
    "é東\N{ROCKET}",
    "\x1b[31m\x85\u2028",
    "",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    (root / "runs").mkdir()
    monkeypatch.chdir(root)
    yield Project(root)
    assert sorted(path.name for path in root.iterdir()) == ["runs", "scripts"], "something was written outside scripts/"
    assert not list((root / "scripts").glob(".*")), "a temporary file was left behind"


# --- round trips ---


texts = st.one_of(st.text(st.characters(), max_size=80), st.sampled_from(HOSTILE_TEXTS))
configs = st.builds(
    MLMPretrainingConfig,
    batch_size=st.integers(1, 1_000_000),
    max_steps=st.none() | st.integers(1, 10**9),
    learning_rate=st.floats(0, 10, exclude_min=True),
    weight_decay=st.floats(0, allow_nan=False, allow_infinity=False),
    warmup_ratio=st.floats(0, 1),
    lr_schedule=st.sampled_from(["linear", "cosine", "constant"]),
    deterministic=st.booleans(),
    dataset=st.none() | texts,
    model_name=st.none() | texts,
)
launches = st.builds(
    Launch,
    nproc_per_node=st.just(1),
    gpus=st.none() | st.lists(st.integers(0, 1023), unique=True, max_size=5).map(tuple),
    omp_num_threads=st.none() | st.integers(1, 64),
)


@pytest.mark.promise("guide-M15")
@given(config=configs, launch=launches)
def test_config_to_script_to_config_is_the_identity(config: MLMPretrainingConfig, launch: Launch) -> None:
    source = render(config, "some_name", launch)
    script = parse_script(Path("some_name.py"), source.encode())
    assert (script.config, script.launch, script.recipe) == (config, launch, "mlm_pretraining")
    assert not script.hand_edited
    assert script.lacks == (), "every field is spelled out"
    assert repr(script.config) == repr(config)
    assert all(character == "\n" or character.isprintable() for character in source)


def test_ruff_has_nothing_to_say_about_a_script(tmp_path: Path) -> None:
    for preset in RECIPES["mlm_pretraining"].presets:
        config, launch = RECIPES["mlm_pretraining"].preset(preset)
        values = {"dataset": "data/it's text.txt", "model_name": 'a "quoted" name'}
        (tmp_path / f"{preset}.py").write_text(render(config.replace(**values), f"on_{preset}", launch))
    settings = ["--config", str(REPOSITORY / "pyproject.toml"), "--no-cache"]
    for command in (["format", "--diff", *settings], ["check", "--ignore", "I001", *settings]):
        python("-m", "ruff", *command, tmp_path)


def test_the_docstring_shows_the_commands_that_run_the_script(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(batch_size=8), "my_run", Launch(nproc_per_node=2, gpus=(0, 3)))
    docstring = read_script(path).docstring
    assert docstring.startswith("my_run: masked language modelling, 2 processes x 8 sequences.")
    assert "nbtools launch scripts/my_run.py\n" in docstring
    assert "CUDA_VISIBLE_DEVICES=0,3 torchrun --standalone --nproc-per-node=2 scripts/my_run.py\n" in docstring


@pytest.mark.parametrize("key", RECIPES)
def test_the_checked_in_script_is_what_its_preset_renders(key: str) -> None:
    config, launch = RECIPES[key].preset("cpu_demo")
    assert (REPOSITORY / "scripts" / f"{key}.py").read_text() == render(config, key, launch)


# --- reading ---


OLDER_SCRIPTS = {
    "before versions": lambda text: text[: text.index("\n# Written by")],
    "of another version": lambda text: resealed(text.replace("by nbtools " + __version__, "by nbtools 0.0.9")),
    "of another layout": lambda text: resealed(text.replace("  # sequences per process", "  # per process")),
}


def resealed(text: str) -> str:
    """Return a script as a version that renders this text writes it."""
    body, _, line = text.partition("\n# Written by")
    return f"{body}\n# Written by{line.split('checksum')[0]}checksum {hashlib.sha256(body.encode()).hexdigest()[:12]}\n"


@pytest.mark.promise("safety-older-script")
@pytest.mark.parametrize("older", OLDER_SCRIPTS.values(), ids=OLDER_SCRIPTS.keys())
def test_a_script_of_an_older_nbtools_is_not_hand_edited_and_says_what_it_lacks(
    project: Project, older: Callable[[str], str]
) -> None:
    path = write_script(MLMPretrainingConfig(batch_size=8), "my_run")
    text = path.read_text().replace("    mask_probability=0.15,\n", "").replace("seed=0", "seed=7")
    path.write_text(older(text))
    script = read_script(path)
    assert not script.hand_edited
    assert script.lacks == ("mask_probability",)
    checked = preflight(path, gpus=())
    said = [found for found in checked.findings if found.subject == "script"]
    assert [found.level for found in said] == ["warn"]
    assert "does not name 1 field, so today's values apply: mask_probability=0.15" in said[0].text
    path.write_text(path.read_text() + "# mine\n")
    assert read_script(path).hand_edited
    assert [found.level for found in preflight(path, gpus=()).findings if found.subject == "script"] == ["ok"]


def test_a_script_that_differs_in_its_version_alone_is_left_as_it_is(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    older = resealed(path.read_text().replace("by nbtools " + __version__, "by nbtools 0.0.9"))
    path.write_text(older)
    write_script(MLMPretrainingConfig(), "my_run")
    assert path.read_text() == older


def test_a_changed_value_reads_back_and_shows_as_a_difference(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    before = read_script(path)
    path.write_text(path.read_text().replace("batch_size=32", "batch_size=4").replace("gpus=None", "gpus=(1,)"))
    after = read_script(path)
    assert differences(before, after) == [("gpus", None, (1,)), ("batch_size", 32, 4)]
    assert differences(before.config, after.config) == [("batch_size", 32, 4)]
    assert differences(after, after) == []


def test_a_copy_under_another_name_is_not_hand_edited(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    copy = project.scripts / "other.py"
    copy.write_bytes(path.read_bytes())
    assert not read_script(copy).hand_edited


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"    ", b"\t"),
        lambda data: data.rstrip(b"\n"),
        lambda data: data + b"# the end\n",
        lambda data: data[data.index(b"from") :],
        lambda data: data.replace(b"gpus=None", b"gpus=[0, 1]"),
        lambda data: data.replace(b"import Launch", b"import Launch as L").replace(b"launch = Launch", b"launch = L"),
        lambda data: data.replace(b"batch_size=32", b"batch_size=3_2"),
        lambda data: data.replace(b"dataset=None", rb"dataset='\d'"),
    ],
    ids=["bom", "crlf", "tabs", "no newline", "comment", "no docstring", "list", "alias", "_", "escape"],
)
def test_other_layouts_of_a_plain_script_are_read_and_count_as_hand_edited(project: Project, change: object) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    script = read_script(path)
    assert script.hand_edited
    assert script.config.batch_size == 32


def test_a_script_without_launch_settings_has_the_defaults(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    text = path.read_text()
    path.write_text(text[: text.index("launch = ")] + text[text.index("config = ") :])
    assert read_script(path).launch == Launch()


def edited(project: Project, old: str, new: str) -> tuple[Path, int]:
    """Write a script with `old` replaced and return it with the line where `new` begins."""
    path = write_script(MLMPretrainingConfig(), "my_run")
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return path, text[: text.index(old)].count("\n") + 1


SOME = "is more than a plain script has"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("batch_size=32", "batch_size=2 * 16", "batch_size is computed ('2 * 16')"),
        ("batch_size=32", "batch_size=int('32')", "batch_size is computed (\"int('32')\")"),
        ("dataset=None", "dataset=f'{__name__}'", "dataset is computed"),
        ("batch_size=32", "batch_size=BATCH", "batch_size is computed ('BATCH')"),
        ("batch_size=32", "**{'batch_size': 32}", "'**{'batch_size': 32}' is not a literal value"),
        ("batch_size=32", "32", "'32' has no name; write field=value"),
        ("config = MLM", "print('hello')\nconfig = MLM", f"\"print('hello')\" {SOME}"),
        ("config = MLM", "config: object = MLM", SOME),
        ("config = MLM", "settings = MLM", SOME),
        ("config = MLM", "import os\nconfig = MLM", f"'import os' {SOME}"),
        ("config = MLM", "for _ in ():\n    pass\nconfig = MLM", f"'for _ in ():' {SOME}"),
        ("    main(config)", "    main(config.replace(batch_size=1))", SOME),
        ("from nbtools import Launch", "from .nbtools import Launch", SOME),
        ("config = MLMPretrainingConfig(", "config = SomeConfig(", "config is built by 'SomeConfig' instead of MLM"),
        ("launch = Launch(", "launch = dict(", "launch is built by 'dict' instead of Launch"),
        ("training.mlm_pretraining import", "training.llm_gan import", "main has to come from its recipe"),
        ('if __name__ == "__main__":\n    main(config)\n', "", "nothing starts the training"),
        ("if __name__", "config = MLMPretrainingConfig()\nif __name__", "config is assigned twice"),
        ("if __name__", "launch = Launch()\nif __name__", "launch is assigned twice"),
        ("epochs=1,", "epochs=1, epochs=1,", "epochs is given twice"),
    ],
)
def test_a_script_that_is_not_plain_says_where_and_what_is_allowed(
    project: Project, old: str, new: str, what: str
) -> None:
    path, line = edited(project, old, new)
    with pytest.raises(NotPlainError) as caught:
        read_script(path)
    message = str(caught.value)
    is_whole = any(word in what for word in ("main has", "nothing starts"))  # concerns no line
    assert re.match(rf"{re.escape(str(path))}:{1 if is_whole else rf'({line}|{line - 1})'}: ", message)
    assert what in message
    assert message.endswith(f"; {PLAIN}. It can still be launched")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("batch_size=32", "batch_size=0", "batch_size=0: must be >= 1 (MLMPretrainingConfig)"),
        ("batch_size=32", "batch_sizes=32", "MLMPretrainingConfig has no such field; did you mean batch_size?"),
        ("gpus=None", "gpus=(0, 0)", "each index may appear once"),
        ("epochs=1", "epochs={1: 2}", "epochs={1: 2}: "),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_its_line(project: Project, old: str, new: str, what: str) -> None:
    path, line = edited(project, old, new)
    with pytest.raises(ScriptError) as caught:
        read_script(path)
    # What concerns several fields is reported where the call begins.
    assert str(caught.value).startswith(f"{path}:{line - 2 if 'gpus' in old else line}: ")
    assert what in str(caught.value)
    assert not isinstance(caught.value, NotPlainError)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"config = (\n", r":\d: not Python: "),
        (b"x = 1\ny = = 2\n", r":2: not Python: "),
        (b"x = '\0'\n", r":\d: not Python: .*null bytes"),
        (b"# \xff\n", r":\d: not Python: "),
        (b"# -*- coding: no-such -*-\n", r": not Python: "),
        (b"x = " + b"(" * 5000, r": (not Python|nested too deeply)"),
        (b"x = " + b"-" * 100_000 + b"1", r": (not Python|nested too deeply|.*more than a plain script)"),
        (b"#" * 5_000_000, r":1: larger than 4194304 bytes, so it is no program"),
        (b"x = " + b"9" * 5000, r": (not Python|.*more than a plain script)"),
        (b"", r":1: no config = SomeConfig"),
    ],
    ids=["open", "syntax", "nul", "utf8", "coding", "nested", "unary", "huge", "digits", "empty"],
)
def test_what_is_not_python_is_an_error_with_its_line(project: Project, data: bytes, what: str) -> None:
    path = project.scripts / "broken.py"
    path.write_bytes(data)
    with pytest.raises(ScriptError, match=what):
        read_script(path)


def test_what_is_no_file_is_an_error_at_once(project: Project) -> None:
    os.mkfifo(project.scripts / "pipe.py")
    (project.scripts / "loop.py").symlink_to("loop.py")
    files = {"none.py": "No such file", ".": "not a reg", "pipe.py": "not a reg", "loop.py": "Too many"}
    for name, why in files.items():
        with pytest.raises(ScriptError, match=f"cannot be read: {why}.*; give the path of a file"):
            read_script(project.scripts / name)


# --- writing ---


def test_writing_the_same_again_leaves_the_file_alone(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    before = path.stat()
    assert write_script(MLMPretrainingConfig(), "my_run") == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_writing_other_values_replaces_a_generated_file(project: Project) -> None:
    write_script(MLMPretrainingConfig(), "my_run")
    path = write_script(MLMPretrainingConfig(batch_size=4), "my_run")
    assert read_script(path).config.batch_size == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda text: text.replace("batch_size=32,", "batch_size=4,  # small"),
            "was edited by hand (batch_size is 4 there",
        ),
        (lambda text: f"{text}# a remark\n", "no value differs, only comments or layout"),
        (lambda _: "print('mine')\n", "was not written by nbtools"),
    ],
    ids=["a value", "a comment", "another file"],
)
def test_a_file_that_was_edited_or_is_another_one_is_replaced_only_by_overwrite(
    project: Project, change: Callable[[str], str], said: str
) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    path.write_text(text := change(path.read_text()))
    with pytest.raises(HandEditedError, match=f"{re.escape(said)}(.|\n)*overwrite=True"):
        write_script(MLMPretrainingConfig(), "my_run")
    assert path.read_text() == text
    write_script(MLMPretrainingConfig(), "my_run", overwrite=True)
    assert not read_script(path).hand_edited


def test_a_value_edited_by_hand_is_not_replaced_unseen_although_the_layout_is_ours(project: Project) -> None:
    path = write_script(MLMPretrainingConfig(), "my_run")
    path.write_text(path.read_text().replace("seed=0,", "seed=4,"))
    assert not parse_script(path).hand_edited  # looked at by us, not by the caller
    with pytest.raises(HandEditedError, match=r"with other values \(seed is 4 there, 5 here\)"):
        write_script(MLMPretrainingConfig(seed=5), "my_run")
    read_script("scripts/my_run.py")
    write_script(MLMPretrainingConfig(seed=5), "my_run")
    assert read_script(path).config.seed == 5


def test_a_link_in_scripts_never_leads_a_write_outside(project: Project, tmp_path: Path) -> None:
    target = tmp_path / "precious.py"
    target.write_text("precious\n")
    (project.scripts / "my_run.py").symlink_to(target)
    with pytest.raises(HandEditedError, match=f"is a link to {target}"):
        write_script(MLMPretrainingConfig(), "my_run")
    path = write_script(MLMPretrainingConfig(), "my_run", overwrite=True)
    assert not path.is_symlink()
    assert target.read_text() == "precious\n"


def test_a_scripts_folder_that_leads_outside_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    project.scripts.rmdir()
    project.scripts.symlink_to(tmp_path / "outside")
    with pytest.raises(ProjectError, match="outside the project"):
        write_script(MLMPretrainingConfig(), "my_run", project=project)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_folder_of_that_name_is_an_error(project: Project) -> None:
    (project.scripts / "my_run.py").mkdir()
    with pytest.raises(ScriptError, match="is a folder; choose another name"):
        write_script(MLMPretrainingConfig(), "my_run")
