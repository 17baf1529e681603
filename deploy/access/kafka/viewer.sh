#!/bin/sh
# The Kafka rights of commands that only read. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:viewer}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}

# reads and verifies
acl --operation Read --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# knows how far the roles are
acl --operation Describe --resource-pattern-type prefixed \
	--group "${PREFIX}"

# the topics of ingest.notifications, separated by spaces
for topic in ${NOTIFICATIONS:-}; do
	acl --operation Describe --topic "$topic"
done
