"""The form without a browser: what typing, choosing and clicking do to the config, the script and the run."""

import csv
import html
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import ipywidgets
import pytest
from waiting import eventually
from widget_tree import every

import nbtools as nt
from nbtools.config import Launch, NotifyOn, Slurm, StopOn
from nbtools.data import corpus, hub
from nbtools.errors import ConfigError, HandEditedError, ScriptError
from nbtools.machine.devices import Device
from nbtools.notebook.form import field_list, summary
from nbtools.notebook.rows.field_rows import FieldRow, GPUField
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.run.records import remembered
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.field import Field, fields_of
from nbtools.user_config import config_folder, update_user_config

from slurm_cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[3]
GPUS = fields_of(Launch)["gpus"]
HOSTILE = [
    *("../../x", "$(touch pwned)", "it's \"quoted\" and '''more'''", "two\nlines", "nul\0byte"),
    *("-x", "x" * 10_000, "right\u202eto left", "<img src=x onerror=alert(1)>", " spaces around "),
]


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project that the working directory belongs to."""
    monkeypatch.chdir(project.root)
    return project


@pytest.fixture
def form(project: Project) -> nt.ConfigForm:
    """A form as notebook 01 makes it."""
    return nt.ConfigForm("mlm_pretraining", name="demo", preset="cpu_demo")


def widgets_of(form: nt.ConfigForm) -> list[Any]:
    return every(form.widget)


def control(form: nt.ConfigForm, description: str) -> Any:
    """The input or button with this text on it."""
    return next(widget for widget in widgets_of(form) if getattr(widget, "description", None) == description)


def fill(form: nt.ConfigForm, **values: Any) -> None:
    """Type or choose these values, one after the other."""
    for name, value in values.items():
        control(form, name).value = value


def labelled(form: nt.ConfigForm, name: str) -> Any:
    """The row of a field, also of one whose label is a widget of its own."""
    return next(row.widget for row in form._body.view.sections.rows if row.field.name == name)


def is_visible(form: nt.ConfigForm, wanted: Any, widget: Any = None) -> bool:
    widget = widget or form.widget
    if widget.layout.display == "none":
        return False
    return widget is wanted or any(is_visible(form, wanted, child) for child in getattr(widget, "children", ()))


def text(form: nt.ConfigForm) -> str:
    """Everything that the form says, without markup."""
    said = [w.value for w in widgets_of(form) if isinstance(w, ipywidgets.HTML) and is_visible(form, w)]
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", "\n".join(said), flags=re.DOTALL))


def mistakes(form: nt.ConfigForm) -> list[str]:
    """The links to the rows whose values are wrong."""
    return [w.description for w in widgets_of(form) if "nbtools-link" in w._dom_classes and is_visible(form, w)]


# --- values ---------------------------------------------------------------------------------------


def test_every_field_has_a_row_with_its_unit_and_help_folded_if_it_is_rare(form: nt.ConfigForm) -> None:
    assert is_visible(form, control(form, "learning_rate")) and not is_visible(form, control(form, "weight_decay"))
    control(form, "More settings").value = True
    shown = text(form)
    for cls in (MLMPretrainingConfig, Launch, StopOn, NotifyOn):
        for name in cls.model_fields:
            if name not in ("gpus", "cluster", "stop_on", "notify_on"):
                assert cls.unit(name) in shown
                assert (cls.model_fields[name].description or "(undescribed)") in shown, name


@pytest.mark.parametrize(
    ("field", "typed", "message"),
    [
        ("batch_size", "abc", "'abc' is not a whole number such as 1_000"),
        ("batch_size", "", "is empty; give a whole number"),
        ("batch_size", "0", "must be >= 1"),
        ("learning_rate", "-0.1", "must be > 0"),
        ("learning_rate", "nan", "finite"),
        ("max_steps", "9" * 5000, "is not a whole number"),
        ("hidden_size", "65", "rotary positions need hidden_size to be a multiple"),
        ("nproc_per_node", "0", "must be >= 1"),
    ],
)
def test_wrong_value_is_explained_in_its_row_and_disables_the_buttons(
    form: nt.ConfigForm, field: str, typed: str, message: str
) -> None:
    control(form, field).value = typed
    row = next(w for w in widgets_of(form) if control(form, field) in getattr(w, "children", ()))
    assert "nbtools-wrong" in row._dom_classes
    assert message in html.unescape(row.children[1].value)
    assert control(form, "Write script").disabled and control(form, "Launch").disabled
    assert "Cannot write or launch" in text(form)
    (link,) = mistakes(form)
    assert re.match(rf"{field}.*{re.escape(message)}", link)
    with pytest.raises(ConfigError, match=field):
        form.write()
    before = getattr(RECIPES["mlm_pretraining"].preset("cpu_demo")[field == "nproc_per_node"], field)
    control(form, field).value = "" if before is None else str(before)
    assert not control(form, "Write script").disabled and "Cannot" not in text(form)
    assert mistakes(form) == []


def test_all_mistakes_are_listed_at_once_in_the_order_of_the_rows(form: nt.ConfigForm) -> None:
    fill(form, weight_decay="-1", hidden_size="wide", script="1st")
    assert [link.partition(":")[0] for link in mistakes(form)] == ["script", "hidden_size", "weight_decay"]
    control(form, "hidden_size").value = "64"
    assert [link.partition(":")[0] for link in mistakes(form)] == ["script", "weight_decay"]


def test_mistake_between_two_fields_is_listed_beside_those_of_others(form: nt.ConfigForm) -> None:
    fill(form, hidden_size="65", epochs="many")
    assert [link.partition(":")[0].partition("=")[0] for link in mistakes(form)] == ["hidden_size", "epochs"]
    control(form, "num_heads").value = "none"
    assert [link.partition(":")[0] for link in mistakes(form)] == ["num_heads", "epochs"], "65 is not known to be wrong"


def test_link_of_a_mistake_unfolds_its_row_and_moves_the_cursor_there(
    form: nt.ConfigForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    decay, focused = control(form, "weight_decay"), []
    monkeypatch.setattr(ipywidgets.Text, "focus", lambda widget: focused.append(widget))
    decay.value = "-1"
    control(form, "find").value = "seed"
    assert not is_visible(form, decay)
    control(form, mistakes(form)[0]).click()
    assert is_visible(form, decay)
    assert focused == [decay]


def test_heading_of_a_folded_section_counts_what_is_changed_and_wrong_inside(form: nt.ConfigForm) -> None:
    assert control(form, "Training · 28 more")
    fill(form, weight_decay="0.5", warmup_ratio="0.2", adam_beta1="2")
    control(form, "Training · 28 more · 2 changed · 1 wrong").value = True
    assert is_visible(form, control(form, "weight_decay"))
    assert not is_visible(form, control(form, "vocab_size")), "of another section"


def test_search_shows_the_settings_with_these_words_in_name_or_help(form: nt.ConfigForm) -> None:
    find = control(form, "find")
    find.value = "Weight DECAY"
    shown = [name for name in MLMPretrainingConfig.model_fields if is_visible(form, labelled(form, name))]
    assert shown == ["ema_decay", "weight_decay"]
    find.value = "torch.compile"
    assert is_visible(form, labelled(form, "compile"))
    find.value = "nothing of that name"
    assert "no setting matches" in text(form)
    find.value = ""
    assert "no setting matches" not in text(form)
    assert is_visible(form, control(form, "learning_rate")) and not is_visible(form, labelled(form, "compile"))


@pytest.mark.parametrize("value", HOSTILE)
def test_config_comes_back_from_the_form_as_it_went_in(project: Project, value: str) -> None:
    config = MLMPretrainingConfig(dataset=value, model_name=value, learning_rate=0.1 + 0.2, max_steps=7)
    launch = Launch(nproc_per_node=3, omp_num_threads=2)
    form = nt.ConfigForm(config=config, launch=launch)
    assert form.config == config and form.launch_settings == launch


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "1st", "$(touch pwned)", "a\nb", "datasets", "json", "x" * 65])
def test_name_that_is_not_allowed_is_explained_and_writes_nothing(form: nt.ConfigForm, name: str) -> None:
    control(form, "script").value = name
    assert control(form, "Write script").disabled
    assert "Cannot write or launch" in text(form)
    assert mistakes(form)[0].startswith("script: ")
    with pytest.raises(ConfigError):
        form.write()
    assert list(Path("scripts").iterdir()) == []


def test_preset_fills_the_form_and_counts_what_is_changed_afterwards(form: nt.ConfigForm) -> None:
    control(form, "preset").value = "4gpu_standard"
    config, launch = RECIPES["mlm_pretraining"].preset("4gpu_standard")
    assert (form.config, form.launch_settings) == (config, launch)
    fill(form, batch_size="1", nproc_per_node="2")
    assert "+ 2 changes" in text(form)
    assert f"preset: {config.batch_size}" in text(form)
    control(form, "Reset").click()
    assert (form.config, form.launch_settings) == (config, launch)
    assert "change" not in text(form).partition("script")[0]


def test_preset_out_of_reach_says_so_and_can_be_written_but_not_launched(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_list, "devices", list)
    form = nt.ConfigForm("mlm_pretraining", name="demo")
    labels = [label for label, _ in control(form, "preset").options]
    assert labels[:2] == ["none", "cpu_demo"] and "4gpu_standard: needs 4 GPUs, this machine has none" in labels
    control(form, "preset").value = "4gpu_standard"
    assert "gpus: the preset needs 4 GPUs, this machine has none" in "".join(mistakes(form))
    assert control(form, "Launch").disabled
    assert "nproc_per_node=4" in form.write().read_text()
    control(form, "gpus").value = "cpu"
    assert "the preset needs" not in "".join(mistakes(form))


def test_a_drop_down_without_a_value_shows_none(project: Project) -> None:
    config = RECIPES["text_classification"].preset("cpu_demo")[0].replace(formatter=None)
    form = nt.ConfigForm("text_classification", config=config)
    assert (control(form, "preset").label, form._body._preset.name) == ("none", None)
    assert control(form, "formatter").label == "none"
    assert form.config.formatter is None  # type: ignore[attr-defined]
    control(form, "formatter").label = "generic"
    assert form.config.formatter == "generic"  # type: ignore[attr-defined]


def test_form_of_an_unknown_recipe_or_preset_says_which_there_are(project: Project) -> None:
    with pytest.raises(ConfigError, match="mlm_pretraining"):
        nt.ConfigForm("nonsense")
    with pytest.raises(ConfigError, match="cpu_demo"):
        nt.ConfigForm("mlm_pretraining", preset="nonsense")


# --- rows -----------------------------------------------------------------------------------------


def test_enumerations_and_truth_values_have_controls_that_cannot_be_wrong() -> None:
    fields = fields_of(MLMPretrainingConfig)
    precision, deterministic = FieldRow(fields["precision"], print), FieldRow(fields["deterministic"], print)
    precision.value, deterministic.value = "bf16", True
    assert (precision.value, deterministic.value) == ("bf16", True)
    assert isinstance(precision._input, ipywidgets.Dropdown)
    assert isinstance(deterministic._input, ipywidgets.Checkbox)


def test_a_row_shows_the_record_of_its_field_whatever_declares_it() -> None:
    help = "Token of the hub."
    secret = FieldRow(Field("token", (str, NoneType), None, help=help, source="train.py:41", is_secret=True), print)
    assert isinstance(secret._input, ipywidgets.Password)
    assert secret._input.tooltip == "token: Token of the hub. (train.py:41)"
    user = FieldRow(Field("user", default_text='os.environ["USER"]', is_required=True), print)
    assert user._input.placeholder == 'os.environ["USER"]'
    with pytest.raises(ValueError, match="is required"):
        _ = user.value
    betas = FieldRow(Field("betas", (tuple[float, ...],), (0.9, 0.95)), print)
    betas.value = (0.9, 0.95)
    assert betas._input.value == "0.9, 0.95"
    betas._input.value = "0.8, 0.9"
    assert betas.value == (0.8, 0.9)


@pytest.mark.parametrize(("chosen", "value"), [("none", None), ("True", True), ("False", False)])
def test_a_truth_value_that_may_be_none_has_three_choices(chosen: str, value: bool | None) -> None:
    field = FieldRow(Field("fp16", (bool, NoneType)), print)
    field._input.label = chosen
    assert field.value is value


def test_a_value_that_is_no_choice_is_shown_until_another_is_chosen() -> None:
    field = FieldRow(Field("column", (), "text", choices=("text", "label")), print)
    field.value = "body"
    assert (field.value, field._input.label) == ("body", "body")
    field._input.value = "label"
    assert field.value == "label"


# --- devices --------------------------------------------------------------------------------------


def test_gpus_are_ticked_by_name() -> None:
    field = GPUField(GPUS, [(0, "GPU 0: A"), (2, "GPU 2: B")], print)
    mode, choice = field._mode, field._choice
    assert [label for label, _ in mode.options] == ["CPU only", "first GPUs, or the CPU", "the GPUs ticked below"]
    mode.value = "cpu"
    assert field.value == ()
    mode.value = "auto"
    assert field.value is None
    mode.value = "chosen"
    with pytest.raises(ValueError, match="tick at least one GPU"):
        _ = field.value
    choice.children[1].value = True
    assert field.value == (2,)
    choice.children[0].value = True
    assert field.value == (0, 2)


@pytest.mark.parametrize("gpus", [[], [(0, "GPU 0: A"), (1, "GPU 1: B")]])
def test_the_order_of_a_scripts_gpus_is_kept(gpus: list[tuple[int, str]]) -> None:
    field = GPUField(GPUS, gpus, print)
    for given in ((1, 0), (0, 1), (1, 0)):
        field.value = given
        assert field.value == given, "rank 0 is on the first"


def test_machine_without_gpus_offers_none_but_keeps_what_a_script_names() -> None:
    field = GPUField(GPUS, [], print)
    assert [value for _, value in field._mode.options] == ["cpu", "auto"]
    field.value = (0, 3)
    assert field.value == (0, 3)
    assert "GPU 3: not on this machine" in [box.description for box in field._choice.children]


def test_absent_gpu_forbids_the_launch_but_not_the_script(project: Project) -> None:
    form = nt.ConfigForm(name="demo", preset="cpu_demo", launch=Launch(nproc_per_node=1, gpus=(97,)))
    assert control(form, "Launch").disabled and not control(form, "Write script").disabled
    assert "there is no GPU 97" in text(form) or "CPU build" in text(form)
    assert "gpus=(97,)" in form.write().read_text()


# --- Slurm ----------------------------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, without any command; a form looks for Slurm's there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_rows_of_slurm_are_shown_with_slurm_only(form: nt.ConfigForm) -> None:
    control(form, "More settings").value = True
    assert is_visible(form, control(form, "gpus"))
    assert not any(is_visible(form, control(form, name)) for name in Slurm.model_fields if name != "requeue")
    control(form, "where").value = "Slurm"
    assert not is_visible(form, control(form, "gpus"))
    for name in Slurm.model_fields:
        assert (Slurm.model_fields[name].description or "(undescribed)") in text(form), name
    control(form, "Fewer settings").value = False
    assert is_visible(form, control(form, "nnodes")) and not is_visible(form, control(form, "qos"))
    control(form, "where").value = "this machine"
    assert is_visible(form, control(form, "gpus"))
    assert form.launch_settings.cluster is None


def test_values_of_slurm_are_read_from_their_rows(form: nt.ConfigForm) -> None:
    control(form, "where").value = "Slurm"
    values: dict[str, Any] = {"partition": "gpu", "time_limit": "8:00:00", "gpus_per_node": "a100:4"}
    values["preamble"] = "module load cuda\nexport A=1"
    fill(form, **values, nnodes="2", cpus_per_task="16")
    assert form.launch_settings.nnodes == 2
    assert form.launch_settings.cluster == Slurm(**values, cpus_per_task=16)
    control(form, "gpus_per_node").value = "2"
    assert getattr(form.launch_settings.cluster, "gpus_per_node", None) == 2


@pytest.mark.parametrize(
    ("field", "typed", "message"),
    [
        ("time_limit", "tomorrow", "must be minutes (30)"),
        ("nproc_per_node", "gpu", "know the GPUs of a node; give gpus_per_node"),
        ("nproc_per_node", "4", "at most one process per GPU"),
    ],
)
def test_wrong_value_of_slurm_is_explained_in_its_row(
    form: nt.ConfigForm, field: str, typed: str, message: str
) -> None:
    fill(form, where="Slurm", gpus_per_node="" if typed == "gpu" else "2")
    control(form, field).value = typed
    row = next(w for w in widgets_of(form) if control(form, field) in getattr(w, "children", ()))
    assert message in html.unescape(row.children[1].value)
    assert control(form, "Write script").disabled
    control(form, "where").value = "this machine"  # where its rows do not count
    control(form, "nproc_per_node").value = "2"
    assert not control(form, "Write script").disabled


def test_choice_of_slurm_keeps_the_cpu_as_no_gpus_and_a_preset_changes_that(form: nt.ConfigForm) -> None:
    control(form, "where").value = "Slurm"
    assert (control(form, "gpus_per_node").value, form.launch_settings.gpus) == ("0", None)
    fill(form, partition="gpu", preset="4gpu_standard")
    cluster = form.launch_settings.cluster
    assert cluster is not None and (cluster.partition, cluster.gpus_per_node) == ("gpu", None)
    assert "change" not in text(form).partition("script")[0]


def test_first_choice_of_slurm_fills_in_the_sites_defaults(
    form: nt.ConfigForm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path))
    (tmp_path / "slurm.toml").write_text('partition = "gpu"\naccount = "lab"\n')
    control(form, "where").value = "Slurm"
    assert form.launch_settings.cluster == Slurm(partition="gpu", account="lab", gpus_per_node=0)
    fill(form, partition="other", where="this machine")
    control(form, "where").value = "Slurm"  # not again
    assert getattr(form.launch_settings.cluster, "partition", None) == "other"


def test_script_with_slurm_comes_back_from_the_form_with_the_same_bytes(project: Project) -> None:
    cluster = Slurm(partition="gpu", gpus_per_node="2", preamble="module load cuda\n", requeue=False)
    path = nt.write_script(
        MLMPretrainingConfig(max_steps=7), "demo", Launch(nproc_per_node=2, nnodes=2, cluster=cluster)
    )
    before = path.read_bytes()
    form = nt.ConfigForm(name="demo")
    control(form, "Load from script").click()
    assert form.launch_settings.cluster == cluster
    assert "was 'this machine'" in text(form) and "has these values" in text(form)
    form.write(overwrite=True)
    assert path.read_bytes() == before


def test_without_slurms_commands_a_script_can_be_written_but_not_launched(form: nt.ConfigForm, commands: Path) -> None:
    control(form, "where").value = "Slurm"
    assert "sbatch is not on the path" in text(form)
    assert control(form, "Launch").disabled
    assert "cluster=Slurm(" in form.write().read_text()
    for name in ("sbatch", "squeue"):
        (commands / name).write_text("#!/bin/false\n")
        (commands / name).chmod(0o755)
    control(form, "partition").value = "gpu"
    assert "sbatch is not on the path" not in text(form)


@pytest.mark.needs("slurm")
def test_sbatch_tells_the_expected_start_or_refuses_a_field_in_its_row(
    form: nt.ConfigForm, slurm_cluster: SlurmCluster
) -> None:
    control(form, "where").value = "Slurm"
    eventually(lambda: "to start at" in text(form) and not control(form, "Launch").disabled)
    control(form, "partition").value = "absent"
    eventually(lambda: re.search("partition=absent: .*invalid partition", "".join(mistakes(form))) is not None)
    eventually(lambda: control(form, "Launch").disabled)
    assert "Cannot launch" in text(form)
    assert not control(form, "Write script").disabled


# --- the choice of a recipe or a program ----------------------------------------------------------


TRAIN = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
if __name__ == "__main__":
    print("learning rate", parser.parse_args().lr)
"""


