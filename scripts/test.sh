#!/usr/bin/env bash
# Sets up the project and runs every check; all of them run, and one failure is enough for a non-zero status.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/test.sh [--all] [PYTEST ARGUMENTS]

  (none)   ruff, mypy, the notebooks, and the tests but for the slow and the browser ones
  --all    the slow and the browser tests too, all but those marked soak

Everything else goes to pytest's run of tests/, for example -x or -k tail.
TEXT
}

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

REPORT=""
NUM_FAILED=0
NOTE=""

report() { REPORT="$REPORT$(printf '%-10s %5d s  %s' "$1" "$2" "$3")"$'\n'; }

# On a busy machine a test that starts processes may fail by chance. Those that failed run once more, alone; what passes
# then is named in the report, so that it gets mended, and what fails again fails the run.
run_tests() {
  local status=0 failed
  "$PYTHON" -m pytest "$@" || status=$?
  [ "$status" -eq 1 ] || return "$status"
  printf '\n== once more, what failed\n'
  failed="$("$PYTHON" -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")))')"
  "$PYTHON" -m pytest "$@" --last-failed --last-failed-no-failures none || return
  NOTE="passed, on a second try: $failed"
}

run_part() {
  local name="$1" started="$SECONDS" verdict=passed
  shift
  NOTE=""
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" || {
    verdict="FAILED (exit status $?)"
    NUM_FAILED=$((NUM_FAILED + 1))
  }
  report "$name" "$((SECONDS - started))" "${NOTE:-$verdict}"
}

main() {
  local selection=(-m "not slow and not browser and not soak and not seeds")
  local pytest_arguments=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --all) selection=(-m "not soak and not seeds") ;;
      *) pytest_arguments+=("$1") ;;
    esac
    shift
  done

  set_up notebook,train,data,dev
  report set-up "$SECONDS" ready
  run_part ruff "$PYTHON" -m ruff check .
  run_part format "$PYTHON" -m ruff format --check .
  run_part mypy "$PYTHON" -m mypy
  # A cell may hold a whole training run, so pytest's own limit per test is raised for cells.
  run_part notebooks "$PYTHON" -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=600 -o timeout=660 notebooks
  run_part tests run_tests "${selection[@]}" ${pytest_arguments[@]+"${pytest_arguments[@]}"}

  printf '\n%s' "$REPORT"
  [ "$NUM_FAILED" -eq 0 ]
}

main "$@"
