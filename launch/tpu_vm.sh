#!/usr/bin/env bash
# Trains on a Google Cloud TPU VM. See `launch/tpu_vm.sh help`.
#
# shellcheck disable=SC2016  # What runs on the hosts is expanded there.
set -euo pipefail
# shellcheck source=launch/shared.sh
. "$(dirname "${BASH_SOURCE[0]}")/shared.sh"

usage() {
  cat <<'TEXT'
usage: launch/tpu_vm.sh COMMAND [options] [-- arguments of looped_lm.main]

commands
  create    makes the TPU VM
  install   copies the committed state of this checkout to every host and installs it there
  run       starts looped_lm.main on every host, in the background; the hosts find each other
            (--distributed=auto) and train one model
  resume    goes on after a crash or a preemption: makes and installs the VM again where it is
            gone, then runs the same command; training continues from the last checkpoint
  stop      asks the run to save and end (SIGTERM on every host)
  status    says what the VM and the run on each host are doing
  delete    deletes the VM; the workdir stays

options, each with the variable that sets its default
  --name NAME        TPU_NAME       the VM
  --project PROJECT  TPU_PROJECT    the Google Cloud project
  --zone ZONE        TPU_ZONE       for example us-east5-b
  --type TYPE        TPU_TYPE       for example v6e-8 or v5litepod-16 (create, resume)
  --runtime VERSION  TPU_RUNTIME    system image; by default the one of the type
  --workdir gs://... TPU_WORKDIR    where the run goes; hosts share it and it outlives the VM
  --config FILE      TPU_CONFIG     the experiment, for example configs/looped_gpt_bert.py
  --spot                            cheaper, and may be taken away (create, resume)
  --yes                             delete without asking
  --dry-run                         prints every command and runs none

example
  export TPU_NAME=loops TPU_PROJECT=my-project TPU_ZONE=us-east5-b TPU_TYPE=v6e-8
  launch/tpu_vm.sh create --spot
  launch/tpu_vm.sh install
  launch/tpu_vm.sh run --config configs/looped_gpt_bert.py --workdir gs://my-bucket/loops
TEXT
}

need() { # need VALUE --option VARIABLE
  [ -n "$1" ] || fail "$command needs $2 (or $3)"
}

tpu_vm() { # tpu_vm VERB ARGUMENTS...: one gcloud call on the VM
  local verb=$1
  shift
  act gcloud compute tpus tpu-vm "$verb" "$@" "--project=$project" "--zone=$zone"
}

on_every_host() {
  tpu_vm ssh "$name" --worker=all "--command=$1"
}

# True on a host while the run it started is alive.
running='kill -0 $(cat run.pid 2>/dev/null) 2>/dev/null'

default_runtime() {
  case "$type" in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    *) fail "no system image is known for --type $type; name one with --runtime" ;;
  esac
}

check_type() {
  need "$type" --type TPU_TYPE
  [ -n "$runtime" ] || runtime=$(default_runtime)
}

check_job() {
  need "$config" --config TPU_CONFIG
  need "$workdir" --workdir TPU_WORKDIR
  case "$workdir" in
    gs://*) ;;
    *) fail "--workdir=$workdir must be a gs:// path: hosts share no disk, and a VM's goes with it" ;;
  esac
}

create() {
  check_type
  if $spot; then
    tpu_vm create "$name" "--accelerator-type=$type" "--version=$runtime" --spot
  else
    tpu_vm create "$name" "--accelerator-type=$type" "--version=$runtime"
  fi
}

