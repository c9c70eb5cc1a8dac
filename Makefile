# Berth's commands. `make help` lists them; a newcomer needs `make up` and `make
# test`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Go and the tools that scripts/install-deps put into the clone take precedence.
export PATH := $(CURDIR)/.tools/go/bin:$(CURDIR)/.tools/bin:$(PATH)

# Paths are relative to this directory, but tests run in their own. (abspath would
# split a path at a space.)
ifneq ($(findstring /,$(BERTH_VMM)),)
override export BERTH_VMM := $(shell realpath -ms -- '$(BERTH_VMM)')
endif
ifdef BERTH_KERNEL
override export BERTH_KERNEL := $(shell realpath -ms -- '$(BERTH_KERNEL)')
endif

# How everything is compiled here: programs, tests, linter, packages. They share
# the build cache, except tests with -race, which compile every package with the
# race detector and need C. gin's MessagePack codec is not used, and alone took
# most of a minute and 0.9 GB.
FLAGS := -tags=nomsgpack -trimpath
export GOFLAGS := $(strip $(filter-out $(FLAGS),$(shell go env GOFLAGS 2>/dev/null)) $(FLAGS))
export CGO_ENABLED := 0

# Not controlplane/api/v…, which are the versions of the client's module.
VERSION ?= $(shell git describe --tags --match 'v*' --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

STAMPED := controlplane hostd berth
# These two are inputs of every template and have no version stamp: a commit that
# does not change them must not rebuild every template.
UNSTAMPED := guestd chvemu

# The packages of both modules; ./... does not include those of controlplane/api.
ALL := github.com/berth-cloud/berth/...
# Tests that need root skip themselves unless BERTH_TEST_ROOT=1. Tests send SIGINT
# to programs that they start. In the background of a script they would inherit
# that SIGINT is ignored, so its default is restored.
GO := env --default-signal=INT,QUIT go
GO_RACE := env --default-signal=INT,QUIT CGO_ENABLED=1 go
TEST := test -timeout 40m
# Half of the packages spend most of their time waiting for elections and
# timeouts, so more run than there are CPUs. `make lint` does the vetting. Without
# debug information a test links in half the time.
UNIT_TEST := $(GO_RACE) $(TEST) -race -vet=off -ldflags='-s -w' -p $(shell echo $$((1 + $$(nproc))))
# The longest come first, so that they do not run alone at the end.
UNIT = ./hostd ./hostd/image ./vmm/conformance ./hostd/snapshot ./hostd/server ./raftstore ./controlplane/fork \
  $$(go list $(ALL) | grep -v /e2e)
# A guest has one CPU, so one more of the end-to-end tests that share the stack
# runs at once than there are CPUs.
E2E_TEST := $(GO) $(TEST) -vet=off -count=1 -parallel $(shell echo $$((1 + $$(nproc))))
# Unit tests need only base: the other templates are built in the CPU time that
# these tests leave.
E2E_TEMPLATES := base,python,node,code-interpreter

.PHONY: help
help: ## list these commands
	@printf 'Usage: make <command>\n\n'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 15 | sed 's/^/  /'
	@printf '\nSettings (environment): BERTH_VMM, BERTH_KERNEL, BERTH_PORT_BASE. See README.md.\n'

.PHONY: up
up: ## start a complete Berth on this machine and run a first command in a first sandbox (root)
	@$(MAKE) --no-print-directory ready PREFLIGHT=--ports
	@scripts/install-deps up
	@[[ -x bin/devstack ]] || echo "Building Berth (once, a few minutes) …"
	@$(MAKE) --no-print-directory build
	@exec bin/devstack up

.PHONY: down
down: ## stop everything that `make up` started, also after a crash (root)
	@[[ -x bin/devstack ]] || { echo "nothing to stop: bin/devstack was never built"; exit 0; }; exec bin/devstack down

# What must fail fails before anything slow begins.
.PHONY: ready
ready:
	@scripts/install-deps go
	@scripts/place
	@go run -buildvcs=false ./scripts/preflight $(PREFLIGHT)

.PHONY: build
build: ## build every program into bin/
	@scripts/install-deps go
	@scripts/place
	@scripts/build '-s -w' $(addprefix ./cmd/,$(UNSTAMPED))
	@scripts/build '$(LDFLAGS)' $(addprefix ./cmd/,$(STAMPED)) ./scripts/devstack

.PHONY: test
test: ## every test: unit with -race, conformance, end-to-end (root; about 28 minutes on 2 cores)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps test
	@$(MAKE) --no-print-directory build
	@scripts/beside scripts/phase "compile the unit tests" bash -c 'CGO_ENABLED=1 go list -race -test -export $(UNIT) >/dev/null' \
	  -- scripts/phase "base template" bin/devstack prepare
	@scripts/beside scripts/phase "other templates" BERTH_TIME_SCALE=$${BERTH_TIME_SCALE:-4} nice -n 19 bin/devstack prepare --template $(E2E_TEMPLATES) \
	  -- scripts/phase unit BERTH_TEST_ROOT=1 $(UNIT_TEST) $(UNIT)
	@scripts/phase e2e BERTH_TEST_ROOT=1 $(E2E_TEST) ./e2e/...

.PHONY: unit
unit: ## the tests that need neither root nor network, with -race if there is a C compiler
	@scripts/install-deps go
	@$(if $(shell command -v gcc),$(GO_RACE) $(TEST) -race,$(GO) $(TEST)) $(ALL)

.PHONY: conformance
conformance: ## the VMM conformance suite against BERTH_VMM (default: chvemu; root)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps up
	@$(MAKE) --no-print-directory build
	@bin/devstack prepare --kernel-only
	@BERTH_TEST_ROOT=1 $(GO) $(TEST) -count=1 -v ./vmm/conformance/

.PHONY: e2e
e2e: ## only the end-to-end tests: real processes, real guests, injected failures (root)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps test
	@$(MAKE) --no-print-directory build
	@bin/devstack prepare --template $(E2E_TEMPLATES)
	@BERTH_TEST_ROOT=1 $(E2E_TEST) -v ./e2e/...

.PHONY: clients
clients: ## regenerate the generated parts of the Python and TypeScript clients
	@scripts/install-deps go
	@go run ./clients/generate

.PHONY: clients-test
clients-test: ## the clients' own tests; with BERTH_URL and BERTH_TOKEN set, against that Berth too
	@scripts/install-deps clients
	@scripts/clients-test

.PHONY: bench
bench: ## run the benchmarks, print a table and write bench.json (root; about 9 minutes)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps up
	@$(MAKE) --no-print-directory build
	@scripts/build '$(LDFLAGS)' ./scripts/bench
	@bin/devstack prepare
	@exec bin/bench -o bench.json

.PHONY: soak
soak: ## 30 minutes of random work under injected faults (root); SOAK="-for 5m" for less
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps soak
	@$(MAKE) --no-print-directory build
	@scripts/build '$(LDFLAGS)' ./scripts/soak
	@bin/devstack prepare
	@exec bin/soak $(SOAK)

.PHONY: nested
nested: ## the suite and every operation on the real Cloud Hypervisor (BERTH_VMM), in an emulated machine (root; half an hour to hours); NESTED="-parts suite -run Reboot" for less
	@scripts/install-deps up
	@scripts/place
	@scripts/build '-s -w' ./scripts/nested
	@bin/nested check
	@$(MAKE) --no-print-directory build
	@scripts/build '-s -w' ./vmm/conformance/probe
	@go test -c -o bin/conformance.test ./vmm/conformance/
	@env -u BERTH_VMM bin/devstack prepare
	@exec nice -n 5 bin/nested $(NESTED)

.PHONY: lint
lint: ## go vet and golangci-lint, with the import rules
	@scripts/install-deps lint
	@for module in . controlplane/api; do (cd $$module && go vet ./... && golangci-lint run ./...); done

.PHONY: package
package: build ## build the Debian packages berth-controlplane and berth-hostd into dist/
	@scripts/install-deps package
	@scripts/packaging/build $(VERSION)

.PHONY: clean
clean: ## remove build results and the caches of `make up` (kernel, templates)
	@[[ ! -e .berth/run ]] || { echo "a stack may be running: make down first"; exit 1; }
	@rm -rf dist bench.json
	@scripts/place remove
