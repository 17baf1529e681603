#!/bin/sh
# Installs, upgrades, removes and purges the deb in a system that it may change: as root in a container of Debian.
#
#   test-install.sh OLD.deb NEW.deb
#
# Two packages are made with two versions: make packages VERSION=v0.0.1, make packages VERSION=v0.0.2. systemctl is
# replaced, so that a container needs no systemd; its calls are compared. One line for each check.
set -eu
[ $# = 2 ] && [ "$(id -u)" = 0 ] || { echo "usage, as root in a container: $0 OLD.deb NEW.deb" >&2; exit 2; }
old=$1 new=$2
calls=$(mktemp)
running=$(mktemp)
printf '#!/bin/sh\necho "$1" >>%s\n[ "$1" != list-units ] || cat %s\n' "$calls" "$running" >/usr/local/bin/systemctl
chmod 755 /usr/local/bin/systemctl
mkdir -p /run/systemd/system

ok() { # WHAT COMMAND...: COMMAND must succeed
	what=$1
	shift
	"$@" >/dev/null 2>&1 || { echo "FAILED: $what: $*" >&2; exit 1; }
	echo "ok: $what"
}
is() { # WHAT GOT WANT
	[ "$2" = "$3" ] || { echo "FAILED: $1: got '$2', want '$3'" >&2; exit 1; }
	echo "ok: $1"
}
owner() { stat -c '%U:%G %a' "$1"; }
called() { # the calls since the last time
	tr '\n' ';' <"$calls"
	: >"$calls"
}
version() { dpkg-query -W -f '${Version}' millrace; }

dpkg --install "$old"
first=$(version)
is "installation reloads units, and starts none" "$(called)" "daemon-reload;list-units;"
ok "user" id millrace
is "user has no shell and no home of its own" "$(getent passwd millrace | cut -d: -f6,7)" \
	"/var/lib/millrace:/usr/sbin/nologin"
is "owner of /etc/millrace" "$(owner /etc/millrace)" "root:millrace 750"
is "owner of the configuration" "$(owner /etc/millrace/millrace.yaml)" "root:millrace 640"
is "owner of the environment" "$(owner /etc/millrace/environment)" "root:root 600"
is "owner of /var/lib/millrace" "$(owner /var/lib/millrace)" "millrace:millrace 750"
ok "unit" test -f /usr/lib/systemd/system/millrace@.service
ok "licences" test -s /usr/share/doc/millrace/LICENSES.txt
ok "program" millrace version
ok "sample configuration" millrace config check --config /etc/millrace/millrace.yaml
ok "millrace can read its configuration" setpriv --reuid=millrace --regid=millrace --clear-groups \
	cat /etc/millrace/millrace.yaml /etc/millrace/policies/duplication-accounts.json
ok "millrace can write its data" setpriv --reuid=millrace --regid=millrace --clear-groups touch /var/lib/millrace/data

echo "# mine" >>/etc/millrace/millrace.yaml
echo secret >/etc/millrace/password
uid=$(id -u millrace)
echo "  millrace@sink.service loaded active running" >"$running"
dpkg --install "$new" >/tmp/upgrade.log
is "upgrade reloads units, and restarts none" "$(called)" "daemon-reload;list-units;"
[ "$(version)" != "$first" ] || { echo "FAILED: $old and $new have the same version" >&2; exit 1; }
ok "upgrade says what to run" grep -q "systemctl restart 'millrace@\*'" /tmp/upgrade.log
ok "upgrade keeps the configuration" grep -q "^# mine" /etc/millrace/millrace.yaml
is "upgrade keeps the user" "$(id -u millrace)" "$uid"

dpkg --remove millrace
is "removal stops and disables units" "$(called)" \
	"stop;disable;daemon-reload;"
ok "removal removes the program" test ! -e /usr/bin/millrace
ok "removal keeps the configuration" test -f /etc/millrace/millrace.yaml -a -f /etc/millrace/password
ok "removal keeps data" test -f /var/lib/millrace/data
ok "removal keeps the user" id millrace

: >"$running"
dpkg --install "$new" >/tmp/again.log
ok "installation after the removal says that nothing is started" grep -q "nothing is started" /tmp/again.log
ok "installation after the removal keeps the configuration" grep -q "^# mine" /etc/millrace/millrace.yaml

dpkg --purge millrace
ok "purge removes the configuration" test ! -e /etc/millrace -a ! -e /etc/needrestart/conf.d/millrace.conf
ok "purge keeps data" test -f /var/lib/millrace/data
ok "purge keeps the user" id millrace
echo "all passed"
