#!/bin/sh
# After a removal. A .deb keeps settings until it is purged, an .rpm those that were
# changed, as .rpmsave. Nothing removes data or keys: they may be the last copy.
set -e
case "$1" in
  purge | 0)
    rm -f /etc/systemd/system/multi-user.target.wants/berth-controlplane.service
    for dir in /etc/berth/pki /etc/berth; do
      rmdir "$dir" 2>/dev/null || true # if it is empty
    done
    ;;
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