def card(form: nt.ConfigForm, title: str) -> Any:
    return next(w for w in widgets_of(form) if "nbtools-choose" in w._dom_classes and w.description == title)


def chosen_cards(form: nt.ConfigForm) -> list[str]:
    return [w.children[0].description for w in widgets_of(form) if "nbtools-chosen" in w._dom_classes]


def test_new_offers_every_recipe_and_programs_and_has_no_values_yet(project: Project) -> None:
    form = nt.new()
    cards = [w.description for w in widgets_of(form) if "nbtools-choose" in w._dom_classes]
    assert cards == [*(r.title for r in RECIPES.values()), "A program of yours"]
    assert form.run is None
    with pytest.raises(ConfigError, match="click on a card, or name one of mlm_pretraining"):
        _ = form.config


def test_card_shows_its_form_in_place_and_another_keeps_what_was_typed(project: Project) -> None:
    form = nt.new()
    card(form, "Text classification").click()
    assert type(form.config).__name__ == "TextClassificationConfig"
    control(form, "seed").value = "7"
    card(form, "Masked diffusion").click()
    assert (type(form.config).__name__, form.name) == ("MaskedDiffusionConfig", "masked_diffusion")
    card(form, "Text classification").click()
    assert form.config.seed == 7
    assert chosen_cards(form) == ["Text classification"]


