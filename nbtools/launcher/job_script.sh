# Slurm runs this script on the first node of the job; what it prints is in ranks/slurm.log.
_nbtools_run=@RUN@
export @MARKS@
_nbtools_line=
_nbtools_end() { # the lines before exec have failed, or exec itself
  local code=$1 LC_ALL=C said
  [ "$code" -ne 0 ] || code=1
  said=$(tail -n 1 "$_nbtools_run/ranks/slurm.log")
  echo "nbtools: the job script failed$_nbtools_line with exit code $code"
  said="the job script failed$_nbtools_line with exit code $code before the training was started: $said"
  said=${said//[^ -~]/ } said=${said//\\/\\\\} said=${said//\"/\\\"}
  printf '{"format": @FORMAT@, "returncode": %d, "signal": null, "stopped": false, "time": %d, "failure": {"host": "%s", "message": "%s"}}\n' \
    "$code" "$(date +%s)" "$(hostname)" "$said" >"$_nbtools_run/.exit.json.job"
  mv -f "$_nbtools_run/.exit.json.job" "$_nbtools_run/exit.json"
  exit "$code"
}
trap '_nbtools_line=" in line $LINENO ($BASH_COMMAND)"' ERR
trap '_nbtools_end $?' EXIT
trap 'trap - EXIT; exit 143' TERM
set -E
