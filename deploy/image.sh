#!/bin/bash
# Builds the images of deploy/Dockerfile from the binaries in bin. "make image" calls it.
#
#   deploy/image.sh VERSION TAG
#
# BIN is the directory of the binaries; by default it is bin. Arguments of docker build are in BUILD, such as --no-cache.
# The images that are not from scratch have the base that the Dockerfile names. If it cannot be pulled, they have one
# that deploy/local/images.sh makes of Debian's packages. DEBIAN names another. CERTIFICATES is the file of certificate
# authorities. All files have the date of the commit, so that equal files give equal layers.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 tag=$2 bin=${BIN:-bin}
revision=$(git rev-parse HEAD)
created=$(TZ=UTC git show -s --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ HEAD)
certificates=${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}
[ -s "$certificates" ] || { echo "$certificates is missing: install ca-certificates, or set CERTIFICATES" >&2; exit 1; }

if [ -z "${DEBIAN:-}" ]; then
	DEBIAN=$(sed -n 's/^ARG DEBIAN=//p' deploy/Dockerfile)
	if ! docker image inspect "$DEBIAN" >/dev/null 2>&1 && ! docker pull --quiet "$DEBIAN" >/dev/null; then
		echo "$DEBIAN cannot be pulled: taking a local base"
		deploy/local/images.sh base
		DEBIAN=millrace-local/debian:bookworm
	fi
fi

[ -s dist/LICENSES.txt ] || { echo "dist/LICENSES.txt is missing: make sbom" >&2; exit 1; }
context=$(mktemp -d dist/image.XXXXXX)
trap 'rm -rf "$context"' EXIT
install -D -m 755 -t "$context/static/usr/bin" "$bin/millrace"
install -D -m 644 -t "$context/static/etc/ssl/certs" "$certificates"
install -D -m 644 LICENSE "$context/static/usr/share/doc/millrace/copyright"
install -m 644 dist/LICENSES.txt "$context/static/usr/share/doc/millrace/"
install -d -m 755 "$context/static/etc/millrace" "$context/static/var/lib/millrace"
install -d -m 1777 "$context/static/tmp"
install -D -m 755 -t "$context/example/usr/bin" "$bin/decorator"
install -D -m 755 -t "$context/example/usr/share/millrace" deploy/example/*.sh
install -D -m 755 -t "$context/engine/usr/bin" "$bin/millrace-clickhouse"
install -D -m 755 -t "$context/engine/usr/lib/millrace" "$("$bin/libchdb")"
find "$context" -exec touch --no-dereference --date="$created" {} +
for part in static example engine; do
	(cd "$context/$part" && find . -mindepth 1 ! -path ./var/lib/millrace -print0 | sort -z |
		tar --no-recursion --owner=0 --group=0 --numeric-owner --null -T - -cf "../$part.tar")
done
tar -C "$context/static" --no-recursion --owner=65532 --group=65532 --numeric-owner -rf "$context/static.tar" \
	./var/lib/millrace

build() { # TARGET ARCHIVE...
	local target=$1
	shift
	echo "$target:$tag"
	tar -c -C deploy Dockerfile -C "$PWD/$context" "$@" |
		docker build --quiet ${BUILD:-} --target "$target" --tag "$target:$tag" --build-arg "DEBIAN=$DEBIAN" \
			--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created" -
}
build millrace static.tar
build millrace-example static.tar example.tar
build millrace-standalone static.tar example.tar engine.tar
