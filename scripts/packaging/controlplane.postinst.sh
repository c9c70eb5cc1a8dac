#!/bin/sh
# After an installation or an upgrade, of a .deb ($1 is configure, $2 the version before)
# or an .rpm ($1 is how many versions there are). It enables the unit and starts nothing:
# a replica needs its identity first (controlplane init). An upgrade runs the new program.
set -e
first=
case "$1" in
  configure) [ -n "$2" ] || first=yes ;;
  1) first=yes ;;
esac
if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers berth-controlplane.conf
elif ! getent passwd berth >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/berth --no-create-home --shell /usr/sbin/nologin berth
fi
# The identity goes there. An operator's other mode is kept.
[ -d /etc/berth/pki ] || install -d -o berth -g berth -m 0700 /etc/berth/pki
if [ -n "$first" ] && command -v systemctl >/dev/null; then
  systemctl enable berth-controlplane.service
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # The operator upgrades one replica at a time. A package whose program does not start
  # is installed all the same: the next upgrade may mend that.
  systemctl try-restart berth-controlplane.service ||
    echo "berth-controlplane does not start: see journalctl -u berth-controlplane" >&2
fi
