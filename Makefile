# make        format check, vet, lint, test, build
# make help   what else there is

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/millrace/millrace/cmd/app.Version=$(VERSION)
TOOLS   := $(CURDIR)/bin/tools
DEPLOY  := bin/deploy-tools
SOURCES := git ls-files --cached --others --exclude-standard '*.go'
DIR     ?=
AREA    ?= all
# What is built, vetted, linted and tested is compiled once for all of them, and another time for the race detector. Tests are
# vetted by vet alone.
STATIC  := CGO_ENABLED=0 GOFLAGS=-trimpath
export PATH := $(TOOLS):$(PATH)

.PHONY: all
all: format-check vet lint test build ## format check, vet, lint, test, build

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/millrace, bin/millrace-bench (both static) and bin/millrace-clickhouse (loads libchdb)
	$(STATIC) go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/millrace ./cmd/millrace-clickhouse
	cd bench && $(STATIC) go build -ldflags '$(LDFLAGS)' -o ../bin/ ./millrace-bench

.PHONY: demo
demo: build ## the main job once, on real files; DIR=... takes your own (only read)
	./bin/millrace demo $(if $(DIR),"$(DIR)")

# The race detector sleeps for a second at the end of each process: tests start hundreds.
export GORACE ?= atexit_sleep_ms=0
# It prints the result of each package, and at the end the output of each failed test.
TESTSUM := gotestsum --format=pkgname --format-icons=text --format-hide-empty-pkg --hide-summary=skipped

# The packages whose tests take longest begin first, so that no core is idle at the end. Tests are linked without DWARF,
# which takes a quarter of the time. The race detector takes three times as much processor time.
LONGEST := ./streams/kafka ./cmd/app ./sinks/clickhouse ./streams/storage/s3
RACE    ?=

.PHONY: test
test: $(TOOLS)/gotestsum ## every package, at most five minutes, no daemon; RACE=1 with the race detector, as CI does: needs a C compiler
	$(if $(RACE),,$(STATIC)) $(TESTSUM) --jsonfile=bin/test.json -- $(if $(RACE),-race) -vet=off -shuffle=on -ldflags=-w $(LONGEST) ./...
	cd bench && $(if $(RACE),,$(STATIC)) go test $(if $(RACE),-race) -vet=off -shuffle=on -ldflags=-w ./...

LOG ?= bin/test.json
.PHONY: slow
slow: $(TOOLS)/gotestsum ## the slowest tests of the last "make test"; LOG=bin/integration.json of the last "make integration"
	@gotestsum tool slowest --jsonfile=$(LOG) --num=20

FLAKY    ?= 30
PACKAGES ?= ./...
.PHONY: flaky
flaky: $(TOOLS)/gotestsum ## packages again and again beside two busy loops, for FLAKY=30 minutes; PACKAGES=./... picks
	@trap 'kill $$(jobs -p)' EXIT; for i in 1 2; do while :; do :; done & done; failed=0; \
	while [ $$SECONDS -lt $$(($(FLAKY) * 60)) ]; do \
		$(TESTSUM) -- -race -vet=off -shuffle=on -ldflags=-w -count=1 -timeout=15m $(PACKAGES); \
	done

# The tests of real servers, and whole every package that has tests of this level, without the race detector.
# INTEGRATION=short is what CI runs, some twelve minutes: of these packages only the tests of this level. Package need
# says what belongs to it.
INTEGRATION ?= full
.PHONY: integration
integration: servers $(DEPLOY)/nfpm $(TOOLS)/gotestsum ## real Kafka, ClickHouse, S3, kills, many rows; INTEGRATION=short; wants a JDK and Maven, or Docker
	$(call REAL,$(INTEGRATION),70m)

.PHONY: soak
soak: export MILLRACE_SOAK = 1
soak: servers $(DEPLOY)/nfpm $(TOOLS)/gotestsum ## the same for longer
	$(call REAL,full,180m)

