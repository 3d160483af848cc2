# rsagent: `sudo make demo` shows the main job, `sudo make test` passes all tests; `make help` lists the rest.

# sudo's PATH seldom holds /usr/local/go/bin.
GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null)
FUZZTIME ?= 1m

export PATH := $(patsubst %/,%,$(dir $(GO))):$(PATH)
export GOFLAGS := -buildvcs=false

.DEFAULT_GOAL := build
.PHONY: build test soak demo bench lint cover fuzz install deb rpm clean help FORCE

build: build/rsagent ## the static binary, as build/rsagent

build/rsagent: export VERSION := $(VERSION)
build/rsagent: export COMMIT := $(COMMIT)
build/rsagent: FORCE
	@mkdir -p build
	scripts/build.sh $@

demo: ## the main job, shown in throw-away network namespaces (as root)
	@scripts/need.sh demo
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh build/rsagent

test: ## every test that can run here: unit, namespaces, lab VM (as root)
	@scripts/need.sh test
	@scripts/test.sh

soak: ## and in their long form: every point to be killed at, every host of the crash model, both kernels of the lab (as root)
	@scripts/need.sh test
	@scripts/test.sh soak

bench: build ## the figures, beside a script, ip -batch and bare netlink; also as build/bench.json (as root)
	@scripts/need.sh bench
	@RSAGENT_BIN=$(CURDIR)/build/rsagent $(GO) test -tags bench -count=1 -timeout 30m ./scripts/bench -v -table $(CURDIR)/build/bench.json

lint: ## gofmt, go vet, staticcheck, shellcheck, go mod tidy, govulncheck
	@scripts/lint.sh

cover: ## test coverage of the Go packages, without the lab
	$(GO) test -coverprofile=build/cover.out -coverpkg=./arp,./sysctl,./loopback,./tunnel,./realserver,./cmd/rsagent \
		$$($(GO) list ./... | grep -v /scripts/)
	$(GO) tool cover -func=build/cover.out | tail -1

fuzz: ## each fuzz target for FUZZTIME (1m)
	@scripts/fuzz.sh $(FUZZTIME)

install: build ## binary, units, init script, man page and completions, into $(DESTDIR)$(PREFIX)
	scripts/install.sh build/rsagent '$(DESTDIR)' '$(PREFIX)'

deb rpm: export VERSION := $(VERSION)
deb rpm: export COMMIT := $(COMMIT)
deb rpm: ## packages for amd64 and arm64, in build/packages (SOURCE_DATE_EPOCH: by default of the last commit)
	scripts/package/build.sh $@

clean: ## what was built; the lab's image stays in its cache
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z ]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | expand -t 10
