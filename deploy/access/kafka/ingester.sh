#!/bin/sh
# The Kafka rights of role ingester. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:ingester}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}

# checks the topics at the start and watches them
acl --operation Describe --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# checks the topics at the start and watches them
acl --operation DescribeConfigs --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# publishes
acl --operation Write --resource-pattern-type prefixed \
	--topic "${PREFIX}delay."

# keeps the topic in memory
acl --operation Read \
	--topic "${PREFIX}accounts" \
	--topic "${PREFIX}control" \
	--topic "${PREFIX}incidents" \
	--topic "${PREFIX}policies"

# knows what operators have decided, such as the spaces that are gone
acl --operation Read \
	--topic "${PREFIX}admin"

# handles its messages
acl --operation Read \
	--topic "${PREFIX}again.ingester"

# publishes
acl --operation Write \
	--topic "${PREFIX}again.ingester" \
	--topic "${PREFIX}changes" \
	--topic "${PREFIX}checkpoints" \
	--topic "${PREFIX}dead" \
	--topic "${PREFIX}incidents"

# restores offsets that the brokers have expired
acl --operation Read \
	--topic "${PREFIX}checkpoints"

# its consumer group
acl --operation Read \
	--group "${PREFIX}ingester"

# compares the tables with what is committed
acl --operation Describe \
	--group "${PREFIX}sink" \
	--group "${PREFIX}state"

# the topics of ingest.notifications, separated by spaces
for topic in ${NOTIFICATIONS:-}; do
	acl --operation Read --topic "$topic"
done
