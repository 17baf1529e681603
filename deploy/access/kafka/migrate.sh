#!/bin/sh
# The Kafka rights of 'millrace migrate'. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:migrate}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}

# creates and checks topics
acl --operation Create --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# creates and checks topics
acl --operation Describe --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# creates and checks topics
acl --operation DescribeConfigs --resource-pattern-type prefixed \
	--topic "${PREFIX}"

# records that the tables have positions
acl --operation Read \
	--topic "${PREFIX}admin"

# records that the tables have positions
acl --operation Write \
	--topic "${PREFIX}admin"

# compares the tables with what is committed
acl --operation Describe \
	--group "${PREFIX}sink" \
	--group "${PREFIX}state"