# Arguments of "go test": packages with tests of the level; for the short form also the names of these tests, which are all
# of ./integration, and those that call need.Integration elsewhere.
CALLS_full  := need\.(Integration|Full|Amount|Check)\(|/storagetest"
CALLS_short := need\.Integration\(
packages     = $$(git grep --untracked -lE '$(CALLS_$(1))' -- '*_test.go' ':!bench' ':!internal/need' | \
	xargs -n 1 dirname | sort -u | sed 's|^|./|')
names        = $$({ cat integration/*_test.go | grep '^func Test'; git grep --untracked -hE '^func Test|$(CALLS_short)' -- \
	'*_test.go' ':!bench' | grep -B 1 -E '$(CALLS_short)'; } | sed -nE 's/^func (Test\w+).*/\1/p' | sort -u | paste -sd '|')
REAL = MILLRACE_INTEGRATION=$(if $(filter short,$(1)),short,1) $(STATIC) $(TESTSUM) --jsonfile=bin/integration.json -- \
	-vet=off -count=1 -parallel 4 -timeout $(2) $(if $(filter short,$(1)),-run="^($(names))\$$") $(call packages,$(1)) \
	-rapid.nofailfile

.PHONY: soak-sink
soak-sink: $(TOOLS)/gotestsum ## 60 SIGKILLs of sink and ClickHouse over 300,000 records, and verify; the other faults of sinks with more
	MILLRACE_SOAK=1 MILLRACE_INTEGRATION=1 $(STATIC) $(TESTSUM) --jsonfile=bin/integration.json -- -vet=off -count=1 -timeout 60m \
		-run '^TestSinkFaults' ./integration

.PHONY: fuzz
fuzz: ## ten seconds of every fuzz test
	for p in $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
		for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 10s $$p; \
		done; \
	done

.PHONY: bench
bench: build ## the figures, as a table; AREA=storage takes those of one area
	@./bin/millrace bench $(AREA)

# Programs of others to compare with. Those in Go have modules of their own, never ours.
.PHONY: peers
peers: bin/peers/rclone hashdeep ## bin/peers: the programs that "millrace bench" runs beside ours; hashdeep from Debian
	cd integration/peers && $(STATIC) go build -ldflags '-s -w' -o ../../bin/peers/ ./...

# rclone with the commands and the backends that are compared; a module of its own, because of its hundreds of others.
bin/peers/rclone: integration/peers/rclone/main.go integration/peers/rclone/go.mod integration/peers/rclone/go.sum
	cd integration/peers/rclone && $(STATIC) go build -ldflags '-s -w' -o $(CURDIR)/bin/peers/ .
	@touch $@

# Without it its figures are taken all the same, and say that it is absent.
.PHONY: hashdeep
hashdeep:
	@command -v hashdeep >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -q && apt-get install -q -y --no-install-recommends hashdeep; } || \
		echo "hashdeep is absent: apt-get install hashdeep"

# Real S3 servers, pinned like the tools: tests of stores run over them, and the demo can.
.PHONY: servers
servers: bin/peers/versitygw bin/peers/minio ## bin/peers: real S3 servers; the first build takes some minutes

bin/peers/%: integration/peers/%/go.mod integration/peers/%/go.sum
	cd integration/peers/$* && $(STATIC) go build -ldflags '-s -w' -o $(CURDIR)/bin/peers/ tool
	@touch $@

.PHONY: format-check
format-check: ## fail where gofmt would change a file
	@out=$$($(SOURCES) | xargs -r gofmt -l); [ -z "$$out" ] || { echo "make fmt would change:"; echo "$$out"; exit 1; }

.PHONY: fmt
fmt: ## format
	$(SOURCES) | xargs -r gofmt -w

.PHONY: vet
vet:
	$(STATIC) go vet ./...
	cd bench && $(STATIC) go vet ./...

.PHONY: lint
lint: format-check $(TOOLS)/buf $(TOOLS)/golangci-lint lint-wire lint-dead ## gofmt, buf, golangci-lint, that generated code is up to date, and that all code has a caller
	$(STATIC) golangci-lint run ./...
	cd bench && $(STATIC) golangci-lint run ./...

# What is checked in must be what the protos make.
.PHONY: lint-wire
lint-wire: $(TOOLS)/buf
	cd schemas && buf lint
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	(cd schemas && buf generate --output "$$tmp"); \
	for f in $$(cd "$$tmp" && find . -name '*.go'); do \
		cmp "$$tmp/$$f" "schemas/$$f" || { echo "schemas/$$f is out of date: make generate"; exit 1; }; \
	done

# Tests are no callers.
.PHONY: lint-dead
lint-dead: $(TOOLS)/deadcode
	@out=$$($(STATIC) deadcode ./cmd/... ./examples/...); [ -z "$$out" ] || { echo "code without a caller:"; echo "$$out"; exit 1; }

.PHONY: generate
generate: $(TOOLS)/buf ## the Go of the protos, and the documents made of code
	cd schemas && buf generate
	go test ./schemas ./cmd/config ./streams/kafka/access -update

# Heavy tools have a module of their own; the first build takes some minutes.
$(TOOLS)/%: tools/go.mod tools/go.sum
	cd tools && $(STATIC) go build -o $(TOOLS)/ tool
	@touch $(TOOLS)/*

# What tests and looks for dead code, in a small module, so that tests do not wait for the heavy one.
$(TOOLS)/gotestsum $(TOOLS)/deadcode &: tools/test/go.mod tools/test/go.sum
	cd tools/test && $(STATIC) go build -o $(TOOLS)/ tool
	@touch $(TOOLS)/gotestsum $(TOOLS)/deadcode

.PHONY: tools
tools: $(TOOLS)/buf $(TOOLS)/golangci-lint ## buf and golangci-lint, pinned in tools/go.mod

# Images are made of the binaries alone. A Docker Engine is started if none runs.
TAG ?= dev
.PHONY: image
image: sbom bin/libchdb bin/decorator ## images millrace, millrace-standalone and millrace-example with tag TAG=dev
	deploy/engine.sh
	deploy/image.sh $(VERSION) $(TAG)

.PHONY: e2e
e2e: image packages bin/peers/versitygw ## compose and the images over a Docker Engine, with an upgrade, stops and kills
	deploy/local/images.sh
	docker compose version >/dev/null 2>&1 || $(MAKE) $(TOOLS)/docker-compose
	MILLRACE_IMAGES=1 $(STATIC) go test -vet=off -count=1 -timeout 60m -v ./integration/deploy

# Where docker has no plugin compose.
$(TOOLS)/docker-compose: tools/compose/go.mod tools/compose/go.sum
	cd tools/compose && $(STATIC) go build -o $@ tool

bin/libchdb: deploy/libchdb/main.go
	$(STATIC) go build -o $@ ./deploy/libchdb

.PHONY: bin/decorator
bin/decorator:
	$(STATIC) go build -ldflags '-s -w' -o $@ ./examples/decorator

# What images and packages contain.
SHIPPED := ./cmd/millrace ./cmd/millrace-clickhouse
# Tools of packages and of the supply chain, in a module of their own; the first build takes some minutes.
$(DEPLOY)/%: tools/deploy/go.mod tools/deploy/go.sum
	cd tools/deploy && $(STATIC) go build -o $(CURDIR)/$(DEPLOY)/ tool
	@touch $(DEPLOY)/*

# Licences of modules. go-licenses does not know MIT-0, the licence of segmentio/asm.
PERMISSIVE := Apache-2.0,MIT,ISC,BSD-2-Clause,BSD-3-Clause,Unlicense
LICENSES    = GOROOT=$$(go env GOROOT) $(STATIC) $(DEPLOY)/go-licenses $(1) $(SHIPPED) --logtostderr=false --log_file=/dev/null \
	--stderrthreshold=2 --ignore github.com/millrace/millrace --ignore github.com/segmentio/asm

.PHONY: sbom
sbom: build $(DEPLOY)/cyclonedx-gomod $(DEPLOY)/go-licenses ## dist/*.cdx.json, what the programs contain (CycloneDX), and dist/LICENSES.txt; needs jq
	@rm -rf dist/licenses && mkdir -p dist
	for p in $(notdir $(SHIPPED)); do \
		$(DEPLOY)/cyclonedx-gomod bin -json -std -noserial -licenses -version $(VERSION) bin/$$p | \
			jq 'del(.metadata.timestamp)' >dist/$$p.cdx.json; \
	done
	jq --slurpfile loaded deploy/libchdb/component.json '.components += $$loaded' dist/millrace-clickhouse.cdx.json >dist/cdx.json
	mv dist/cdx.json dist/millrace-clickhouse.cdx.json
	$(call LICENSES,check) --allowed_licenses=$(PERMISSIVE)
	$(call LICENSES,save) --save_path dist/licenses
	install -D -m 644 -t dist/licenses/github.com/segmentio/asm "$$(go list -m -f '{{.Dir}}' github.com/segmentio/asm)/LICENSE"
	install -D -m 644 -t dist/licenses/std "$$(go env GOROOT)/LICENSE" "$$(go env GOROOT)/PATENTS"
	cd dist/licenses && find . -type f | LC_ALL=C sort | while read -r f; do \
		printf '%s\n%s\n\n' "$$(printf -- '-%.0s' {1..80})" "$${f#./}"; cat "$$f"; echo; \
	done >../LICENSES.txt

# The version in the form of deb and rpm: of a tag, or one that sorts before all of them.
COMMITTED       = $$(git log -1 --format=%ct 2>/dev/null || echo 0)
PACKAGE_VERSION = $$(echo '$(VERSION)' | sed -E "s/^v//; s/-(alpha|beta|rc)/~\\1/; s/-/./g; \
	/^[0-9]+\\.[0-9]/! s/^/0~$(COMMITTED)./")

.PHONY: packages
packages: sbom $(DEPLOY)/nfpm ## dist/*.deb and dist/*.rpm; the same commit gives the same bytes
	export SOURCE_DATE_EPOCH="$(COMMITTED)" ARCH="$$(go env GOARCH)" PACKAGE_VERSION="$(PACKAGE_VERSION)"; \
	for p in deb rpm; do $(DEPLOY)/nfpm package -f deploy/packages/nfpm.yaml -p $$p -t dist/; done

# An audit that could not reach the data of vulnerabilities fails, with another exit code of govulncheck than the 3 of
# one that has found some.
VULNDB ?= https://vuln.go.dev
.PHONY: audit
audit: $(DEPLOY)/govulncheck ## go mod verify, and known vulnerabilities of code that is called; VULNDB=... is a copy of the data
	go mod verify
	@code=0; $(DEPLOY)/govulncheck -db $(VULNDB) $(SHIPPED) || code=$$?; \
	[ $$code = 0 ] || [ $$code = 3 ] || echo "make audit: NOT CHECKED for vulnerabilities: is $(VULNDB) reachable?" >&2; \
	exit $$code

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
