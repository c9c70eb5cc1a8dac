#!/bin/sh
# After an installation or an upgrade, of a .deb ($1 is configure, $2 the version before)
# or an .rpm ($1 is how many versions there are). It enables the unit and starts nothing:
# a router needs its identity first (controlplane init --router). An upgrade runs the new program.
set -e
first=
case "$1" in
  configure) [ -n "$2" ] || first=yes ;;
  1) first=yes ;;
esac
if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers berth-router.conf
elif ! getent passwd berth >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/berth --no-create-home --shell /usr/sbin/nologin berth
fi
[ -d /etc/berth/router ] || install -d -o berth -g berth -m 0700 /etc/berth/router
if [ -n "$first" ] && command -v systemctl >/dev/null; then
  systemctl enable berth-router.service
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart berth-router.service ||
    echo "berth-router does not start: see journalctl -u berth-router" >&2
fi
