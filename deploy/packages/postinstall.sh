#!/bin/sh
# Enables, starts and restarts nothing. Arguments: deb configure [OLD-VERSION], rpm 1 for an installation and 2 for an
# upgrade.
set -e
[ ! -d "${SYSTEMD_DIR:-/run/systemd/system}" ] || systemctl daemon-reload
case "$1:$2" in
configure: | 1:*)
	echo "millrace: nothing is started. Adapt /etc/millrace/millrace.yaml, then: millrace config check --config" \
		"/etc/millrace/millrace.yaml"
	;;
configure:* | 2:*)
	echo "millrace: units that run keep the old program. Run: millrace migrate --config /etc/millrace/millrace.yaml"
	echo "millrace: and then: systemctl restart 'millrace@*'"
	;;
esac
