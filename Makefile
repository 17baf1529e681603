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
TESTRUN := bin/testrun

bin/testrun: $(wildcard internal/testrun/*.go)
	$(STATIC) go build -o $@ ./internal/testrun

# The packages whose tests take longest begin first, so that no core is idle at the end. Tests are linked without DWARF,
# which takes a quarter of the time. The race detector takes three times as much processor time.
LONGEST := ./streams/kafka ./cmd/app ./sinks/clickhouse ./streams/storage/s3
RACE    ?=

.PHONY: test
test: $(TESTRUN) ## every package, at most five minutes, no daemon; RACE=1 with the race detector, as CI does: needs a C compiler
	$(if $(RACE),,$(STATIC)) $(TESTRUN) run bin/test.json $(if $(RACE),-race) -vet=off -shuffle=on -ldflags=-w $(LONGEST) ./...
	cd bench && $(if $(RACE),,$(STATIC)) go test $(if $(RACE),-race) -vet=off -shuffle=on -ldflags=-w ./...

LOG ?= bin/test.json
.PHONY: slow
slow: $(TESTRUN) ## the slowest tests and packages of the last "make test"; LOG=bin/integration.json of the last "make integration"
	@$(TESTRUN) slow $(LOG)

FLAKY    ?= 30m
PACKAGES ?= ./...
.PHONY: flaky
flaky: $(TESTRUN) ## packages again and again beside busy loops, for FLAKY=30m; goes on where it stopped; PACKAGES=./... picks
	$(TESTRUN) flaky bin/flaky $(FLAKY) $(PACKAGES)

# The tests of real servers, and whole every package that has tests of this level, without the race detector.
# INTEGRATION=short is what CI runs, some twelve minutes: of these packages only the tests of this level. Package need
# says what belongs to it.
INTEGRATION ?= full
.PHONY: integration
integration: servers $(DEPLOY)/nfpm $(TESTRUN) ## real Kafka, ClickHouse, S3, kills, many rows; INTEGRATION=short; wants a JDK and Maven, or Docker
	$(call REAL,$(INTEGRATION),70m)

.PHONY: soak
soak: export MILLRACE_SOAK = 1
soak: servers $(DEPLOY)/nfpm $(TESTRUN) ## the same for longer
	$(call REAL,full,180m)

REAL = tests=$$($(TESTRUN) levels $(1)); MILLRACE_INTEGRATION=$(if $(filter short,$(1)),short,1) $(STATIC) \
	$(TESTRUN) run bin/integration.json -vet=off -count=1 -parallel 4 -timeout $(2) $$tests -rapid.nofailfile

.PHONY: soak-sink
soak-sink: $(TESTRUN) ## 60 SIGKILLs of sink and ClickHouse over 300,000 records, and verify; the other faults of sinks with more
	MILLRACE_SOAK=1 MILLRACE_INTEGRATION=1 $(STATIC) $(TESTRUN) run bin/integration.json -vet=off -count=1 -timeout 60m \
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
lint: format-check $(TOOLS)/buf $(TOOLS)/golangci-lint lint-wire ## gofmt, buf, golangci-lint, and that generated code is up to date
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

.PHONY: generate
generate: $(TOOLS)/buf ## the Go of the protos, and the documents made of code
	cd schemas && buf generate
	go test ./schemas ./cmd/config ./streams/kafka/access -update

# Heavy tools have a module of their own; the first build takes some minutes.
$(TOOLS)/%: tools/go.mod tools/go.sum
	cd tools && $(STATIC) go build -o $(TOOLS)/ tool
	@touch $(TOOLS)/*

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

# What images and packages contain; internal/licences checks these.
SHIPPED := ./cmd/millrace ./cmd/millrace-clickhouse
# Tools of packages and of the supply chain, in a module of their own; the first build takes some minutes.
$(DEPLOY)/%: tools/deploy/go.mod tools/deploy/go.sum
	cd tools/deploy && $(STATIC) go build -o $(CURDIR)/$(DEPLOY)/ tool
	@touch $(DEPLOY)/*

.PHONY: sbom
sbom: build $(DEPLOY)/cyclonedx-gomod ## dist/*.cdx.json, what the programs contain (CycloneDX), and dist/LICENSES.txt
	@mkdir -p dist
	for p in $(notdir $(SHIPPED)); do \
		$(DEPLOY)/cyclonedx-gomod bin -json -std -noserial -version $(VERSION) -output dist/$$p.cdx.json bin/$$p; \
	done
	go run ./internal/licences dist $(SHIPPED)

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
