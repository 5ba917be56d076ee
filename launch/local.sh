#!/usr/bin/env bash
# Runs one job on this machine, in the foreground or the background, with a log beside the run.
#
#   launch/local.sh --config=configs/quickstart.py --workdir=runs/quickstart
#   launch/local.sh --background --config=configs/quickstart.py --workdir=runs/quickstart
#
# Every argument but --background goes to `python -m looped_lm.main` as it is. The same command
# given again continues from the last checkpoint in the workdir. The log is WORKDIR/run.log, each
# start appended; in the background, WORKDIR/run.pid holds the process id.
# PYTHON=... chooses the interpreter; otherwise the checkout's .venv, then python3.
set -euo pipefail
# shellcheck source=launch/shared.sh
. "$(dirname "${BASH_SOURCE[0]}")/shared.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
background=false
config=""
workdir=""
arguments=()
for argument in "$@"; do
  case "$argument" in
    --background)
      background=true
      continue
      ;;
    --config=*) config=${argument#--config=} ;;
    --workdir=*) workdir=${argument#--workdir=} ;;
  esac
  arguments+=("$argument")
done
[ -n "$config" ] || fail "say which experiment: --config=configs/NAME.py"
[ -n "$workdir" ] || fail "say where the run goes: --workdir=runs/NAME"

# A log cannot be appended to in a bucket, so a run there logs under runs/.
case "$workdir" in
  *://*) logs="runs/$(basename "$workdir")" ;;
  *) logs=$workdir ;;
esac

if [ -z "${PYTHON:-}" ]; then
  if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; else PYTHON=python3; fi
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
"$PYTHON" -c 'import jax' 2>/dev/null || fail "$PYTHON has no jax; run \`make setup\` first"

mkdir -p "$logs"
if [ -f "$logs/run.pid" ] && kill -0 "$(cat "$logs/run.pid")" 2>/dev/null; then
  fail "$workdir is being trained by process $(cat "$logs/run.pid"); its log is $logs/run.log"
fi
rm -f "$logs/run.pid"

command=("$PYTHON" -u -m looped_lm.main "${arguments[@]}")
if $background; then
  nohup "${command[@]}" >>"$logs/run.log" 2>&1 </dev/null &
  echo $! >"$logs/run.pid"
  echo "process $! writes $logs/run.log; to watch it: tail -f $logs/run.log"
else
  "${command[@]}" 2>&1 | tee -a "$logs/run.log"
fi
