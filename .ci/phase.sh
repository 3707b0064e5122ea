#!/bin/sh
# phase.sh "what it does" command ...: says so, runs the command, and says how long it took
started=$(date +%s)
echo "== $1 ..."
what=$1
shift
"$@"
status=$?
took=$(($(date +%s) - started))
[ $status = 0 ] && echo "== $what: $took s" || echo "== $what: failed after $took s" >&2
exit $status
