#!/usr/bin/env bash
# Sets up the project and runs every check; all of them run, and one failure is enough for a non-zero status.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/test.sh [--all] [PYTEST ARGUMENTS]

  (none)   ruff, mypy, the notebooks, and the tests but for the slow and the browser ones
  --all    the slow and the browser tests too

Everything else goes to pytest's run of tests/, for example -x or -k tail.
TEXT
}

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

REPORT=""
NUM_FAILED=0

report() { REPORT="$REPORT$(printf '%-10s %5d s  %s' "$1" "$2" "$3")"$'\n'; }

run_part() {
  local name="$1" started="$SECONDS" verdict=passed
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" || {
    verdict="FAILED (exit status $?)"
    NUM_FAILED=$((NUM_FAILED + 1))
  }
  report "$name" "$((SECONDS - started))" "$verdict"
}

main() {
  local selection=(-m "not slow and not browser")
  local pytest_arguments=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --all) selection=() ;;
      *) pytest_arguments+=("$1") ;;
    esac
    shift
  done

  set_up notebook,train,dev
  report set-up "$SECONDS" ready
  run_part ruff "$PYTHON" -m ruff check .
  run_part format "$PYTHON" -m ruff format --check .
  run_part mypy "$PYTHON" -m mypy
  # A cell may hold a whole training run, so pytest's own limit per test is raised for cells.
  run_part notebooks "$PYTHON" -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=600 -o timeout=660 notebooks
  run_part tests "$PYTHON" -m pytest ${selection[@]+"${selection[@]}"} ${pytest_arguments[@]+"${pytest_arguments[@]}"}

  printf '\n%s' "$REPORT"
  [ "$NUM_FAILED" -eq 0 ]
}

main "$@"