def test_form_without_a_recipe_offers_all_and_begins_with_the_first(project: Project) -> None:
    config, launch = RECIPES["mlm_pretraining"].preset("cpu_demo")
    assert nt.ConfigForm().name == "mlm_pretraining"
    form = nt.ConfigForm(name="demo")
    assert (form.config, form.launch_settings) == (config, launch)
    assert not control(form, "Write script").disabled and not control(form, "Launch").disabled
    assert chosen_cards(form) == ["Masked language modelling"]
    card(form, "Text classification").click()
    assert form.write() == project.script("demo")
    assert nt.read_script(project.script("demo")).recipe == "text_classification"
    named = nt.ConfigForm("text_classification")
    assert not any("nbtools-card" in w._dom_classes for w in widgets_of(named))


def test_program_is_listed_chosen_and_written_as_a_launcher_script(project: Project) -> None:
    (project.root / "train.py").write_text(TRAIN)
    (project.root / "model.py").write_text("class Model: ...\n")
    nt.write_script(MLMPretrainingConfig(), "demo", project=project)
    form = nt.new()
    card(form, "A program of yours").click()
    assert [name for _, name in control(form, "file").options] == ["", "train.py"]
    assert control(form, "Launch").disabled
    assert "give script, the path of a file" in "".join(mistakes(form))
    control(form, "file").value = "train.py"
    assert form.name == "run_train"
    fill(form, args="--lr 0.5 'two words'", name="mine")
    assert (form.program.script, form.program.args) == ("train.py", ("--lr", "0.5", "two words"))
    assert not control(form, "Launch").disabled
    assert "train.py --lr 0.5 'two words'" in text(form)
    control(form, "Write script").click()
    script = nt.read_script(project.script("mine"))
    assert (script.program, script.launch) == (form.program, form.launch_settings)
    with pytest.raises(ConfigError, match="has no config"):
        _ = form.config


