#!/bin/bash
# Writes sample files, waits until store 3 has its copies, changes a byte of one, and has the copies checked. It ends
# with 0 when the incident is open, and does nothing more when it is run again.
set -euo pipefail
config=/etc/millrace/millrace.yaml
files=40
work=/var/lib/millrace/example
copies=/var/lib/millrace/vault/samples
damaged=$copies/reports/07.txt

check() { millrace sweep start fixity --config $config --all --wait --account acme --store 3; }
next() {
	millrace incident list --config $config
	cat <<-END

		Store 3 has a damaged copy, and its repair waits for approval. To look at the item, and to approve the repair:

		  alias cli='docker compose -f deploy/compose.yaml run --rm cli'
		  cli object show --config $config acme/samples/reports/07.txt
		  cli incident approve --config $config --reason 'first look' --wait acme/3/samples/reports%2F07.txt/content-corrupt
	END
}
if [ -e $work/done ]; then
	next
	exit
fi

if [ ! -e $work/changed ]; then
	echo "writing $files files to store 1"
	mkdir -p $work/files/reports $work/files/images
	for n in $(seq -w $((files / 2))); do
		seq 1000 | sed "s/^/report $n, line /" >$work/files/reports/$n.txt
		[ -e $work/files/images/$n.raw ] || head -c 200000 /dev/urandom >$work/files/images/$n.raw
	done
	(cd $work/files && find . -type f | sort |
		decorator -brokers "$(echo "$MILLRACE_KAFKA__BROKERS" | tr -d '[]"')" -account acme -store 1 -space samples \
			-root /var/lib/millrace/primary -outbox $work/outbox -user example)
fi

echo "waiting for the copies in store 3"
for _ in $(seq 600); do
	[ "$(find $copies -type f 2>/dev/null | wc -l)" -lt $files ] || break
	sleep 1
done
[ "$(find $copies -type f | wc -l)" = $files ] || { echo "store 3 does not have all copies after 10 min" >&2; exit 1; }
[ -e $work/changed ] || check

echo "changing one byte of $damaged"
touch $work/changed
time=$(stat --format=%y $damaged)
printf X | dd of=$damaged bs=1 count=1 conv=notrunc status=none
touch --date="$time" $damaged

found=0
check || found=$?
[ $found = 3 ] || { echo "the check ended with $found, not with 3 (findings)" >&2; exit 1; }
touch $work/done
next
