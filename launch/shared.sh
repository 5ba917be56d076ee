# shellcheck shell=bash
# What the launch scripts share; they source it.

dry_run=false

fail() {
  echo "launch/${0##*/}: $*" >&2
  exit 1
}

# Prints words so that a shell reads them back unchanged.
quote_all() {
  local separator="" word
  for word in "$@"; do
    printf '%s' "$separator"
    case "$word" in
      '' | *[!A-Za-z0-9_./:=,@%+-]*) printf "'%s'" "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")" ;;
      *) printf '%s' "$word" ;;
    esac
    separator=" "
  done
}

# Runs a command, or prints it in a dry run.
act() {
  if $dry_run; then
    quote_all "$@"
    echo
  else
    "$@"
  fi
}