def test_form_offers_a_guess_of_the_resume_and_of_the_checkpoints_of_an_earlier_run(project: Project) -> None:
    (project.root / "train.py").write_text(TRAIN.replace('"--lr"', '"--resume-from"').replace("type=float, ", ""))
    (project.root / "out").mkdir()
    run = project.runs / "2026-01-31_142233_a"
    run.mkdir(parents=True)
    program, begun = {"script": "train.py", "module": None}, time.time() - 5
    recorded = {"time": begun, "cwd": str(project.root), "args": [], "program": program, "target": ["train.py"]}
    write_json(RunDir(run).launch, recorded)
    write_json(RunDir(run).exit, {"time": time.time() + 5, "returncode": 0})
    RunDir(run).log.touch()
    (project.root / "out/epoch_3.pt").write_text("x")
    form = nt.ConfigForm(config=nt.Program(script="other.py"))
    labelled(form, "script").children[0].value = "train.py"
    eventually(lambda: form.program.resume == ("--resume-from", "{checkpoint}"))
    assert form.program.checkpoints == "out/epoch_*.pt"
    assert "guessed by the name of an argument" in labelled(form, "resume").children[1].value
    labelled(form, "resume").children[0].value = ""
    assert form.program.resume == (), "what the user clears stays empty"
    root, script = str(project.root), str(project.root / "train.py")
    update_user_config("checkpoints", lambda known: known.update({root: {script: {"resume": ["-r", "{checkpoint}"]}}}))
    os.utime(config_folder() / "checkpoints.json", (begun, begun))
    other = nt.ConfigForm(config=nt.Program(script="train.py"))
    eventually(lambda: other.program.resume == ("-r", "{checkpoint}"))
    assert other.program.checkpoints == "out/epoch_*.pt"
    assert "checkpoints" not in remembered(root, script), "a guess is not what the user has said"


