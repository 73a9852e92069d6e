"""The playground: inputs answered by a real process, settings, words for errors."""

import html
import json
from collections.abc import Callable
from typing import Any

import pytest

import nbtools as nt
from nbtools.errors import CheckpointError, ConfigError
from nbtools.notebook.playground.answers import answers_html
from nbtools.notebook.playground.playground import Playground
from nbtools.project import Project
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.run.run import Run

from trainings import TINY, train_here, write_inputs


@pytest.fixture
def run(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Run:
    write_inputs("masked_diffusion", cpu_project)
    config = MaskedDiffusionConfig(**{**TINY["masked_diffusion"], "temperature": 0.4})
    return Run(train_here(cpu_project, config, monkeypatch=monkeypatch))


@pytest.fixture
def playground(run: Run, kept: Callable[[Playground], Playground]) -> Playground:
    return kept(nt.Playground(run, "w1 <b>", sample_steps=4))


def setting(playground: Playground, name: str) -> Any:
    return next(line for line in playground._settings.rows if line.field.name == name)


def published(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr("nbtools.notebook.widgets._publish", lambda data, *_, **__: outputs.append(data))
    playground._ipython_display_()
    return outputs


@pytest.mark.promise("playground")
@pytest.mark.slow
def test_given_inputs_are_answered_and_stored(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    static, view = published(playground, monkeypatch)
    assert "w1 &lt;b&gt;" in static["text/html"]
    assert html.escape(playground.results[0]["text"]) in static["text/html"]
    assert "Unmasking, step by step" in static["text/html"]
    assert len(playground.results[0]["frames"]) == 5
    assert list(view) == ["application/vnd.jupyter.widget-view+json"]
    first, process = list(playground.results), playground._model.process
    assert process is not None
    assert playground.answer() == first
    assert playground._model.process is process  # loaded once
    playground._model.checkpoint.value = "step-000003"
    playground._input.value = "w1\n\nw2 w3\n\n" + "w" * 20
    rows = playground.answer()
    assert [set(row) for row in rows] == [{"text"}, {"text"}, {"error"}]
    assert process._process.poll() is not None
    assert "step-000003 on" in playground._status.value and "has 20 tokens" in playground._answers.value
    child = playground._model.process._process  # type: ignore[union-attr]
    playground.close()
    assert child.poll() is not None


def test_a_wrong_setting_is_marked_beside_its_field_and_nothing_is_computed(playground: Playground) -> None:
    setting(playground, "temperature")._input.value = "-1"
    playground._go.click()
    assert "temperature: must be &gt;= 0" in playground._status.value and playground._model.process is None
    with pytest.raises(ConfigError, match="temperature"):
        playground.answer()


def test_what_does_not_exist_is_refused_when_the_playground_is_made(run: Run) -> None:
    with pytest.raises(ConfigError, match="temprature"):
        nt.Playground(run, temprature=1.0)
    with pytest.raises(CheckpointError, match="step-000999"):
        nt.Playground(run, checkpoint="step-000999")
    assert setting(nt.Playground(run), "temperature").value == 0.4


@pytest.mark.promise("safety-code")
def test_a_run_that_was_trained_with_code_of_its_model_asks_about_it(playground: Playground) -> None:
    assert playground._model.consent.layout.display == "none"
    content = json.loads(playground.run.files.config.read_text())
    content["config"]["trust_remote_code"] = True
    playground.run.files.config.write_text(json.dumps(content))
    for is_trusted in (False, True):
        asking = nt.Playground(Run(playground.run.dir), "w1", trust_remote_code=is_trusted)
        assert (asking._model.consent.layout.display, asking._model.consent.value) == ("", is_trusted)
        asking.close()


def test_answers_of_every_recipe_are_drawn_and_escaped() -> None:
    candidates = [{"token": "<i>", "probability": 0.75}, {"token": "b", "probability": 0.25}]
    drawn = answers_html(
        ["a [MASK] c", "smed", "", "", "x"],
        [
            {"text": "a <i> c", "masks": [candidates]},
            {
                "codes": ["83110"],
                "note": "<",
                "probability": 0.9,
                "candidates": [{"code": "83110", "probability": 0.9}],
            },
            {"text": "", "goal": "7:2", "best": 12, "returns": [0.0, 3.5, 12.0], "is_unseen": True},
            {"text": "one\n\ntwo", "texts": ["one", "two"]},
            {"error": "no & never"},
        ],
    )
    assert "a <b style='border-bottom:2px solid #3f90da'>&lt;i&gt;</b> c" in drawn
    spaced = answers_html(["a [MASK] c"], [{"text": "a b c", "masks": [[{"token": " b", "probability": 1.0}]]}])
    assert "a<b style='border-bottom:2px solid #3f90da'> b</b> c" in spaced, "the token holds the space before it"
    assert "width:90px" in drawn  # 0.75 of 120
    assert "83110" in drawn and "nbtools-error'>&lt;</div>" in drawn and "Goal 7:2" in drawn
    assert "0 at first, 12 at last" in drawn and "no &amp; never" in drawn
    assert "10 more" in answers_html([""] * 60, [{"text": "a"}] * 60)
