#!/bin/sh
# The Kafka rights of programs that publish changes, such as those that store through streams/storage/emit. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:writer}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}

# publishes
acl --operation Write \
	--topic "${PREFIX}changes"
