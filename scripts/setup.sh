# shellcheck shell=bash
# The set-up that lab.sh and test.sh share. Source it and call `set_up EXTRAS`: it leaves the interpreter to use in
# PYTHON, with that environment first on PATH. An active environment that already satisfies the project is used as
# it is; otherwise `.venv` in the project is made or brought up to date.

ALL_EXTRAS="notebook,train,data,dev"
PROJECT_ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$PROJECT_ROOT/.venv"
PYTHON=""

say() { printf '%s\n' "$*"; }

# die STATUS MESSAGE: 2 means the call or the machine is wrong, 1 that something failed on the way.
die() {
  local status="$1"
  shift
  printf 'error: %s\n' "$*" >&2
  exit "$status"
}

# What the shell cannot do well. Run as `ask PYTHON COMMAND ARGUMENTS`; needs Python 3.11 and no package.
# (`read` instead of $(cat): bash 3.2 trips over quotes in a here-document inside a substitution.)
IFS= read -r -d '' ASK_PROGRAM <<'PY' || true
import ast, csv, fcntl, hashlib, importlib.metadata, importlib.util, json, os, shutil, socket, subprocess, sys, sysconfig
import tomllib
from pathlib import Path

STAMP = Path(sys.prefix, "nbtools-set-up.json")


def read_pyproject(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def lacking(root, extras):
    """Print what this interpreter lacks, by distribution: nothing printed means that the project can run here."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        from pip._vendor.packaging.requirements import Requirement
    project = read_pyproject(root)["project"]
    texts = [*project["dependencies"]]
    for extra in extras.split(","):
        texts += project["optional-dependencies"][extra]
    for requirement in map(Requirement, texts):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            print(requirement.name)
        else:
            if not requirement.specifier.contains(version, prereleases=True):
                print(f"{requirement.name}{requirement.specifier} (has {version})")
    try:
        importlib.metadata.version(project["name"])
        spec = importlib.util.find_spec("nbtools")
    except importlib.metadata.PackageNotFoundError:
        spec = None
    if spec is None or not Path(spec.origin or "/").resolve().is_relative_to(root):
        print("nbtools, installed editable from this folder")


def fingerprint(root):
    """Everything that decides what is installed and where; the settings of ruff or pytest do not."""
    pyproject = read_pyproject(root)
    inputs = [pyproject["build-system"], pyproject["project"], (root / "scripts/constraints.txt").read_text("utf-8"), sys.version]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return {"project": str(root), "sha256": digest}


def recorded():
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def repair():
    """Forget distributions that an interrupted installation left incomplete, so that they are installed again."""
    if sys.prefix == sys.base_prefix:
        sys.exit(f"{sys.executable} is in no virtual environment")
    STAMP.unlink(missing_ok=True)
    for folder in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        for info in folder.glob("*.dist-info"):
            record = info / "RECORD"
            rows = list(csv.reader(record.read_text("utf-8").splitlines())) if record.is_file() else []
            sizes = [(folder / name, int(size)) for name, _, size in rows if size]
            if not sizes or not all(path.is_file() and path.stat().st_size == size for path, size in sizes):
                print(f"{info.stem} is incomplete and will be installed again.")
                shutil.rmtree(info)


def pip_settings():
    """Read pip's settings: its files and the PIP_* variables, merged as `pip install` merges them."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        lines = (line.partition("=") for line in listed.stdout.splitlines())
        entries = [(key, str(ast.literal_eval(value))) for key, _, value in lines]
    else:  # no pip here; its variables may be set for the pip of other environments
        entries = [(f":env:.{key[4:].lower().replace('_', '-')}", os.environ[key]) for key in os.environ if key[:4] == "PIP_"]
    settings = {}
    for section in ("global.", "install.", ":env:."):  # the later one wins
        settings |= {key[len(section) :]: value for key, value in entries if key.startswith(section)}
    return settings


def uv_arguments():
    """Print pip's settings as arguments and variables for uv, which reads neither; uv's own variables win."""
    settings = pip_settings()
    for name, option, *variables in (
        ("find-links", "--find-links", "UV_FIND_LINKS"),
        ("index-url", "--default-index", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
        ("extra-index-url", "--index", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
        ("trusted-host", "--allow-insecure-host", "UV_INSECURE_HOST"),
        ("constraint", "--constraints", "UV_CONSTRAINT"),
    ):
        if not any(variable in os.environ for variable in variables):
            for value in settings.get(name, "").split():
                print(option, value, sep="\n")
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        print("--no-index")
    if "UV_INDEX_STRATEGY" not in os.environ:  # as pip: the best version of any index, not the first index's best
        print("--index-strategy", "unsafe-best-match", sep="\n")
    for name, variable in (("cert", "SSL_CERT_FILE"), ("client-cert", "SSL_CLIENT_CERT"), ("proxy", "ALL_PROXY")):
        if settings.get(name) and variable not in os.environ:
            print(f"{variable}={settings[name]}")


def cpu_torch():
    """Print where pip is told to look for a CPU build of torch; nothing when it is not."""
    settings = pip_settings()
    for place in (*settings.get("find-links", "").split(), *os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split()):
        if next(Path(place.removeprefix("file://")).glob("torch-*+cpu*.whl"), None):
            return print(place)
    for place in (*settings.get("index-url", "").split(), *settings.get("extra-index-url", "").split()):
        if place.rstrip("/").endswith("/cpu"):
            return print(place)


def wait_for_lock():
    """Lock file descriptor 9, which the shell that started us holds too; a file system without locks is let pass."""
    try:
        fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another set-up of this project is running; waiting for it.", flush=True)
        fcntl.flock(9, fcntl.LOCK_EX)
    except OSError:
        pass


def free_port():
    """Print the first free port from 8888 on, as Jupyter would choose it."""
    for port in range(8888, 8988):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return print(port)
    sys.exit("no free port between 8888 and 8987; choose one: bash scripts/lab.sh --port N")


command, *arguments = sys.argv[1:]
if command == "lacking":
    lacking(Path(arguments[0]), arguments[1])
elif command == "is-fresh":
    sys.exit(recorded() != fingerprint(Path(arguments[0])))
elif command == "was-moved":
    sys.exit(recorded().get("project", arguments[0]) == arguments[0])
elif command == "stamp":
    STAMP.write_text(json.dumps(fingerprint(Path(arguments[0]))), encoding="utf-8")
else:
    {"repair": repair, "uv-arguments": uv_arguments, "cpu-torch": cpu_torch, "wait-for-lock": wait_for_lock, "free-port": free_port}[command]()
PY

# Started in /, or `import nbtools` would find the project by the working directory alone.
ask() {
  local python="$1"
  shift
  (cd / && exec "$python" -c "$ASK_PROGRAM" "$@")
}

# What PYTHON ($1) lacks of the extras ($2), on one line; "not usable" when it cannot even say.
lacking() {
  local answer
  answer="$(ask "$1" lacking "$PROJECT_ROOT" "$2" 2>/dev/null)" || answer="packaging, or Python 3.11"
  printf '%s' "$answer" | tr '\n' ';' | sed -e 's/;$//' -e 's/;/, /g'
}

# The interpreter of the environment that the user activated (not our own .venv); fails when there is none.
active_python() {
  local prefix
  for prefix in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    if [ -n "$prefix" ] && [ -x "$prefix/bin/python" ]; then
      [ "$(CDPATH='' cd -- "$prefix" && pwd -P)" != "$VENV" ] || return 1
      printf '%s' "$prefix/bin/python"
      return 0
    fi
  done
  return 1
}

# What Python $1 calls itself, outside any virtual environment, if its version is at least 3.11 and below 3.$2.
suitable_python() {
  "$1" -c "import sys; print(getattr(sys, '_base_executable', sys.executable)); \
sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $2))" 2>/dev/null
}

# The Python to build .venv with: what `python3` means here if it will do, for pip's settings and wheelhouses belong
# to that one; a version newer than the pinned packages' wheels only as a last resort.
find_python() {
  local name limit
  if [ -n "${NBTOOLS_PYTHON:-}" ]; then
    suitable_python "$NBTOOLS_PYTHON" 99
    return
  fi
  for limit in 15 99; do
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
      suitable_python "$name" "$limit" && return
    done
  done
  name="$(uv python find '>=3.11' 2>/dev/null)" && suitable_python "$name" 99
}

# True when .venv holds exactly what pyproject.toml and constraints.txt ask for, and its nbtools is this folder's.
venv_is_ready() {
  [ -x "$VENV/bin/python" ] && [ -e "$VENV/pyvenv.cfg" ] || return 1
  ask "$VENV/bin/python" is-fresh "$PROJECT_ROOT" >/dev/null 2>&1 || return 1
  [ -z "$(lacking "$VENV/bin/python" "$ALL_EXTRAS")" ]
}

use_python() {
  # shellcheck disable=SC2034 # for the script that sources this one
  PYTHON="$1"
  PATH="$(dirname -- "$1"):$PATH"
  export PATH
  export JUPYTER_PREFER_ENV_PATH=1 # this environment's kernel, not an older one of the same name in the home folder
  if [ "$1" = "$VENV/bin/python" ]; then
    export VIRTUAL_ENV="$VENV"
    unset PYTHONHOME
  fi
}

# Jupyter, IPython and matplotlib write to the home folder at their start: give them another when it cannot be written.
replace_unwritable_home() {
  local home="${HOME:-}"
  if [ -n "$home" ] && [ -d "$home" ] && [ -w "$home" ]; then
    return 0
  fi
  local folder
  folder="$(mktemp -d "${TMPDIR:-/tmp}/nbtools-home.XXXXXX")"
  say "The home folder (${home:-not set}) cannot be written: settings of this session go to $folder"
  export JUPYTER_CONFIG_DIR="${JUPYTER_CONFIG_DIR:-$folder/jupyter-config}" JUPYTER_DATA_DIR="${JUPYTER_DATA_DIR:-$folder/jupyter-data}"
  export JUPYTER_RUNTIME_DIR="${JUPYTER_RUNTIME_DIR:-$folder/jupyter-runtime}" IPYTHONDIR="${IPYTHONDIR:-$folder/ipython}"
  export MPLCONFIGDIR="${MPLCONFIGDIR:-$folder/matplotlib}" XDG_CACHE_HOME="${XDG_CACHE_HOME:-$folder/cache}"
}

# Fetched sizes as measured on Linux x86-64: 154 packages with the CPU build of torch 2.13, 173 with the CUDA build.
say_size() {
  local installer="$1" base="$2" place
  say "Setting up $VENV with $installer and $base"
  place="$(ask "$base" cpu-torch)"
  if [ "$installer" = uv ] && [ "${UV_TORCH_BACKEND:-}" = cpu ]; then
    place="UV_TORCH_BACKEND=cpu"
  fi
  if [ -n "$place" ] || [ "$(uname -s)" = Darwin ]; then
    say "  About 500 MB to fetch, 2 GB on disk: PyTorch's CPU build${place:+ (from $place)}."
  else
    say "  About 3 GB to download, 6 GB on disk: on Linux, package indexes give PyTorch's CUDA build."
    say "  The CPU build makes it 500 MB. To get it, stop now (Ctrl-C) and set PIP_EXTRA_INDEX_URL to PyTorch's"
    say "  CPU wheel index (its install page has the address) or, with uv, UV_TORCH_BACKEND=cpu; then start again."
  fi
}

# Both installers: make .venv unless it is there, drop what an interrupted one left half done, install.
install_with_uv() {
  local base="$1" settings line arguments=()
  settings="$(ask "$base" uv-arguments)" || return 1
  while IFS= read -r line; do
    case "$line" in
      "") ;;
      SSL_CERT_FILE=* | SSL_CLIENT_CERT=* | ALL_PROXY=*) export "${line?}" ;;
      *) arguments+=("$line") ;;
    esac
  done <<<"$settings"
  [ -x "$VENV/bin/python" ] || uv venv --quiet --clear --python "$base" "$VENV" || return 1
  ask "$VENV/bin/python" repair || return 1
  uv pip install --python "$VENV/bin/python" --compile-bytecode ${arguments[@]+"${arguments[@]}"} \
    -c scripts/constraints.txt -e ".[$ALL_EXTRAS]"
}

