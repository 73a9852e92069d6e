"""Events are read back as they were written; damaged rows are left out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.rundir.requests.events import Event, append_events, changed_values, paused_s, read_events
from nbtools.rundir.rundir import RunDir

SAVED = Event("a", 10, 1.0, by="ana@box", action="save")
CHANGED = Event("b", 20, 2.0, field="learning_rate", before=0.1, after=0.05, attempt=2)
REFUSED = Event("c", 30, 3.0, refused="max_steps=5: step 30 is done; give 30 to 60")


def test_events_are_read_back_and_words(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_events(run) == []
    append_events(run, [SAVED, CHANGED])
    append_events(run, [REFUSED])
    assert read_events(run) == [SAVED, CHANGED, REFUSED]
    said = [str(event) for event in read_events(run)]
    assert said == ["save", "learning_rate 0.1 -> 0.05", "refused: max_steps=5: step 30 is done; give 30 to 60"]
    assert changed_values(read_events(run)) == {"learning_rate": 0.05}


def test_a_torn_row_costs_itself_alone(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    append_events(run, [SAVED])
    run.events.write_bytes(run.events.read_bytes() + b'{"request": "x", "st')
    append_events(run, [CHANGED])
    assert read_events(run) == [SAVED, CHANGED]


@given(
    st.lists(
        st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3), st.dictionaries(st.text(), st.none()))
    )
)
def test_rows_of_any_content_are_no_error(rows: list[object]) -> None:
    names = ("request", "step", "time", "by", "action", "field", "from", "to", "refused", "attempt")
    found = Event.from_json(dict(zip(names, rows, strict=False)))
    assert found is None or (found.step >= 0 and str(found) and json.dumps(found.to_json(), allow_nan=False))


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([], 0),
        ([("save", 1)], 0),
        ([("pause", 1), ("continue", 5)], 4),
        ([("pause", 1), ("pause", 2), ("continue", 5), ("pause", 7)], 4 + 3),
        ([("continue", 1), ("pause", 4)], 6),
    ],
)
def test_pauses_add_up_until_now(actions: list[tuple[str, float]], expected: float) -> None:
    events = [Event("a", 1, at, action=action) for action, at in actions]
    assert paused_s([*events, Event("b", 1, 8, action="pause", refused="is paused already")], now=10) == expected
