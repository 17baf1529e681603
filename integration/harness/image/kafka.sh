#!/bin/bash
# In the image: formats the data folder on the first start, then becomes the broker. The
# harness copies server.properties in before that.
set -eu
config=/etc/kafka/server.properties
export CLASSPATH='/opt/kafka/*'
java kafka.tools.StorageTool format --ignore-formatted --cluster-id "$CLUSTER_ID" --config "$config"
exec java -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn kafka.Kafka "$config"
