#!/bin/sh
# Writes deploy/.env for compose.yaml: the number of processes, and passwords that are made here.
#
#   deploy/compose/setup.sh              # three brokers, three processes of millrace
#   deploy/compose/setup.sh small        # one of each
#   deploy/compose/setup.sh small FILE   # for docker compose --env-file FILE
set -eu
file=${2:-$(dirname "$0")/../.env}
if [ -e "$file" ]; then
	echo "$file exists, and the volumes may need its passwords: remove both to begin again" >&2
	exit 1
fi
case ${1:-full} in
full) sizes='COMPOSE_PROFILES=full
BROKERS=["kafka-1:9092","kafka-2:9092","kafka-3:9092"]
VOTERS=1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093
REPLICATION=3
MIN_INSYNC=2' ;;
small) sizes='COMPOSE_PROFILES=small
BROKERS=["kafka-1:9092"]
VOTERS=1@kafka-1:9093
REPLICATION=1
MIN_INSYNC=1' ;;
*)
	echo "setup.sh takes full or small, not $1" >&2
	exit 2
	;;
esac
secret() { od -An -N 16 -t x1 /dev/urandom | tr -d ' \n'; }
umask 077
cat >"$file.new" <<END
$sizes
CLICKHOUSE_PASSWORD=$(secret)
S3_SECRET_KEY=$(secret)
END
mv "$file.new" "$file"
echo "$file is written (${1:-full})"