def test_program_that_is_missing_or_not_python_holds_the_launch_back(project: Project) -> None:
    (project.root / "train.py").write_text("def broken(:\n")
    form = nt.ConfigForm(config=nt.Program(script="train.py"))
    assert control(form, "Launch").disabled
    assert re.search(r"script: .*train\.py:1: not Python", "".join(mistakes(form)))
    labelled(form, "script").children[0].value = "absent.py"
    assert "absent.py" in "".join(mistakes(form))
    with pytest.raises(ConfigError, match="form is for a recipe"):
        _ = nt.ConfigForm("mlm_pretraining").program


def test_launcher_script_comes_back_from_the_form_with_the_same_bytes(project: Project) -> None:
    (project.root / "train.py").write_text(TRAIN)
    program = nt.Program(script="train.py", args=("--lr", "0.5"), resume=("--resume", "{checkpoint}"))
    path = nt.write_script(program, "mine", Launch(nproc_per_node=2, torchrun=False), project=project)
    before = path.read_bytes()
    form = nt.ConfigForm(config=nt.Program(script="other.py"), name="mine")
    form.load()
    assert (form.program, form.launch_settings.torchrun) == (program, False)
    form.write(overwrite=True)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match=r"launches a program; use nt\.ConfigForm\(\)"):
        nt.ConfigForm("mlm_pretraining", name="mine").load()


# --- data -----------------------------------------------------------------------------------------


SPAM = "label,message,,\n" + "".join(
    f"{'spam' if number % 3 else 'ham'},<b>message</b> number {number} of them,,\n" for number in range(300)
)


@pytest.fixture
def classifier(project: Project) -> nt.ConfigForm:
    """A form in a project with a table that someone wrote."""
    (project.root / "data").mkdir()
    (project.root / "data" / "spam.csv").write_text(SPAM)
    (project.root / "other.csv").write_text("body,kind\n" + "some words,a\nother words,b\n" * 40)
    return nt.ConfigForm("text_classification", name="demo")


def listed(form: nt.ConfigForm) -> list[str]:
    return [name for _, name in control(form, "file").options]


def test_files_of_the_project_are_listed_behind_the_recipes_own_data(classifier: nt.ConfigForm) -> None:
    assert listed(classifier) == ["", "other.csv", "data/spam.csv"]
    assert control(classifier, "file").label == "occupations generated by nbtools"
    assert not any(
        w.description == "file" for w in widgets_of(nt.ConfigForm("algorithm_distillation")) if "description" in w.keys
    )


def test_choice_of_a_file_fills_in_dataset_and_columns_and_counts(classifier: nt.ConfigForm) -> None:
    assert not is_visible(classifier, control(classifier, "text_col"))
    control(classifier, "file").value = "data/spam.csv"
    eventually(lambda: getattr(classifier.config, "text_col", None) == "message")
    config: Any = classifier.config
    assert (config.dataset, config.target_cols, config.spelling) == ("data/spam.csv", ("label",), "generic")
    assert control(classifier, "text_col").options == (("label", "label"), ("message", "message"))
    assert is_visible(classifier, control(classifier, "text_col"))
    eventually(lambda: re.search(r"[0-9]\s+training samples", text(classifier)))
    assert not control(classifier, "Launch").disabled
    assert "&lt;b&gt;message&lt;/b&gt; number 4 of them" in classifier._body.view.data._preview.value
    assert "number 5 of them" not in classifier._body.view.data._preview.value


def test_another_file_brings_its_own_columns_and_none_restores_the_recipes_data(classifier: nt.ConfigForm) -> None:
    for name, columns in (("data/spam.csv", ("message", ("label",))), ("other.csv", ("body", ("kind",)))):
        control(classifier, "file").value = name
        eventually(lambda columns=columns: (classifier.config.text_col, classifier.config.target_cols) == columns)
    control(classifier, "file").value = ""
    assert classifier.config == RECIPES["text_classification"].preset("cpu_demo")[0]
    assert not is_visible(classifier, control(classifier, "text_col"))


def test_preset_that_names_no_data_keeps_the_chosen_file_and_reset_does_not(classifier: nt.ConfigForm) -> None:
    control(classifier, "file").value = "other.csv"
    eventually(lambda: classifier.config.text_col == "body")
    control(classifier, "preset").value = "mixer_1gpu"
    config: Any = classifier.config
    assert (config.dataset, config.text_col, config.model_name) == ("other.csv", "body", "google/canine-s")
    control(classifier, "Reset").click()
    assert classifier.config.dataset is None
    assert control(classifier, "file").value == ""


