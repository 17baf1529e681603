#!/bin/sh
# The Kafka rights of role sweeper. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:sweeper}
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

# trims
acl --operation Delete --resource-pattern-type prefixed \
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

# trims
acl --operation Delete \
	--topic "${PREFIX}again.checker" \
	--topic "${PREFIX}again.checker.large" \
	--topic "${PREFIX}again.copier" \
	--topic "${PREFIX}again.copier.large" \
	--topic "${PREFIX}again.deleter" \
	--topic "${PREFIX}again.ingester" \
	--topic "${PREFIX}again.planner" \
	--topic "${PREFIX}again.steward" \
	--topic "${PREFIX}backlog.checker" \
	--topic "${PREFIX}backlog.checker.low" \
	--topic "${PREFIX}backlog.copier" \
	--topic "${PREFIX}backlog.copier.low" \
	--topic "${PREFIX}backlog.deleter" \
	--topic "${PREFIX}deletions" \
	--topic "${PREFIX}duplication.high" \
	--topic "${PREFIX}duplication.large" \
	--topic "${PREFIX}duplication.low" \
	--topic "${PREFIX}duplication.results" \
	--topic "${PREFIX}fixity.high" \
	--topic "${PREFIX}fixity.large" \
	--topic "${PREFIX}fixity.low" \
	--topic "${PREFIX}fixity.results" \
	--topic "${PREFIX}jobs" \
	--topic "${PREFIX}reports"

# publishes
acl --operation Write \
	--topic "${PREFIX}changes" \
	--topic "${PREFIX}checkpoints" \
	--topic "${PREFIX}duplication.large" \
	--topic "${PREFIX}duplication.low" \
	--topic "${PREFIX}fixity.large" \
	--topic "${PREFIX}fixity.low" \
	--topic "${PREFIX}incidents" \
	--topic "${PREFIX}jobs" \
	--topic "${PREFIX}reports"

# restores offsets that the brokers have expired
acl --operation Read \
	--topic "${PREFIX}checkpoints"

# records and compares offsets
acl --operation Describe \
	--group "${PREFIX}checker" \
	--group "${PREFIX}checker.large" \
	--group "${PREFIX}checker.low" \
	--group "${PREFIX}copier" \
	--group "${PREFIX}copier.large" \
	--group "${PREFIX}copier.low" \
	--group "${PREFIX}delayer" \
	--group "${PREFIX}deleter" \
	--group "${PREFIX}ingester" \
	--group "${PREFIX}planner" \
	--group "${PREFIX}steward"

# compares the tables with what is committed
acl --operation Describe \
	--group "${PREFIX}sink" \
	--group "${PREFIX}state"

# owns the splits of sweeps
acl --operation Read \
	--group "${PREFIX}sweeper"

# the topics of ingest.notifications, separated by spaces
for topic in ${NOTIFICATIONS:-}; do
	acl --operation Describe --topic "$topic"
done
