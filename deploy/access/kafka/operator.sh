#!/bin/sh
# The Kafka rights of the commands of operators. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:operator}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}

# reads and verifies
acl --operation Read --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# publishes
acl --operation Write \
	--topic "${PREFIX}accounts" \
	--topic "${PREFIX}admin" \
	--topic "${PREFIX}again.checker" \
	--topic "${PREFIX}again.checker.large" \
	--topic "${PREFIX}again.copier" \
	--topic "${PREFIX}again.copier.large" \
	--topic "${PREFIX}again.deleter" \
	--topic "${PREFIX}again.ingester" \
	--topic "${PREFIX}again.planner" \
	--topic "${PREFIX}again.steward" \
	--topic "${PREFIX}changes" \
	--topic "${PREFIX}checkpoints" \
	--topic "${PREFIX}control" \
	--topic "${PREFIX}deletions" \
	--topic "${PREFIX}duplication.high" \
	--topic "${PREFIX}duplication.large" \
	--topic "${PREFIX}duplication.low" \
	--topic "${PREFIX}fixity.high" \
	--topic "${PREFIX}fixity.large" \
	--topic "${PREFIX}fixity.low" \
	--topic "${PREFIX}fixity.results" \
	--topic "${PREFIX}incidents" \
	--topic "${PREFIX}jobs" \
	--topic "${PREFIX}policies" \
	--topic "${PREFIX}reports"

# redrives dead letters
acl --operation Write \
	--topic "${PREFIX}duplication.results"

# knows how far the roles are
acl --operation Describe --resource-pattern-type prefixed \
	--group "${PREFIX}"

# the topics of ingest.notifications, separated by spaces
for topic in ${NOTIFICATIONS:-}; do
	acl --operation Describe --topic "$topic"
done
