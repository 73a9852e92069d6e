#!/usr/bin/env bash
# Sets up the project and opens JupyterLab on the first notebook, or on another project.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/lab.sh [--headless | --setup-only | --project FOLDER] [JUPYTER ARGUMENTS]

  (none)         set up, then open JupyterLab on notebooks/01_launch_ddp.ipynb
  --project FOLDER
                 set up, then open JupyterLab on a repository of yours; its runs go to FOLDER/runs
  --headless     set up, then execute a copy of that notebook without a browser and print the result;
                 the default without a terminal, unless there are Jupyter arguments
  --setup-only   set up, register a kernel called "nbtools" for your other Jupyters, and stop

Everything else goes to JupyterLab, for example --port 9000 or --no-browser.
NBTOOLS_PYTHON names the Python to make .venv with.
TEXT
}

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

NOTEBOOK="notebooks/01_launch_ddp.ipynb"

# Prints the value of --port among the Jupyter arguments; nothing without one.
port_given() {
  local previous="" argument
  for argument in "$@"; do
    case "$argument" in
      --port=* | --ServerApp.port=*) printf '%s' "${argument#*=}" ;;
      *) case "$previous" in --port | --ServerApp.port) printf '%s' "$argument" ;; esac ;;
    esac
    previous="$argument"
  done
}

# Prints the first port from 8888 on that has no listener, as Jupyter would choose it.
free_port() {
  local port=8888
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  printf '%s' "$port"
}

register_for_user() {
  if "$PYTHON" -m ipykernel install --user --name nbtools --display-name "nbtools ($PROJECT_ROOT)" >/dev/null 2>&1; then
    say "Registered the kernel \"nbtools ($PROJECT_ROOT)\" for your user."
  else
    say "The kernel could not be registered for your user (is the home folder writable?); VS Code finds the environment without it."
  fi
  say "Python of the project: $PYTHON"
  say "  VS Code:     open a notebook, Select Kernel > Jupyter Kernel... > nbtools, or Python Environments > $PYTHON"
  say "  JupyterHub:  open a notebook, Kernel > Change Kernel... > nbtools (reload the page if it is not listed yet)"
  say "  Terminal:    bash scripts/lab.sh"
}

say_tunnel() {
  local port="$1" server ssh_port option=""
  # SSH_CONNECTION: client address, client port, server address, server port.
  read -r _ _ server ssh_port <<<"$SSH_CONNECTION"
  if [ "${ssh_port:-22}" != 22 ]; then
    option="-p $ssh_port "
  fi
  say "This is an SSH session. On your own computer, run"
  say ""
  say "    ssh -N -L $port:localhost:$port $option$(id -un)@${server:-HOST}"
  say ""
  say "and open the http://localhost:$port/... address with the token, which is printed below, in its browser."
}

# Opens JupyterLab at the address $1 with the Jupyter arguments after it; the working directory is the server's root.
open_lab() {
  local port address="$1" arguments=()
  shift
  if [ "$(id -u)" = 0 ]; then
    say "Running as root: starting Jupyter with --allow-root."
    arguments+=(--allow-root)
  fi
  if [ -n "${SSH_CONNECTION:-}" ]; then
    port="$(port_given "$@")"
    if [ -z "$port" ]; then
      port="$(free_port)"
      arguments+=(--port "$port")
    fi
    say_tunnel "$port"
    arguments+=(--no-browser)
  elif [ "$(uname -s)" = Linux ] && [ -z "${DISPLAY:-}${WAYLAND_DISPLAY:-}${WSL_DISTRO_NAME:-}" ]; then
    arguments+=(--no-browser) # without a display, Jupyter opens a text browser in this terminal
  fi
  # A notebook as an argument would make its folder the server's root; so every printed address opens it instead.
  case " $* " in
    *".ipynb "* | *default_url*) ;;
    *) arguments+=("--LabApp.default_url=$address") ;;
  esac
  exec "$PYTHON" -m jupyterlab ${arguments[@]+"${arguments[@]}"} "$@"
}

main() {
  local mode="" project="" jupyter_arguments=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help)
        usage
        exit 0
        ;;
      --headless | --setup-only)
        [ -z "$mode" ] || [ "$mode" = "$1" ] || die 2 "$mode and $1 exclude each other."
        mode="$1"
        ;;
      --project | --project=*)
        [ "$1" != --project ] || [ $# -gt 1 ] || die 2 "--project needs the folder of a repository of yours."
        if [ "$1" = --project ]; then shift; fi
        project="$(CDPATH='' cd -- "${1#--project=}" 2>/dev/null && pwd -P)" ||
          die 2 "--project ${1#--project=}: no such folder; give the folder of a repository of yours."
        ;;
      *) jupyter_arguments+=("$1") ;;
    esac
    shift
  done
  [ -z "$mode" ] || [ -z "$project" ] || die 2 "$mode and --project exclude each other."
  if [ -n "$mode" ] && [ "${#jupyter_arguments[@]}" -gt 0 ]; then
    die 2 "$mode does not start JupyterLab, so these arguments have no effect: ${jupyter_arguments[*]}"
  fi
  if [ -z "$mode$project" ] && [ ! -t 1 ] && [ "${#jupyter_arguments[@]}" -eq 0 ]; then
    mode=--headless
  fi

  set_up notebook,train,data
  case "$mode" in
    --setup-only) register_for_user ;;
    --headless) exec "$PYTHON" "$PROJECT_ROOT/.ci/execute_notebooks.py" "$NOTEBOOK" ;;
    *)
      if [ -n "$project" ]; then
        cd -- "$project" || exit
        export NBTOOLS_ROOT="$project" # its runs, also if it has neither scripts/ nor runs/ yet
        say "Project: $project. In a notebook: import nbtools as nt; run = nt.launch(\"train.py\"); nt.LivePlot(run)"
        NOTEBOOK=""
      fi
      open_lab "/lab${NOTEBOOK:+/tree/$NOTEBOOK}" ${jupyter_arguments[@]+"${jupyter_arguments[@]}"}
      ;;
  esac
}

main "$@"
