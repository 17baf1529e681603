#!/bin/sh
# Enables, starts and restarts nothing. Whether units run, and not the arguments, says what to do next: a deb that is
# installed again after its removal has the arguments of an upgrade.
set -e
running=no
if [ -d "${SYSTEMD_DIR:-/run/systemd/system}" ]; then
	systemctl daemon-reload || true
	up=$(systemctl list-units --no-legend --state=active,activating,reloading 'millrace@*.service' || true)
	[ -z "$up" ] || running=yes
fi
conf=/etc/millrace/millrace.yaml
if [ $running = yes ]; then
	echo "millrace: units that run keep the old program. Run: millrace migrate --config $conf"
	echo "millrace: and then: systemctl restart 'millrace@*'"
else
	echo "millrace: nothing is started. Adapt $conf, then: millrace config check --config $conf"
	echo "millrace: and before the units are started: millrace migrate --config $conf"
fi