install_with_pip() {
  local base="$1" quiet=()
  "$base" -c 'import ensurepip, venv' 2>/dev/null || die 2 "$base has no venv module with pip:" \
    "on Debian and Ubuntu, 'sudo apt install python3-venv'; or install uv, which needs none."
  # Without pip first: should that step be interrupted, the next start makes up for it.
  [ -x "$VENV/bin/python" ] || "$base" -m venv --clear --without-pip "$VENV" || return 1
  ask "$VENV/bin/python" repair || return 1
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip --default-pip >/dev/null || return 1
  if [ ! -t 1 ]; then
    quiet=(--quiet --quiet --progress-bar off)
    say "  pip is silent without a terminal; this takes some minutes."
  fi
  PIP_USER=0 "$VENV/bin/python" -m pip install ${quiet[@]+"${quiet[@]}"} -c scripts/constraints.txt -e ".[$ALL_EXTRAS]"
}

# Whether .venv can be built upon; removes it when it is ours and of no use.
check_venv() {
  if [ -d "$VENV" ] && [ ! -e "$VENV/pyvenv.cfg" ] && [ -n "$(ls -A "$VENV")" ]; then
    die 2 "$VENV exists and is not a virtual environment; move it away and start again."
  fi
  if [ -x "$VENV/bin/python" ]; then
    suitable_python "$VENV/bin/python" 99 >/dev/null ||
      die 2 "$VENV/bin/python does not start or is older than Python 3.11; remove $VENV and start again."
    if ask "$VENV/bin/python" was-moved "$PROJECT_ROOT"; then
      say "The project was moved or copied: making .venv anew, for its commands name the old folder."
      rm -rf -- "$VENV"
    fi
  fi
}

