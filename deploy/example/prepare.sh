#!/bin/bash
# Creates the tables, the topics and the markers of the stores. It can be repeated.
set -euo pipefail
config=/etc/millrace/millrace.yaml
mkdir -p /var/lib/millrace/primary /var/lib/millrace/vault # in an installation the roots are mounted disks
millrace migrate --config $config
for store in acme/1 acme/2 acme/3; do
	millrace store init --config $config $store
done
