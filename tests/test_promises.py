"""Every promise has a test that runs, and a table can be made of them."""

from pathlib import Path

from promises import FAULTS, GUIDES, REFUSED, SAFETY, SLURM, TESTS, running_tests, shown_by, table


def test_all_promises_are_listed() -> None:
    counts = {"L": 14, "A": 20, "O": 11, "M": 17, "G": 13}
    guides = [f"guide-{guide}{number}" for guide, count in counts.items() for number in range(1, count + 1)]
    assert list(FAULTS) == [f"fault-{number}" for number in range(1, 36)]
    assert list(GUIDES) == guides
    assert len(guides) == 75


def test_every_promise_has_a_test_that_runs_or_a_reason_why_not() -> None:
    marked = shown_by()
    assert marked.keys() == (FAULTS.keys() | SAFETY.keys() | SLURM.keys() | GUIDES.keys()) - REFUSED
    assert all(GUIDES[key][1] for key in REFUSED)
    assert len(REFUSED) == 3


def test_no_promise_is_shown_only_where_a_machine_has_more_than_ci() -> None:
    assert shown_by().keys() - shown_by(everywhere=True).keys() <= SLURM.keys(), "CI has a Slurm"
    unseen = [
        f"{path.name}: {line.strip()}"
        for path in TESTS.rglob("test_*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "pytest.mark.needs(" in line
        and path.name != "test_promises.py"
        and not line.startswith("@pytest.mark.needs(")
        and "marks=pytest.mark.needs(" not in line
    ]
    assert unseen == [], "write the mark where it is used: it is read from the text"


def test_a_table_names_the_promise_its_outcome_and_its_tests() -> None:
    (row,) = (line for line in table("faults").splitlines() if line.startswith("| 17 |"))
    assert FAULTS["fault-17"][0] in row and FAULTS["fault-17"][1] in row
    assert all(f"`{name}`" in row for name in shown_by()["fault-17"])


def test_a_promise_whose_test_never_runs_would_be_noticed(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    text = (
        "import pytest\n"
        "@pytest.mark.skip(reason='x')\ndef test_a(): ...\n"
        "@pytest.mark.xfail\ndef test_b(): ...\n"
        "def test_c():\n    pytest.skip('later')\n"
        "@pytest.mark.skipif(True, reason='x')\ndef test_d(): ...\n"
        "def helper(): ...\n"
    )
    path.write_text(text)
    assert running_tests(path).keys() == {"test_d"}
    path.write_text("pytestmark = [pytest.mark.skip]\n" + text)
    assert running_tests(path) == {}


def test_a_test_that_needs_something_of_the_machine_does_not_run_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    text = (
        "import pytest\n"
        "@pytest.mark.needs('mount')\ndef test_a(): ...\n"
        "@pytest.mark.gpu(on_cpu=True)\ndef test_b(): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.needs('mount'))])\ndef test_c(x): ...\n"
        "@pytest.mark.parametrize('x', [0, pytest.param(1, marks=pytest.mark.needs('mount'))])\ndef test_d(x): ...\n"
    )
    path.write_text(text)
    assert running_tests(path).keys() == {"test_a", "test_b", "test_c", "test_d"}
    assert running_tests(path, everywhere=True).keys() == {"test_d"}
    path.write_text("pytestmark = [pytest.mark.gpu]\n" + text)
    assert running_tests(path, everywhere=True) == {}
