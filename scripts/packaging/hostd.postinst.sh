#!/bin/sh
# After an installation or an upgrade, of a .deb ($1 is configure, $2 the version before)
# or an .rpm ($1 is how many versions there are). It enables the unit and starts nothing:
# a host joins a cluster first (hostd join). An upgrade runs the new program.
set -e
first=
case "$1" in
  configure) [ -n "$2" ] || first=yes ;;
  1) first=yes ;;
esac
[ -d /etc/berth/pki ] || install -d -m 0700 /etc/berth/pki
if [ -n "$first" ] && command -v systemctl >/dev/null; then
  systemctl enable berth-hostd.service
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl restart systemd-modules-load.service || true
  if systemctl is-active --quiet systemd-networkd.service; then
    networkctl reload || true # its links are left alone from now on
  fi
  # Sandboxes keep running while the daemon restarts.
  systemctl try-restart berth-hostd.service ||
    echo "berth-hostd does not start: see journalctl -u berth-hostd" >&2
fi
