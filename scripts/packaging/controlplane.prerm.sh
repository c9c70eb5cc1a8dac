#!/bin/sh
# Before a removal (.deb: remove, .rpm: 0) the daemon is stopped; an upgrade lets it run.
set -e
case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then
      systemctl stop berth-controlplane.service || true
    fi
    ;;
esac
