#!/bin/sh
# Before a removal (.deb: remove, .rpm: 0) the daemon is stopped; an upgrade lets it run.
# Its sandboxes keep running: the operator removes them before with hostd purge, which
# cannot be undone.
set -e
case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then
      systemctl stop berth-hostd.service || true
    fi
    ;;
esac
