#!/bin/bash
# The entry point of the local image of Kafka. As in the public image, a variable KAFKA_A_B is the setting a.b.
set -eu
config=/etc/kafka/server.properties
for name in "${!KAFKA_@}"; do
	[ "$name" != KAFKA_HEAP_OPTS ] || continue
	key=${name#KAFKA_}
	key=${key,,}
	echo "${key//_/.}=${!name}"
done >"$config"
export CLASSPATH='/opt/kafka/*'
java kafka.tools.StorageTool format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$config"
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:-} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
	-Dorg.slf4j.simpleLogger.defaultLogLevel=warn kafka.Kafka "$config"
