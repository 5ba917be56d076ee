#!/usr/bin/env bash
# Pushes exported milestones to a Hugging Face model repository, each as a branch of its name.
# See `launch/push_checkpoints.sh help`.
set -euo pipefail
# shellcheck source=launch/shared.sh
. "$(dirname "${BASH_SOURCE[0]}")/shared.sh"

usage() {
  cat <<'TEXT'
usage: launch/push_checkpoints.sh --repo OWNER/NAME --folder DIR [options]

Every DIR/chck_* (what `--mode=export --milestones` wrote) becomes the branch chck_* of the
repository. Repository and branches are made where they are missing; a branch that is there gets
the folder's files as its next commit.

options
  --repo OWNER/NAME  the model repository
  --folder DIR       where the folders chck_* are
  --main DIR         pushes this folder first, to the branch main: what --mode=export wrote
  --private          a repository that is made is private
  --dry-run          prints every command and runs none

You are known by `hf auth login` or by the variable HF_TOKEN; a token is never an argument, where
other users of the machine could read it.
TEXT
}

check_export() {
  [ -f "$1/config.json" ] && [ -f "$1/model.safetensors" ] || fail "$1 is no exported model"
}

push() { # push FOLDER BRANCH
  act "$hf" upload "$repo" "$1" . --repo-type=model "--revision=$2" \
    "--commit-message=$2" ${private[@]+"${private[@]}"}
}

repo=""
folder=""
main=""
private=()
while [ $# -gt 0 ]; do
  case "$1" in
    help | -h | --help)
      usage
      exit
      ;;
    --private) private=(--private) ;;
    --dry-run) dry_run=true ;;
    --token | --token=*) fail "a token is no argument; use \`hf auth login\` or the variable HF_TOKEN" ;;
    --repo | --folder | --main)
      [ $# -ge 2 ] || fail "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --repo=* | --folder=* | --main=*)
      option=${1#--}
      printf -v "${option%%=*}" '%s' "${option#*=}"
      ;;
    *) fail "$1 is no option; \`launch/push_checkpoints.sh help\` lists them" ;;
  esac
  shift
done

[ -n "$repo" ] || fail "say where to: --repo=OWNER/NAME"
[[ "$repo" =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ ]] || fail "--repo=$repo is not of the form OWNER/NAME"
[ -n "$folder" ] || fail "say what: --folder=DIR, where --mode=export --milestones wrote"

# In the order of their words, whatever the names sort like.
branches=()
while IFS= read -r branch; do
  branches+=("$branch")
done < <(
  for path in "$folder"/chck_*; do
    branch=${path##*/}
    figure=${branch#chck_}
    case "$figure" in
      *[!0-9M]* | *M?* | '' | M) continue ;; # Nothing that an export is called.
      *M) figure=${figure%M}000000 ;;
    esac
    [ -d "$path" ] && echo "$figure $branch"
  done | sort -n | cut -d ' ' -f 2
)
[ ${#branches[@]} -gt 0 ] || fail "$folder has no folder chck_*; write them with --mode=export --milestones"

# Everything is looked at before anything is pushed.
[ -z "$main" ] || check_export "$main"
for branch in "${branches[@]}"; do check_export "$folder/$branch"; done

hf=hf
if [ -z "$(type -P hf)" ] && [ -n "$(type -P huggingface-cli)" ]; then hf=huggingface-cli; fi
$dry_run || [ -n "$(type -P "$hf")" ] || fail "hf is not on the PATH; pip install huggingface_hub"

[ -z "$main" ] || push "$main" main
for branch in "${branches[@]}"; do push "$folder/$branch" "$branch"; done
