#!/bin/bash
# Creates the tables, the topics and the markers of the stores. It can be repeated.
set -euo pipefail
config=/etc/millrace/millrace.yaml
millrace migrate --config $config
for store in acme/1 acme/2 acme/3; do
	millrace store init --config $config $store
done
