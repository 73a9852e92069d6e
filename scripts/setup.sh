# shellcheck shell=bash disable=SC2034
# The set-up that lab.sh and test.sh share. Source this file and call `set_up EXTRAS`: PYTHON is then the interpreter
# to use, and its folder is first on PATH. An active environment that satisfies the project is used as it is;
# otherwise `.venv` in the project is made or updated.

ALL_EXTRAS="notebook,train,data,dev"
PROJECT_ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$PROJECT_ROOT/.venv"
STAMP="$VENV/nbtools-set-up" # only in a .venv made here: what it was made from, or "unfinished"
PYTHON="" BASE="" # the interpreter to use, and the Python to make .venv with

say() { printf '%s\n' "$*"; }

# die STATUS MESSAGE: 2 for a wrong call or an unsuitable machine, 1 for a failure on the way.
die() { printf 'error: %s\n' "${*:2}" >&2 && exit "$1"; }

# Prints what Python $1 lacks to run the project with the extras $2. (-P: the current folder is no installation.)
lacking() {
  "$1" -P "$PROJECT_ROOT/scripts/setup/lacking.py" "$PROJECT_ROOT" "$2" 2>/dev/null || printf 'Python 3.11 or newer, or the package packaging'
}

# Sets BASE to the path of Python $1, outside any virtual environment, if its version is at least 3.11 and below 3.$2.
suitable() {
  BASE="$("$1" -c "import sys; print(getattr(sys, '_base_executable', sys.executable)); \
sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $2))" 2>/dev/null)"
}

# Sets BASE to the Python to make .venv with: python3 first, because pip's settings and wheelhouses are usually made for
# it; 3.15 and newer last, because the pinned packages have no wheels for them.
find_base() {
  local name limit
  for limit in 15 99; do
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
      ! suitable "${NBTOOLS_PYTHON:-$name}" $limit || return 0
    done
  done
  die 2 "${NBTOOLS_PYTHON:+NBTOOLS_PYTHON=$NBTOOLS_PYTHON: }no Python 3.11 or newer found. Install one (Debian, Ubuntu:" \
    "sudo apt install python3 python3-venv; macOS: brew install python@3.13) or name one with NBTOOLS_PYTHON=PATH."
}

stamp() { printf '%s\n' "$PROJECT_ROOT" && cat pyproject.toml scripts/constraints.txt; }

# A .venv without a stamp belongs to the user: it is ready as soon as it satisfies the project.
venv_is_ready() {
  [ -e "$VENV/pyvenv.cfg" ] && { [ ! -e "$STAMP" ] || [ "$(stamp)" = "$(cat "$STAMP")" ]; } &&
    [ -z "$(lacking "$VENV/bin/python" "$ALL_EXTRAS")" ]
}

# Removes a .venv made here that cannot be updated; refuses a folder that is no virtual environment.
check_venv() {
  if [ -e "$STAMP" ]; then
    [ "$(head -n 1 "$STAMP")" != "$PROJECT_ROOT" ] || [ ! -x "$VENV/bin/python" ] || return 0
    say "Making $VENV again: its set-up was interrupted, the project was moved, or its Python is gone."
    rm -rf -- "$VENV"
  elif [ -e "$VENV" ] && [ ! -e "$VENV/pyvenv.cfg" ] && [ -n "$(ls -A "$VENV")" ]; then
    die 2 "$VENV exists and is not a virtual environment; move it away and start again."
  fi
}

install_with_pip() {
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null || return
  PIP_USER=0 "$VENV/bin/python" -m pip install "$@"
}

# Prints pip's setting $1: its PIP_* variable, else the last line in $2, the sorted output of `pip config list`.
pip_setting() {
  local variable value
  variable="PIP_$(printf '%s' "$1" | tr 'a-z-' 'A-Z_')"
  value="${!variable:-$(sed -nE "s/^(global|install)\.$1='(.*)'$/\2/p" <<<"$2" | tail -n 1)}"
  set -f # URLs are no patterns
  # shellcheck disable=SC2086 # one space between the words
  echo ${value//\\n/ }
}

# uv reads none of pip's settings, so they become uv's variables for this call; those that are set win.
install_with_uv() (
  settings="$("$BASE" -m pip config list 2>/dev/null)" || settings="" # this Python may have no pip
  places="$(pip_setting find-links "$settings")" cert="$(pip_setting cert "$settings")"
  export UV_FIND_LINKS="${UV_FIND_LINKS:-${places// /,}}"
  export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$(pip_setting index-url "$settings")}"
  export UV_INDEX="${UV_INDEX:-$(pip_setting extra-index-url "$settings")}"
  export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # as pip: the best version in any index
  [ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
  case "$(pip_setting no-index "$settings")" in 1 | [Tt]rue | [Yy]es | [Oo]n) set -- --no-index "$@" ;; esac
  uv pip install --python "$VENV/bin/python" --compile-bytecode "$@"
)