# A bundle keeps the history's hash, so that a run on the VM records the commit it was made from.
install() {
  local bundle
  [ -z "$(git -C "$root" status --porcelain --untracked-files=no)" ] ||
    echo "launch/tpu_vm.sh: uncommitted changes stay here; commit them to bring them along" >&2
  if $dry_run; then bundle=looped_lm.bundle; else bundle=$(mktemp -d)/looped_lm.bundle; fi
  act git -C "$root" bundle create -q "$bundle" HEAD
  tpu_vm scp "$bundle" "$name:looped_lm.bundle" --worker=all
  # The images' own Python is 3.10, too old for us; uv brings one of its own.
  on_every_host 'set -e
git init -q looped_lm
cd looped_lm
git fetch -q ../looped_lm.bundle HEAD
git checkout -q --detach FETCH_HEAD
python3 -m pip install -q --user uv
PATH=$HOME/.local/bin:$PATH
test -x .venv/bin/python || uv venv -q --python 3.11 .venv
uv pip install -q --python .venv/bin/python -e ".[tpu,plots]"'
  $dry_run || rm -rf "$(dirname "$bundle")"
}

run() {
  local job
  check_job
  job=$(quote_all .venv/bin/python -u -m looped_lm.main "--config=$config" "--workdir=$workdir" \
    ${arguments[@]+"${arguments[@]}"})
  on_every_host "set -e
cd looped_lm
$running && { echo \"\$(hostname): already running\" >&2; exit 1; }
nohup $job >>run.log 2>&1 </dev/null &
echo \$! >run.pid"
}

resume() {
  local state=""
  # Before anything is deleted.
  check_type
  check_job
  if $dry_run; then
    echo "# unless the VM is READY:"
  else
    state=$(tpu_vm describe "$name" "--format=value(state)" 2>/dev/null) || state=""
  fi
  if [ "$state" != READY ]; then
    # A preempted VM still has its name and must be deleted first.
    if $dry_run || [ -n "$state" ]; then tpu_vm delete "$name" --quiet; fi
    create
    install
  fi
  if $dry_run; then echo "# in any case:"; fi
  run
}

# One host would do: the others learn of it. But which of them is alive is not known here.
stop() {
  on_every_host "cd looped_lm || exit
if $running; then kill \$(cat run.pid); else echo \"\$(hostname): not running\"; fi"
}

status() {
  tpu_vm describe "$name" "--format=value(state,health)"
  on_every_host "cd looped_lm || exit
if $running; then echo \"\$(hostname): running\"; else echo \"\$(hostname): not running\"; fi
tail -n 3 run.log"
}

delete() {
  if $yes; then tpu_vm delete "$name" --quiet; else tpu_vm delete "$name"; fi
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command=${1:-help}
[ $# -eq 0 ] || shift
name=${TPU_NAME:-}
project=${TPU_PROJECT:-}
zone=${TPU_ZONE:-}
type=${TPU_TYPE:-}
runtime=${TPU_RUNTIME:-}
workdir=${TPU_WORKDIR:-}
config=${TPU_CONFIG:-}
spot=false
yes=false
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --spot) spot=true ;;
    --yes) yes=true ;;
    --dry-run) dry_run=true ;;
    --)
      shift
      arguments=("$@")
      break
      ;;
    --name | --project | --zone | --type | --runtime | --workdir | --config)
      [ $# -ge 2 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --name=* | --project=* | --zone=* | --type=* | --runtime=* | --workdir=* | --config=*)
      option=${1#--}
      printf -v "${option%%=*}" '%s' "${option#*=}"
      ;;
    *) fail "$1 is no option; \`launch/tpu_vm.sh help\` lists them (arguments of looped_lm.main come after --)" ;;
  esac
  shift
done

case "$command" in
  create | install | run | resume | stop | status | delete)
    need "$name" --name TPU_NAME
    need "$project" --project TPU_PROJECT
    need "$zone" --zone TPU_ZONE
    $dry_run || [ -n "$(type -P gcloud)" ] || fail "gcloud is not on the PATH; install the Google Cloud CLI"
    "$command"
    ;;
  help | -h | --help) usage ;;
  *) fail "$command is no command; \`launch/tpu_vm.sh help\` lists them" ;;
esac
