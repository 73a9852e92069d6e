#!/usr/bin/env bash
# Sets up the project, runs every check and prints the time of each; one failure gives a non-zero status at the end.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/test.sh [--all] [PYTEST ARGUMENTS]

  (none)   ruff, mypy, the first notebook, and the tests but for the slow and the browser ones
  --all    every notebook, the slow and the browser tests too; not those marked soak or seeds

Where python3.11 and python3.13 are both on PATH, the fast tests run on both: on one in an environment of its own.

Everything else goes to pytest's run of tests/, for example -x or -k tail.
TEXT
}

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

ALL_EXTRAS+=",zoo" # the libraries whose programs the tests read; what lab.sh sets up has none of them
FAST="not slow and not browser and not soak and not seeds"
REPORT=""
NUM_FAILED=0
CLOCK="$(mktemp)"
DURATIONS="$PROJECT_ROOT/.pytest_cache/durations.tsv" # the seconds of every test of the last run, the longest first
SKIPPED="$(mktemp)" # the tests that were skipped, and why; tests/conftest.py appends to it
trap 'rm -f -- "$CLOCK" "$SKIPPED"' EXIT

# run_timed COMMAND: runs it in this shell and leaves its wall seconds, user and system CPU seconds (those of the
# processes it waited for included) in the file $CLOCK.
run_timed() {
  local TIMEFORMAT='%3R %3U %3S'
  { time "$@" 2>&3 3>&-; } 3>&2 2>"$CLOCK"
}

# report PART VERDICT: adds a line with what run_timed measured.
report() {
  local wall user system
  read -r wall user system <<<"$(tail -n 1 "$CLOCK" | tr -d '.,')" # milliseconds, 10#: leading zeros are not octal
  REPORT+="$(printf '%-10s %5d s wall %5d s CPU  %s' "$1" $((10#$wall / 1000)) $(((10#$user + 10#$system) / 1000)) "$2")"$'\n'
}

run_part() {
  local name="$1" verdict=passed
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  run_timed "$@" || {
    verdict="FAILED (exit status $?)"
    NUM_FAILED=$((NUM_FAILED + 1))
  }
  report "$name" "$verdict"
}

# Runs the fast tests on those of Python 3.11 and 3.13 that are on PATH and that the other tests do not run on.
test_on_other_pythons() {
  local name
  for name in python3.11 python3.13; do
    if [ "$name" = "$("$PYTHON" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" ]; then
      continue
    elif "$name" -c '' 2>/dev/null; then
      run_part "$name" test_on "$name" "$@"
    else
      printf 'skipped: no %s on PATH\n  the fast tests on it\n' "$name" >>"$SKIPPED"
    fi
  done
}

# Runs them on Python $1, in an environment of its own.
test_on() (
  VENV="$PROJECT_ROOT/.venv-$1" STAMP="$PROJECT_ROOT/.venv-$1/nbtools-set-up" NBTOOLS_PYTHON="$1"
  ensure_venv || exit
  NBTOOLS_FAST_TESTS=1 "$VENV/bin/python" -m pytest -n 2 --dist loadfile -m "$FAST" "${@:2}"
)

main() {
  local selection=(-m "$FAST")
  local pytest_arguments=() notebooks=notebooks/01_launch_ddp.ipynb is_fast=1
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --all)
        selection=(-m "not soak and not seeds")
        notebooks=notebooks
        is_fast=""
        ;;
      *) pytest_arguments+=("$1") ;;
    esac
    shift
  done

  unset PYTHONDONTWRITEBYTECODE # the tests start hundreds of interpreters
  run_timed set_up notebook,train,data,dev,zoo
  report set-up ready
  run_part ruff "$PYTHON" -m ruff check .
  run_part format "$PYTHON" -m ruff format --check .
  run_part mypy "$PYTHON" -m mypy
  # A cell may hold a whole training run, so pytest's own limit per test is raised for cells.
  run_part notebooks "$PYTHON" -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=600 -o timeout=660 "$notebooks"
  # Four files at a time: most tests wait for processes that they started. tests/conftest.py has the order of the files. A
  # killed worker ends the run: pytest-xdist would wait for its tests for ever.
  mkdir -p "${DURATIONS%/*}"
  run_part tests env NBTOOLS_SKIPPED="$SKIPPED" NBTOOLS_DURATIONS="$DURATIONS" NBTOOLS_FAST_TESTS=$is_fast "$PYTHON" -m pytest -n 4 --max-worker-restart=0 --dist loadfile --no-loadscope-reorder "${selection[@]}" ${pytest_arguments[@]+"${pytest_arguments[@]}"}
  test_on_other_pythons ${pytest_arguments[@]+"${pytest_arguments[@]}"}

  printf '\n%s\n%s' "$(cat "$SKIPPED")" "$REPORT"
  [ "$NUM_FAILED" -eq 0 ]
}

main "$@"
