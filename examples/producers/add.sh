#!/usr/bin/env bash
# Publishes one Change for each file that was added to a store, with kcat.
#
#   BROKERS=localhost:9092 ./add.sh ACCOUNT STORE SPACE FOLDER ITEM...
#
# Each ITEM is the path of a file below FOLDER, which is also its name in SPACE. Needs bash, kcat 1.7,
# jq and coreutils. KCAT holds further options, such as "-X security.protocol=SASL_SSL".
set -euo pipefail
export LC_ALL=C # ${#text} counts bytes

: "${BROKERS:?set it to host:port of Kafka}"
topic=${TOPIC:-millrace.changes}
if [ $# -lt 5 ]; then
	echo "usage: BROKERS=HOST:PORT $0 ACCOUNT STORE SPACE FOLDER ITEM..." >&2
	exit 2
fi
account=$1 store=$2 space=$3 folder=$4
shift 4

# escape escapes a part of a key, so that parts cannot be confused.
escape() {
	local s=${1//%/%25}
	printf %s "${s//\//%2F}"
}

# part prints the length of a text as a varint, and the text.
part() {
	local n=${#1}
	while [ "$n" -ge 128 ]; do
		printf "\\x$(printf %02x $((n % 128 + 128)))"
		n=$((n / 128))
	done
	printf "\\x$(printf %02x "$n")"
	printf %s "$1"
}

# id prints the first 128 bits of the SHA-256 of all parts, in hex.
id() {
	local p
	for p in "$@"; do part "$p"; done | sha256sum | cut -c 1-32
}

for item in "$@"; do
	file=$folder/$item
	size=$(stat -c %s -- "$file")
	modified=$(date -u -r "$file" +%s%3N) # milliseconds, truncated
	md5=$(md5sum <"$file" | cut -d ' ' -f 1)
	sha256=$(sha256sum <"$file" | cut -d ' ' -f 1)
	if [ "$(stat -c %s -- "$file") $(date -u -r "$file" +%s%3N)" != "$size $modified" ]; then
		echo "$file was changed meanwhile" >&2
		exit 1
	fi
	at=$(date -u -d "@${modified%???}.${modified: -3}" +%Y-%m-%dT%H:%M:%S.%3NZ)

	# 1 is the number of OP_ADD. "d" means that digests follow, sorted by algorithm, not a version.
	id=$(id change "$account" "$store" "$space" "$item" 1 d md5 "$md5" sha256 "$sha256" "$modified")
	change=$(jq -cn --arg id "$id" --arg account "$account" --arg store "$store" --arg space "$space" --arg item "$item" \
		--arg size "$size" --arg md5 "$md5" --arg sha256 "$sha256" --arg time "$at" --arg user "$(command id -un)" '{
			id: $id, op: "OP_ADD", account: $account, store: $store, space: $space, item: $item, size: $size,
			digests: {md5: $md5, sha256: $sha256}, provenance: "PROVENANCE_CLAIMED", time: $time,
			user: $user, agent: "add.sh", origin: "ORIGIN_CLIENT"}')

	# All messages about an item must be in one partition: use the partitioner of the Java client.
	# shellcheck disable=SC2086 # KCAT has several words
	printf '%s\n' "$change" | kcat -P -b "$BROKERS" -t "$topic" ${KCAT:-} \
		-X partitioner=murmur2_random -X acks=all -X enable.idempotence=true \
		-k "$(escape "$account")/$(escape "$space")/$(escape "$item")" \
		-H ce_specversion=1.0 -H "ce_id=$id" -H ce_source=example/kcat -H ce_type=millrace.v1.Change \
		-H "ce_time=$at" -H content-type=application/json
	echo "$id $item"
done
