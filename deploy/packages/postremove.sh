#!/bin/sh
# Keeps data, and the user that owns them. Arguments: deb remove|purge|upgrade, rpm the number of versions that stay.
set -e
case "$1" in
remove | 0)
	[ ! -d "${SYSTEMD_DIR:-/run/systemd/system}" ] || systemctl daemon-reload || true
	;;
purge)
	rm -rf "${DPKG_ROOT:-}/etc/millrace"
	echo "millrace: kept are /var/lib/millrace, the stores, the user and the group millrace, and all topics and tables"
	;;
esac
