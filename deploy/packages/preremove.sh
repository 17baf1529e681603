#!/bin/sh
# Stops the units before the program goes, except in an upgrade. Arguments: deb remove|upgrade, rpm the number of
# versions that stay.
set -e
case "$1" in
remove | 0)
	[ ! -d "${SYSTEMD_DIR:-/run/systemd/system}" ] || systemctl stop 'millrace@*.service'
	systemctl disable millrace@.service || true # all instances; there may be no systemd
	;;
esac