make_venv() {
  local base installer=pip
  base="$(find_python)" || die 2 "${NBTOOLS_PYTHON:+NBTOOLS_PYTHON=$NBTOOLS_PYTHON: }no Python 3.11 or newer found." \
    "Install one (Debian 12 and Ubuntu 24.04: 'sudo apt install python3 python3-venv'; macOS: 'brew install python@3.13';" \
    "anywhere: 'uv python install 3.13'), or name one: NBTOOLS_PYTHON=/path/to/python bash $0"
  # One set-up at a time. The kernel releases this lock when the process ends, however that comes about.
  exec 9<"$PROJECT_ROOT/pyproject.toml"
  ask "$base" wait-for-lock
  if ! venv_is_ready; then
    check_venv
    if command -v uv >/dev/null 2>&1; then
      installer=uv
    fi
    say_size "$installer" "$base"
    "install_with_$installer" "$base" || die 1 "the installation did not finish (see above). Start again: it goes on from there."
    "$VENV/bin/python" -m ipykernel install --sys-prefix --name nbtools --display-name "nbtools ($PROJECT_ROOT)" >/dev/null
    ask "$VENV/bin/python" stamp "$PROJECT_ROOT"
  fi
  exec 9<&-
}

set_up() {
  local needed="$1" active missing
  case "$(uname -s)" in
    MINGW* | MSYS* | CYGWIN*) die 2 "native Windows is not supported (no fork, no flock): use WSL2, which is untested." ;;
    Linux) ;;
    *) say "Note: only Linux is tested; on $(uname -s) things are best effort." ;;
  esac
  cd -- "$PROJECT_ROOT" || exit
  replace_unwritable_home
  if active="$(active_python)"; then
    missing="$(lacking "$active" "$needed")"
    if [ -z "$missing" ]; then
      say "Using the active environment: $active"
      use_python "$active"
      return 0
    fi
    say "The active environment ($active) lacks: $missing."
    say "Using $VENV instead. To use yours, with the torch it has: pip install -e '.[$ALL_EXTRAS]'"
  elif [ ! -e "$VENV" ] && active="$(command -v python3)" && [ -z "$(lacking "$active" "$needed")" ]; then
    say "Using $active, which has everything."
    use_python "$active"
    return 0
  fi
  venv_is_ready || make_venv
  use_python "$VENV/bin/python"
}