def test_typed_dataset_is_listed_and_its_columns_are_offered_but_not_guessed(classifier: nt.ConfigForm) -> None:
    control(classifier, "dataset").value = "other.csv"
    eventually(lambda: is_visible(classifier, control(classifier, "text_col")))
    assert control(classifier, "file").value == "other.csv"
    assert classifier.config.text_col == "occ1"
    assert control(classifier, "text_col").options[-1] == ("occ1", "occ1")
    control(classifier, "dataset").value = "hf/owner/name"
    assert control(classifier, "file").value == "hf/owner/name"
    control(classifier, "text_col").value = "any"
    assert classifier.config.text_col == "any"


@pytest.mark.parametrize("typed", [*HOSTILE, "other.csv,column=a,column=b", "hf/a b"])
def test_no_typed_dataset_stops_the_form(classifier: nt.ConfigForm, typed: str) -> None:
    control(classifier, "dataset").value = typed
    control(classifier, "seed").value = "-1"
    assert "seed: must be >= 0" in mistakes(classifier)
    control(classifier, "dataset").value = ""
    control(classifier, "seed").value = "1"
    assert classifier.config.seed == 1


def test_several_columns_can_be_chosen(classifier: nt.ConfigForm) -> None:
    control(classifier, "file").value = "data/spam.csv"
    eventually(lambda: classifier.config.text_col == "message")
    control(classifier, "target_cols").value = ("label", "message")
    assert classifier.config.target_cols == ("label", "message")
    control(classifier, "target_cols").value = ()
    assert classifier.config.target_cols is None


def test_column_of_a_text_recipe_is_written_behind_its_dataset(form: nt.ConfigForm, project: Project) -> None:
    (project.root / "texts.csv").write_text("id,body,title\n" + "1,some longer words for the model,a title\n" * 9)
    control(form, "Look again").click()
    control(form, "file").value = "texts.csv"
    eventually(lambda: form.config.dataset == "texts.csv,column=body")
    control(form, "column").value = "title"
    assert form.config.dataset == "texts.csv,column=title"
    control(form, "column").label = "none"
    assert form.config.dataset == "texts.csv"
    control(form, "dataset").value = "texts.csv,column=id"
    assert control(form, "column").value == "id"
    control(form, "file").value = ""
    assert form.config.dataset is None
    assert not is_visible(form, control(form, "column"))


@pytest.mark.parametrize("column", ["review, text", "a=b", '"said", he', "plain"])
def test_file_and_column_may_be_called_like_an_option(form: nt.ConfigForm, project: Project, column: str) -> None:
    name = "rows,column=y.csv"
    with (project.root / name).open("w", newline="") as file:
        csv.writer(file).writerows([["id", column], *[["1", "some longer words for the model"]] * 9])
    control(form, "Look again").click()
    control(form, "file").value = name
    eventually(lambda: control(form, "column").value == column)
    assert hub.split_options(str(form.config.dataset)) == (name, {"column": column})
    assert len(list(corpus.documents(form.config.dataset, root=project.root))) == 9
    control(form, "column").label = "none"
    assert hub.split_options(str(form.config.dataset)) == (name, {})


def test_file_chosen_while_a_thread_shows_other_rows_is_kept(
    form: nt.ConfigForm, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "rows.csv").write_text("id,body\n" + "1,some longer words for the model\n" * 9)
    control(form, "Look again").click()
    picker = form._body.view.data
    assert picker is not None
    showing, chosen = threading.Event(), threading.Event()
    offer = picker.row.offer

    def slow_offer(choices: tuple[Any, ...] | None) -> None:
        showing.set()
        chosen.wait(0.5)
        offer(choices)

    monkeypatch.setattr(picker.row, "offer", slow_offer)
    thread = threading.Thread(target=form._body._refresh)
    thread.start()
    assert showing.wait(10)
    control(form, "file").value = "rows.csv"
    chosen.set()
    thread.join()
    eventually(lambda: control(form, "column").value == "body")
    assert form.config.dataset == "rows.csv,column=body"


def test_file_that_cannot_be_read_says_so_and_holds_the_launch_back(
    classifier: nt.ConfigForm, project: Project
) -> None:
    (project.root / "other.csv").write_bytes("body,kind\ncaf\xe9,a\n".encode("latin-1"))
    control(classifier, "file").value = "other.csv"
    eventually(lambda: "iconv -f latin1" in "".join(mistakes(classifier)))
    assert control(classifier, "Launch").disabled


def test_path_is_not_read_while_it_is_typed(form: nt.ConfigForm) -> None:
    assert control(form, "dataset").continuous_update is False
    assert control(form, "batch_size").continuous_update is True


# --- what the values come to ----------------------------------------------------------------------


def test_summary_multiplies_the_batch_and_names_the_commands(form: nt.ConfigForm) -> None:
    fill(form, batch_size="8", gradient_accumulation_steps="3")
    shown = text(form)
    assert re.search(r"48\s+effective batch", shown)
    assert "8 × 3 accumulated × 2 processes" in shown and "nbtools launch scripts/demo.py" in shown
    assert "torch.distributed.run --nnodes=1 --nproc-per-node=2" in shown and "CUDA_VISIBLE_DEVICES=''" in shown


def test_summary_counts_the_data_like_the_schedule(form: nt.ConfigForm) -> None:
    from nbtools.launcher.checks.sizes import num_trainable_parameters
    from nbtools.launcher.checks.step_count import schedule

    plan = schedule(form.config, 2)
    assert plan is not None
    eventually(lambda: f"{plan.num_train_samples:,}" in text(form))
    shown = text(form)
    assert re.search(rf"{plan.total_steps:,}\s+optimizer steps\s+{plan.steps_per_epoch:,} per epoch", shown)
    assert f"{num_trainable_parameters(form.config):,}" in shown


