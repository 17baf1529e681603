#!/bin/sh
# Creates the user and the group before files are unpacked, some of which they own. Arguments: deb install|upgrade,
# rpm the number of versions that will be installed.
set -e
getent group millrace >/dev/null || groupadd --system millrace
getent passwd millrace >/dev/null || useradd --system --gid millrace --home-dir /var/lib/millrace --no-create-home \
	--shell /usr/sbin/nologin --comment "millrace" millrace
