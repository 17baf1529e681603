#!/bin/sh
# Writes deploy/.env for compose.yaml: the number of processes, and passwords that are made here.
#
#   deploy/compose/setup.sh              # three brokers, three processes of millrace
#   deploy/compose/setup.sh small        # one of each
#   deploy/compose/setup.sh small FILE   # for docker compose --env-file FILE
set -eu
file=${2:-$(dirname "$0")/../.env}
if [ -e "$file" ]; then
	echo "$file exists, and the volumes need its passwords. To begin again, first remove the volumes with" >&2
	echo "docker compose -f deploy/compose.yaml down --volumes, and then $file" >&2
	exit 1
fi
case ${1:-full} in
full) sizes='COMPOSE_PROFILES=full
DEPLOY_BROKERS=["kafka-1:9092","kafka-2:9092","kafka-3:9092"]
DEPLOY_VOTERS=1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093
DEPLOY_REPLICATION=3
DEPLOY_MIN_INSYNC=2' ;;
small) sizes='COMPOSE_PROFILES=small
DEPLOY_BROKERS=["kafka-1:9092"]
DEPLOY_VOTERS=1@kafka-1:9093
DEPLOY_REPLICATION=1
DEPLOY_MIN_INSYNC=1' ;;
*)
	echo "setup.sh takes full or small, not $1" >&2
	exit 2
	;;
esac
secret() { od -An -N 16 -t x1 /dev/urandom | tr -d ' \n'; }
chmod -R a+rX "$(dirname "$0")" # the containers read the configuration as user 65532
umask 077
trap 'rm -f "$file.new"' EXIT
cat >"$file.new" <<END
$sizes
DEPLOY_CLICKHOUSE_PASSWORD=$(secret)
DEPLOY_S3_SECRET_KEY=$(secret)
END
mv "$file.new" "$file"
echo "$file is written (${1:-full})"
