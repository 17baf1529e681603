#!/bin/bash
# Builds images that take the place of the public ones where no registry can be reached: compose.local.yaml names them.
#
#   deploy/local/images.sh        all of them
#   deploy/local/images.sh base   only millrace-local/debian
#
# The tests of the packages run in Debian with systemd and rpm. The base is made with debootstrap, as root, from a
# Debian mirror (MIRROR; default: debootstrap's). The brokers are made of this machine's Java and of Kafka's jars from
# Maven, the S3 server is bin/peers/versitygw of "make servers". An image that exists is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/dist/local
base=millrace-local/debian:bookworm

exists() { docker image inspect "$1" >/dev/null 2>&1; }

if ! exists "$base"; then
	[ "$(id -u)" = 0 ] || { echo "$base is missing, and debootstrap needs root" >&2; exit 1; }
	command -v debootstrap >/dev/null || {
		apt-get update -q >/dev/null
		DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap >/dev/null
	}
	echo "$base"
	root=$(mktemp -d)
	trap 'rm -rf "$root"' EXIT
	debootstrap --variant=minbase bookworm "$root" ${MIRROR:+"$MIRROR"} >/dev/null
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}
	tar -C "$root" -c . | docker import - "$base"
fi
[ "${1:-}" != base ] || exit 0

systemd=millrace-local/systemd:bookworm
if ! exists "$systemd"; then
	echo "$systemd"
	docker build --quiet --tag "$systemd" - <<-END
		FROM $base
		RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive \
		    apt-get install -q -y --no-install-recommends systemd dbus rpm && rm -rf /var/lib/apt/lists/*
		CMD ["/lib/systemd/systemd"]
		STOPSIGNAL SIGRTMIN+3
	END
fi

harness=integration/harness
sum=$(cat "$harness"/jars.sha256 "$harness"/image/* deploy/local/kafka.sh | sha256sum | head -c 12)
kafka=millrace-local/kafka:4.3.1
if [ "$(docker image inspect --format '{{index .Config.Labels "inputs"}}' "$kafka" 2>/dev/null)" != "$sum" ]; then
	for need in javac jlink mvn; do
		command -v $need >/dev/null || { echo "$need is missing: install a JDK and Maven" >&2; exit 1; }
	done
	echo "$kafka"
	rm -rf "$work/kafka"
	mkdir -p "$work/kafka"
	mvn -q -B -ntp --strict-checksums -Dkafka.version=4.3.1 -f "$harness/pom.xml" \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$work/kafka/jars"
	(cd "$work/kafka/jars" && sha256sum --quiet --check "$OLDPWD/$harness/jars.sha256")
	java=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
	bash "$harness/image/root.sh" "$java" "$work/kafka/root"
	cp "$harness/image/Dockerfile" "$work/kafka/"
	cp deploy/local/kafka.sh "$work/kafka/kafka.sh"
	docker build --quiet --tag "$kafka" --label "inputs=$sum" "$work/kafka"
fi

[ -x bin/peers/versitygw ] || { echo "bin/peers/versitygw is missing: make servers" >&2; exit 1; }
echo millrace-local/versitygw:dev
mkdir -p "$work/versitygw"
cp bin/peers/versitygw "$work/versitygw/"
printf 'FROM %s\nCOPY versitygw /usr/bin/\nENTRYPOINT ["/usr/bin/versitygw"]\n' "$base" |
	docker build --quiet --tag millrace-local/versitygw:dev -f - "$work/versitygw"