def test_summary_tells_the_memory_of_strategies_and_adapters_and_what_fits(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, launch = RECIPES["masked_diffusion"].preset("shakespeare_2gpu")
    figures = "ddp 137.9 GiB, fsdp 70.6 GiB, ddp with LoRA 20.1 GiB, fsdp with LoRA 13.3 GiB"
    tiles = summary.Summary(project.root, lambda: None)
    small = Device(0, "GPU-0", "a GPU", 24 * 2**30, 0, (), "0", (9, 0))
    fits = "; a GPU has 24.0 GiB: set adapter=&#x27;lora&#x27;, with which a process takes about 13.3 GiB"
    for found, expected in (([], figures), ([small, replace(small, index=1)], figures + fits)):
        monkeypatch.setattr(summary, "devices", lambda found=found: found)
        tiles.show(config, launch.replace(nproc_per_node=2), [])
        assert f"bf16; about per process: {expected}&nbsp;" in tiles.widget.value
        assert "<b>about 8,015,581,184</b>" in tiles.widget.value


def test_summary_counts_again_after_an_error_that_is_not_one_of_the_data(
    form: nt.ConfigForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room for the table")

    with monkeypatch.context() as patch:
        patch.setattr(summary, "schedule", fail)
        control(form, "batch_size").value = "8"
        eventually(lambda: "MemoryError: no room for the table" in text(form))
    control(form, "batch_size").value = "4"
    eventually(lambda: re.search(r"[0-9]\s+optimizer steps", text(form)))


def test_summary_says_what_only_the_training_will_know(form: nt.ConfigForm) -> None:
    control(form, "model_name").value = "some/model"
    eventually(lambda: "known after the training has read the data" in text(form))
    assert "known after the model is loaded" in text(form)
    assert "at most 2,000 held-out samples; the lowest eval/loss chooses the best checkpoint" in text(form)


def test_slow_count_does_not_hold_up_the_typing(form: nt.ConfigForm, project: Project) -> None:
    words = " ".join(f"word{number}" for number in range(1000)) + "\n\n"
    (project.root / "text.txt").write_text(words * 4000)
    control(form, "dataset").value = "text.txt"
    assert re.search(r"…\s+training samples\s+counting", text(form))
    control(form, "batch_size").value = "4"
    assert re.search(r"8\s+effective batch", text(form))
    eventually(lambda: "counting" not in text(form))
    assert "per epoch" in text(form)


def test_missing_dataset_is_marked_and_forbids_the_launch_only(classifier: nt.ConfigForm) -> None:
    control(classifier, "dataset").value = "othr.csv"
    eventually(lambda: control(classifier, "Launch").disabled and mistakes(classifier) != [])
    assert re.fullmatch(
        r"dataset '.*/othr.csv': no such file or folder; give a table \(.*\) or a folder of tables; "
        r"did you mean other\.csv\?",
        mistakes(classifier)[0],
    )
    assert not control(classifier, "Write script").disabled
    control(classifier, "dataset").value = "other.csv"
    eventually(lambda: "no such file" not in "".join(mistakes(classifier)))


def test_columns_that_are_read_where_none_is_named_are_marked(classifier: nt.ConfigForm, project: Project) -> None:
    (project.root / "jobs.csv").write_text("occ1,code,lang\n" + "some words,12,en\nother words,13,en\n" * 40)
    control(classifier, "dataset").value = "jobs.csv"
    eventually(lambda: is_visible(classifier, control(classifier, "text_col")))
    assert classifier.config.target_cols is None
    heads = re.findall(r"<th class=nbtools-named>(\w+)<small>(\w+)</small>", classifier._body.view.data._preview.value)
    assert heads == [("occ1", "text_col"), ("code", "target_cols"), ("lang", "lang_col")]


@pytest.mark.slow
def test_trial_says_what_a_step_costs_until_a_value_changes(form: nt.ConfigForm) -> None:
    control(form, "Try a few steps").click()
    assert control(form, "Cancel the trial")
    eventually(lambda: "samples/s" in text(form))
    assert re.search(r"duration\s+about 0:0", text(form))
    control(form, "batch_size").value = "8"
    assert "samples/s" not in text(form)
    control(form, "batch_size").value = "many"
    assert control(form, "Try a few steps").disabled


@pytest.mark.slow
def test_second_click_cancels_the_trial(form: nt.ConfigForm) -> None:
    control(form, "Try a few steps").click()
    control(form, "Cancel the trial").click()
    eventually(lambda: "the trial was cancelled" in text(form))
    assert not control(form, "Try a few steps").disabled


# --- the script -----------------------------------------------------------------------------------


def test_write_button_writes_and_says_where(form: nt.ConfigForm, project: Project) -> None:
    assert "scripts/demo.py is not written yet" in text(form)
    control(form, "Write script").click()
    assert nt.read_script(project.script("demo")).config == form.config
    assert f"Wrote {project.script('demo')}" in text(form)
    assert "scripts/demo.py has these values" in text(form)
    control(form, "batch_size").value = "5"
    assert "scripts/demo.py: batch_size is 16 in the script, 5 in the form" in text(form)


def edited_by_hand(project: Project, form: nt.ConfigForm) -> Path:
    path = form.write()
    path.write_text(path.read_text().replace("warmup_ratio=0.1,", "warmup_ratio=0.3,  # mine:"))
    return path


def test_script_edited_by_hand_is_not_overwritten_without_being_asked(form: nt.ConfigForm, project: Project) -> None:
    path = edited_by_hand(project, form)
    before = path.read_bytes()
    with pytest.raises(HandEditedError, match=r"warmup_ratio is 0\.3 in the script, 0\.1 in the form"):
        form.write()
    control(form, "Write script").click()
    assert "warmup_ratio is 0.3 in the script, 0.1 in the form" in text(form)
    control(form, "Keep").click()
    assert path.read_bytes() == before
    assert not is_visible(form, control(form, "Overwrite"))
    control(form, "Write script").click()
    assert is_visible(form, control(form, "Overwrite"))
    control(form, "batch_size").value = "4"
    assert not is_visible(form, control(form, "Overwrite")), "an edit closes the question"
    control(form, "Write script").click()
    control(form, "Overwrite").click()
    script = nt.read_script(path)
    assert not script.hand_edited and script.config == form.config


def test_a_script_of_this_name_with_another_value_is_asked_about(form: nt.ConfigForm, project: Project) -> None:
    """Its layout is ours, but the value may be that of an earlier session, of another experiment, or of an editor."""
    path = nt.write_script(form.config.replace(seed=9), "demo", form.launch_settings, project=project)
    before = path.read_bytes()
    assert not nt.read_script(path).hand_edited
    for act in (form.write, form.launch):
        with pytest.raises(
            HandEditedError, match=r"\(seed is 9 in the script, 0 in the form\); form\.write\(overwrite=True\) replaces"
        ):
            act()
    control(form, "Write script").click()
    assert is_visible(form, control(form, "Overwrite"))
    assert "seed is 9 in the script, 0 in the form" in text(form)
    assert path.read_bytes() == before
    control(form, "Overwrite").click()
    assert nt.read_script(path).config == form.config
    path.write_text(path.read_text().replace("seed=0,", "seed=1,"))
    with pytest.raises(HandEditedError, match="seed is 1 in the script, 0 in the form"):
        form.write()


def test_a_script_with_the_values_that_the_form_started_with_follows_the_form(project: Project) -> None:
    """Run All on a fresh clone, where the script of notebook 01 is checked in; then a value is changed in the form."""
    path = project.script("mlm_pretraining")
    path.write_bytes((ROOT / "scripts" / "mlm_pretraining.py").read_bytes())
    form = nt.ConfigForm("mlm_pretraining", preset="cpu_demo")
    before = path.stat()
    assert form.write() == path
    assert path.stat() == before
    form = nt.ConfigForm("mlm_pretraining", preset="cpu_demo")
    control(form, "seed").value = "5"
    control(form, "Write script").click()
    assert nt.read_script(path).config.seed == 5


def test_a_link_is_not_replaced_without_being_asked(form: nt.ConfigForm, project: Project) -> None:
    path = form.write()
    target = path.rename(project.root / "mine.py")
    path.symlink_to(target)
    control(form, "seed").value = "1"
    with pytest.raises(
        HandEditedError, match=rf"link to {re.escape(str(target))}; seed is 0 in the script, 1 in the form"
    ):
        form.write()
    form.write(overwrite=True)
    assert not path.is_symlink()
    assert "seed=0," in target.read_text()


def test_loading_takes_the_values_over_and_marks_what_changed(form: nt.ConfigForm, project: Project) -> None:
    edited_by_hand(project, form)
    control(form, "Write script").click()
    control(form, "Load from script").click()
    assert form.config.warmup_ratio == 0.3
    control(form, "More settings").value = True
    assert "was 0.1" in text(form) and "edited by hand: 1 field changed" in text(form)
    assert form.write().read_text().count("mine") == 1  # the same values: the comment stays


def test_computed_value_is_reported_with_file_and_line(form: nt.ConfigForm, project: Project) -> None:
    path = form.write()
    path.write_text(path.read_text().replace("batch_size=16,", "batch_size=4 * 4,"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "4 * 4" in text)
    with pytest.raises(ScriptError, match=rf"demo\.py:{line}"):
        form.load()
    control(form, "Load from script").click()
    assert f"demo.py:{line}" in text(form)
    assert form.config.batch_size == 16
    with pytest.raises(HandEditedError):
        form.write()


def test_what_a_click_raises_is_shown_and_goes_nowhere_else(
    form: nt.ConfigForm, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.scripts.rmdir()
    project.scripts.write_text("not a folder")
    control(form, "Write script").click()
    assert str(project.scripts) in text(form)
    assert capsys.readouterr().err == ""


# --- launching ------------------------------------------------------------------------------------


@pytest.fixture
def launched(project: Project) -> Iterator[list[nt.ConfigForm]]:
    """Forms whose panels are closed, and whose runs are stopped at the end."""
    forms: list[nt.ConfigForm] = []
    yield forms
    for form in forms:
        if form._body is not None:
            form._body.panel.close()
    for run in nt.runs():
        run.stop(timeout_s=20)


@pytest.mark.slow
def test_a_launch_of_an_active_script_is_that_run_and_of_other_values_another(
    form: nt.ConfigForm, launched: list[nt.ConfigForm]
) -> None:
    launched.append(form)
    form._body.bar.launch.click()
    (first,) = nt.runs()
    assert f"Launched {first.id}." in text(form) and "already started" not in text(form)
    form._body.bar.launch.click()
    assert f"{first.id} was already started, so there is no second run. Watch" in text(form)
    assert "Launched" not in text(form) and [run.id for run in nt.runs()] == [first.id]
    # Run All after a click, also after a restart: another form, the same script.
    assert nt.ConfigForm("mlm_pretraining", name="demo", preset="cpu_demo").launch().id == first.id
    control(form, "seed").value = "1"
    second = form.launch()
    assert second.id != first.id
    assert nt.read_script(second.files.script).config.seed == 1
    second.stop(timeout_s=20)
    assert form.launch().id not in (first.id, second.id)
    assert len(nt.runs()) == 3


@pytest.mark.promise("safety-older-script")
def test_a_script_of_an_older_nbtools_is_named_in_the_form_and_spelled_out_when_written(
    form: nt.ConfigForm, project: Project
) -> None:
    path = form.write()
    path.write_text(path.read_text().replace("    dropout=0.0,\n", ""))
    again = nt.ConfigForm("mlm_pretraining", name="demo", preset="cpu_demo")
    assert "scripts/demo.py has these values; it does not name dropout" in text(again)
    again.load()
    assert "It does not name dropout: defaults." in text(again)
    again.write()
    assert "    dropout=0.0,\n" in path.read_text()
    path.write_text(path.read_text().replace("    dropout=0.0,\n", "") + "# mine\n")
    again.write()
    assert path.read_text().endswith("# mine\n")
