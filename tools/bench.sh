#!/usr/bin/env bash
# Runs the benchmarks and the demo, and prints their figures as one table with the targets.
# The figures are those of this machine now; a missed target is said, and is no error.
#   tools/bench.sh [REGEXP]     with a REGEXP other than . the demo is left out
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-.}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

mapfile -t packages < <(git grep -l --untracked '^func Benchmark' -- '*_test.go' | xargs -r -n 1 dirname | sort -u | sed 's#^#./#')
# One package at a time: benchmarks share no processor.
go test -p 1 -run '^$' -bench "$pattern" -benchmem -benchtime 3s -timeout 10m "${packages[@]}" | tee "$out" >&2

if [ "$pattern" = . ]; then
	go_src=$(go env GOROOT)/src
	echo "demo over the Go tree ..." >&2
	./bin/millrace demo -o json "$go_src" | tail -n 1 |
		sed -E 's/"stores":.*"findings"/"findings"/; s/.*"items":([0-9]+).*"seconds":([0-9.]+).*"items_per_second":([0-9.]+).*"change_to_copy_seconds_median":([0-9.]+).*"change_to_copy_seconds_p99":([0-9.]+).*/Demo 1 \1 items \2 s \3 items\/s \4 s-median \5 s-p99/' >>"$out"
fi

awk '
# A row of the table; target is "<= N" or ">= N", or empty.
function row(name, value, unit, allocs, peer, target,    met, part) {
	met = ""
	if (target != "") {
		split(target, part, " ")
		met = part[1] == "<=" ? (value + 0 <= part[2] + 0) : (value + 0 >= part[2] + 0)
		met = met ? "yes" : "no"
	}
	printf "%-46s %14s %-10s %16s %14s %12s %4s\n", name, value, unit, allocs, peer, target, met
}
function targetOf(name, unit) {
	if (name ~ /^(En|De)codeChange/ && unit == "ns/op") return "<= 1000"
	if (name ~ /^Hasher\// && unit == "ratio") return "<= 1"
	if (unit == "rows/s" && name ~ /Audit|Sink/) return ">= 100000"
	if (name == "Demo" && unit == "s") return "<= 60"
	return ""
}
/^Benchmark|^Demo / {
	name = $1
	sub(/^Benchmark/, "", name)
	sub(/-[0-9]+$/, "", name)
	names[++n] = name
	for (i = 3; i < NF; i += 2) {
		metric[name, $(i + 1)] = $i
		if ($(i + 1) !~ /^(B|allocs)\/op$/) units[name] = units[name] " " $(i + 1)
	}
}
END {
	printf "%-46s %14s %-10s %16s %14s %12s %4s\n", "figure", "value", "unit", "allocations", "peer", "target", "met"
	for (k = 1; k <= n; k++) {
		name = names[k]
		if (name ~ /\/peer$/) continue
		count = split(units[name], unit, " ")
		for (i = 1; i <= count; i++) {
			allocs = peer = ""
			if (unit[i] == "ns/op" && (name, "allocs/op") in metric)
				allocs = metric[name, "allocs/op"] " of " metric[name, "B/op"] " B"
			other = name
			sub(/\/[^\/]*$/, "/peer", other)
			if (other != name && (other, unit[i]) in metric) peer = metric[other, unit[i]]
			row(name, metric[name, unit[i]], unit[i], allocs, peer, targetOf(name, unit[i]))
			if (unit[i] == "ns/op" && peer != "" && peer + 0 > 0)
				row(name, sprintf("%.2f", metric[name, unit[i]] / peer), "ratio", "", "", targetOf(name, "ratio"))
		}
	}
}' "$out"
