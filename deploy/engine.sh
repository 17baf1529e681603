#!/bin/bash
# Sees to it that a Docker Engine answers. If none does and this is root on Debian, it installs docker.io and starts
# dockerd; its log and process id are in /var/log/millrace-dockerd.log and /run/millrace-dockerd.pid.
set -euo pipefail
if said=$(docker version 2>&1); then exit; fi
case $said in
*"permission denied"*)
	echo "$said" >&2
	exit 1
	;;
esac
if [ -n "${DOCKER_HOST:-}" ]; then
	echo "no Docker Engine answers at DOCKER_HOST=$DOCKER_HOST" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "no Docker Engine answers: start one, or run this as root to have Debian's docker.io installed" >&2
	exit 1
fi
if ! command -v dockerd >/dev/null; then
	command -v apt-get >/dev/null || { echo "no dockerd: install a Docker Engine" >&2; exit 1; }
	echo "installing docker.io"
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends docker.io iptables >/dev/null
fi
docker version >/dev/null 2>&1 && exit # the package has started it
log=/var/log/millrace-dockerd.log
echo "starting dockerd, log in $log"
setsid nohup dockerd --pidfile /run/millrace-dockerd.pid >"$log" 2>&1 </dev/null &
for _ in $(seq 60); do
	docker version >/dev/null 2>&1 && exit
	sleep 0.5
done
tail -n 20 "$log" >&2
echo "dockerd does not answer after 30 s" >&2
exit 1
