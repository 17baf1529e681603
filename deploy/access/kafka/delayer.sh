#!/bin/sh
# The Kafka rights of role delayer. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:delayer}
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

# handles its messages
acl --operation Read --resource-pattern-type prefixed \
	--topic "${PREFIX}delay."

# publishes
acl --operation Write --resource-pattern-type prefixed \
	--topic "${PREFIX}delay."

# keeps the topic in memory
acl --operation Read \
	--topic "${PREFIX}accounts" \
	--topic "${PREFIX}control" \
	--topic "${PREFIX}incidents" \
	--topic "${PREFIX}policies"

# publishes
acl --operation Write \
	--topic "${PREFIX}again.checker" \
	--topic "${PREFIX}again.checker.large" \
	--topic "${PREFIX}again.copier" \
	--topic "${PREFIX}again.copier.large" \
	--topic "${PREFIX}again.deleter" \
	--topic "${PREFIX}again.ingester" \
	--topic "${PREFIX}again.planner" \
	--topic "${PREFIX}again.steward" \
	--topic "${PREFIX}dead" \
	--topic "${PREFIX}incidents"

# restores offsets that the brokers have expired
acl --operation Read \
	--topic "${PREFIX}checkpoints"

# its consumer group
acl --operation Read \
	--group "${PREFIX}delayer"
