#!/bin/sh
# Installs, upgrades, removes and purges the deb or the rpm in a system that it may change: as root in a container of
# Debian, with Debian's rpm for the rpm.
#
#   test-install.sh OLD.deb NEW.deb
#   test-install.sh OLD.rpm NEW.rpm
#
# Two packages are made with two versions: make packages VERSION=v0.0.1, make packages VERSION=v0.0.2. systemctl is
# replaced, so that a container needs no systemd; its calls are compared. One line for each check.
set -eu
[ $# = 2 ] && [ "$(id -u)" = 0 ] || { echo "usage, as root in a container: $0 OLD NEW" >&2; exit 2; }
old=$1 new=$2
conf=/etc/millrace/millrace.yaml
case $old in
*.deb)
	add() { dpkg --install "$1"; }
	remove() { dpkg --remove millrace; }
	version() { dpkg-query -W -f '${Version}' millrace; }
	kept=$conf
	;;
*.rpm)
	# rpm does not know what Debian's packages provide.
	add() { rpm --force-debian --upgrade --nodeps "$1"; }
	remove() { rpm --force-debian --erase millrace; }
	version() { rpm --query --queryformat '%{VERSION}' millrace; }
	kept=$conf.rpmsave
	;;
*)
	echo "$old is neither a deb nor an rpm" >&2
	exit 2
	;;
esac
calls=$(mktemp)
running=$(mktemp)
printf '#!/bin/sh\necho "$1" >>%s\n[ "$1" != list-units ] || cat %s\n' "$calls" "$running" >/tmp/systemctl
install -m 755 /tmp/systemctl /usr/bin/systemctl # rpm does not look into /usr/local
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

add "$old"
first=$(version)
is "installation reloads units, and starts none" "$(called)" "daemon-reload;list-units;"
ok "user" id millrace
is "user has no shell and no home of its own" "$(getent passwd millrace | cut -d: -f6,7)" \
	"/var/lib/millrace:/usr/sbin/nologin"
is "owner of /etc/millrace" "$(owner /etc/millrace)" "root:millrace 750"
is "owner of the configuration" "$(owner $conf)" "root:millrace 640"
is "owner of the environment" "$(owner /etc/millrace/environment)" "root:root 600"
is "owner of /var/lib/millrace" "$(owner /var/lib/millrace)" "millrace:millrace 750"
ok "unit" test -f /usr/lib/systemd/system/millrace@.service
ok "licences" test -s /usr/share/doc/millrace/LICENSES.txt
ok "program" millrace version
ok "sample configuration" millrace config check --config $conf
ok "millrace can read its configuration" setpriv --reuid=millrace --regid=millrace --clear-groups \
	cat $conf /etc/millrace/policies/duplication-accounts.json
ok "millrace can write its data" setpriv --reuid=millrace --regid=millrace --clear-groups touch /var/lib/millrace/data

echo "# mine" >>$conf
echo secret >/etc/millrace/password
uid=$(id -u millrace)
echo "  millrace@sink.service loaded active running" >"$running"
add "$new" >/tmp/upgrade.log
is "upgrade reloads units, and restarts none" "$(called)" "daemon-reload;list-units;"
[ "$(version)" != "$first" ] || { echo "FAILED: $old and $new have the same version" >&2; exit 1; }
ok "upgrade says what to run" grep -q "systemctl restart 'millrace@\*'" /tmp/upgrade.log
ok "upgrade keeps the configuration" grep -q "^# mine" $conf
ok "upgrade keeps the program" millrace version
is "upgrade keeps the user" "$(id -u millrace)" "$uid"

remove
is "removal stops and disables units" "$(called)" \
	"stop;disable;daemon-reload;"
ok "removal removes the program" test ! -e /usr/bin/millrace
ok "removal keeps the configuration" grep -q "^# mine" $kept
ok "removal keeps files that were added" test -f /etc/millrace/password
ok "removal keeps data" test -f /var/lib/millrace/data
ok "removal keeps the user" id millrace

: >"$running"
add "$new" >/tmp/again.log
ok "installation after the removal says that nothing is started" grep -q "nothing is started" /tmp/again.log
ok "installation after the removal keeps the configuration" grep -q "^# mine" $kept

case $old in
*.deb)
	dpkg --purge millrace
	ok "purge removes the configuration" test ! -e /etc/millrace -a ! -e /etc/needrestart/conf.d/millrace.conf
	;;
*.rpm)
	for file in $conf /etc/millrace/environment; do
		ok "upgrades keep a changed $file" sh -c "rpm --query --queryformat \
			'[%{FILENAMES} %{FILEFLAGS:fflags}\n]' millrace | grep -qx '$file cn'"
	done
	remove
	;;
esac
ok "purge keeps data" test -f /var/lib/millrace/data
ok "purge keeps the user" id millrace
echo "all passed"