# Says that no wheel of PyTorch in pip's find-links is for BASE: an index then gives another build, or there is none.
check_wheelhouse() {
  local tag place wheel others="" settings
  settings="$("$BASE" -m pip config list 2>/dev/null)" || settings=""
  tag="$("$BASE" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"
  for place in $(pip_setting find-links "$settings"); do
    for wheel in "$place"/torch-[0-9]*.whl; do
      case "$wheel" in *-"$tag"-*) return ;; esac
      [ ! -e "$wheel" ] || others+=" ${wheel##*/}"
    done
  done
  [ -z "$others" ] || say "  The wheelhouse has PyTorch for other Pythons than $BASE ($tag):$others." \
    "It comes from an index then, if there is one; NBTOOLS_PYTHON=PATH names the Python to use."
}

# Makes or updates VENV. Its stamp is "unfinished" until all is installed: a killed installer can leave half a package
# that it later takes for a whole one, so that .venv is made again (the installer's cache has the downloads).
make_venv() {
  local installer=pip made_from=""
  check_venv
  ! command -v uv >/dev/null || installer=uv
  [ $installer = uv ] || "$BASE" -c 'import ensurepip, venv' 2>/dev/null || die 2 "$BASE has no venv module with pip:" \
    "on Debian and Ubuntu, 'sudo apt install python3-venv'; or install uv, which needs none."
  say "Setting up $VENV with $installer and $BASE; this takes some minutes."
  say "  With PyTorch's CPU build: about 500 MB to download, 2 GB on disk. With its CUDA build, which package indexes"
  say "  give on Linux: about 3 GB, 6 GB on disk. For the CPU build, stop now (Ctrl-C), set PIP_EXTRA_INDEX_URL to"
  say "  PyTorch's CPU wheel index (its install page has the address) or, with uv, UV_TORCH_BACKEND=cpu; start again."
  check_wheelhouse
  [ ! -e "$STAMP" ] || made_from="$(cat "$STAMP")"
  [ -e "$VENV/pyvenv.cfg" ] || made_from=unfinished
  mkdir -p "$VENV"
  [ -z "$made_from" ] || echo unfinished >"$STAMP"
  [ -e "$VENV/pyvenv.cfg" ] || [ $installer = pip ] || uv venv --quiet --allow-existing --python "$BASE" "$VENV"
  [ -e "$VENV/pyvenv.cfg" ] || "$BASE" -m venv "$VENV"
  set -- -c scripts/constraints.txt -e ".[$ALL_EXTRAS]"
  [ -t 1 ] || set -- --quiet "$@"
  if ! "install_with_$installer" "$@"; then
    [ -z "$made_from" ] || printf '%s\n' "$made_from" >"$STAMP" # failed, not killed: what was there is whole
    die 1 "the installation failed (see above). The next start tries again. Without a network it needs a folder with" \
      "all packages: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER."
  fi
  "$VENV/bin/python" -m ipykernel install --sys-prefix --name nbtools --display-name "nbtools ($PROJECT_ROOT)" >/dev/null
  [ -z "$made_from" ] || stamp >"$STAMP"
}

ensure_venv() {
  ! venv_is_ready || return 0
  find_base
  exec 9<pyproject.toml # one set-up at a time: the kernel releases the lock when the last process that holds it ends
  if command -v flock >/dev/null && ! flock -n 9; then
    say "Another set-up of this project is running; waiting for it."
    flock 9 || true # a file system without locks
  fi
  venv_is_ready || make_venv
  exec 9<&-
}

# Jupyter, IPython and matplotlib write to the home folder at their start: one that cannot be written is replaced.
replace_unwritable_home() {
  local folder name
  [ ! -d "${HOME:-}" ] || [ ! -w "$HOME" ] || return 0
  folder="$(mktemp -d "${TMPDIR:-/tmp}/nbtools-home.XXXXXX")"
  say "The home folder (${HOME:-not set}) cannot be written: settings of this session go to $folder"
  for name in JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR IPYTHONDIR MPLCONFIGDIR XDG_CACHE_HOME; do
    [ -n "${!name:-}" ] || export "$name=$folder/$name"
  done
}

set_up() {
  local active missing
  case "$(uname -s)" in MINGW* | MSYS* | CYGWIN*) die 2 "native Windows is not supported: use WSL2 (untested)." ;; esac
  cd -- "$PROJECT_ROOT" || exit
  replace_unwritable_home
  export JUPYTER_PREFER_ENV_PATH=1 # this environment's kernel, not an older one of the same name in the home folder
  if active="$(command -v python3)" && ! [ "${active%/*}" -ef "$VENV/bin" ]; then
    missing="$(lacking "$active" "$1")"
    if [ -z "$missing" ]; then
      say "Using $active, which has everything."
      PYTHON="$active"
      return
    elif [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
      say "The active environment ($active) lacks: $missing."
      say "Using $VENV instead. To use yours, with the torch it has: $active -m pip install -e '.[$ALL_EXTRAS]'"
    fi
  fi
  ensure_venv
  PYTHON="$VENV/bin/python"
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
}
