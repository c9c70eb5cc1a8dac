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
# These are inputs of templates and have no version stamp: a commit that
# does not change them must not rebuild every template.
UNSTAMPED := guestd guestpg guestapp chvemu

# The packages of both modules; ./... does not include those of controlplane/api.
ALL := github.com/berth-cloud/berth/...
# Tests send SIGINT to programs that they start. In the background of a script they
# would inherit that SIGINT is ignored, so its default is restored.
GO := env --default-signal=INT,QUIT go
TEST := test -timeout 60m
# Without debug information a test links in half the time.
FAST := -ldflags='-s -w'

# What changes what all programs share (cgroups, links, nftables) is tested with nothing
# beside it. Mounts and namespaces that a test has for itself may be beside others.
KERNEL := ./netfab/nft ./netfab/slot ./netfab/tap ./vmm ./vmm/chvemu ./hostd ./hostd/cgroup ./hostd/guard ./hostd/lease \
  ./guest/identity ./guest/proc ./scripts/machines
# The other packages without guests. Most of their time they wait, for elections and
# time limits of their own, so more run at once than there are CPUs. The longest come
# first, so that they do not run alone at the end.
UNIT = ./controlplane/app ./guest/pg/agent ./controlplane ./hostd/server ./hostd/database ./controlplane/database ./hostd/pgarchive ./controlplane/sandbox \
  $$(go list $(ALL) | grep -v -x -F -f <(go list $(KERNEL) ./e2e/... ./hostd/image ./vmm/conformance))
AT_ONCE := $(shell echo $$((2 * $$(nproc))))

# The templates of the tests on real guests. Those of the languages take minutes each
# under emulation and are built by `make e2e` alone.
TEMPLATES := base,app,postgres-16
LANGUAGES := python,node,code-interpreter
# Templates that are built beside tests have the CPU time that these leave.
BESIDE := BERTH_TIME_SCALE=$${BERTH_TIME_SCALE:-4} nice -n 19
# Limits on machines and guests suit a machine that does nothing else. (Tests without
# guests await the ends of such limits, and do not stretch them.)
BUSY := BERTH_TIME_SCALE=$${BERTH_TIME_SCALE:-4}
# A guest has one CPU, so one more of the end-to-end tests that share the stack
# runs at once than there are CPUs.
GUESTS_AT_ONCE := $(shell echo $$((1 + $$(nproc))))

.PHONY: help
help: ## list these commands
	@printf 'Usage: make <command>\n\n'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 15 | sed 's/^/  /'
	@printf '\nSettings (environment): BERTH_VMM, BERTH_KERNEL, BERTH_PORT_BASE, BERTH_DEV_ADDRESS. See README.md.\n'

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
	@((EUID == 0)) || { echo 'make: this needs root (network namespaces, taps, cgroups): run it with sudo' >&2; exit 1; }
	@[[ $$(uname -m) == x86_64 ]] || { echo "make: Berth's guests are x86-64 and this machine is $$(uname -m): Berth cannot run here" >&2; exit 1; }
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
test: ## the gate: format, vet, import rules, quick tests, the kernel's parts, a first hour on real guests (root; 10 to 20 minutes)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps gate
	@scripts/phase build $(MAKE) --no-print-directory build
	@scripts/beside scripts/phase templates $(BESIDE) bin/devstack prepare --template $(TEMPLATES) \
	  -- $(MAKE) --no-print-directory test-beside-templates
	@scripts/phase kernel BERTH_TEST_ROOT=1 scripts/run-tests kernel -short -timeout 10m -p 1 $(FAST) $(KERNEL)
	@scripts/phase "first hour" $(BUSY) BERTH_TEST_GUESTS=1 scripts/run-tests smoke -count=1 -timeout 20m -run '^TestFirstHour$$' $(FAST) ./e2e
	@scripts/slowest 20 unit kernel smoke

.PHONY: test-beside-templates
test-beside-templates:
	@scripts/phase check scripts/check
	@scripts/phase unit BERTH_TEST_ROOT=1 scripts/run-tests unit -short -timeout 10m -p $(AT_ONCE) $(FAST) $(UNIT)

.PHONY: test-all
test-all: ## every test, with -race, all real guests, faults, servers, clients: in parts, one after the other (root; hours); PART="raft e2e" for some
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps test
	@$(MAKE) --no-print-directory build
	@scripts/test-all $(PART)

.PHONY: unit
unit: ## the quick tests that need neither root nor network
	@scripts/install-deps go
	@$(GO) $(TEST) -short $(ALL)

.PHONY: conformance
conformance: ## the VMM conformance suite against BERTH_VMM (default: chvemu; root)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps up
	@$(MAKE) --no-print-directory build
	@bin/devstack prepare --kernel-only
	@BERTH_TEST_GUESTS=1 $(GO) $(TEST) -count=1 -v ./vmm/conformance/

.PHONY: e2e
e2e: ## only the end-to-end tests, with every language's: real processes, real guests, injected failures (root)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps test
	@$(MAKE) --no-print-directory build
	@bin/devstack prepare --template $(TEMPLATES),$(LANGUAGES)
	@BERTH_TEST_ROOT=1 BERTH_TEST_GUESTS=1 BERTH_TEST_LENGTH=1 $(GO) $(TEST) -vet=off -count=1 -parallel $(GUESTS_AT_ONCE) -v ./e2e/...

.PHONY: clients
clients: ## regenerate the generated parts of the Python and TypeScript clients
	@scripts/install-deps go
	@go run ./clients/generate

.PHONY: clients-test
clients-test: ## the clients' own tests; with BERTH_URL and BERTH_TOKEN set, against that Berth too
	@scripts/install-deps clients
	@scripts/clients-test

.PHONY: drivers
drivers: ## try the usual PostgreSQL drivers; with BERTH_URL and BERTH_TOKEN set, at a database of that Berth
	@scripts/install-deps drivers
	@BERTH_DRIVERS=1 $(GO) $(TEST) -count=1 -v ./e2e/drivers

.PHONY: bench
bench: ## run the benchmarks, print a table and write bench.json (root; about 9 minutes, and half an hour or more for databases, their archives and apps)
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps bench
	@$(MAKE) --no-print-directory build
	@scripts/build '$(LDFLAGS)' ./scripts/bench
	@bin/devstack prepare
	@exec bin/bench -o bench.json

.PHONY: frameworks
frameworks: ## deploy an app of each usual framework on the running Berth of BERTH_URL and BERTH_TOKEN
	@BERTH_FRAMEWORKS=$${BERTH_FRAMEWORKS:-all} $(GO) test -timeout 5h -count=1 -v ./e2e/frameworks

.PHONY: simulate
simulate: ## three replicas with a thousand simulated hosts, 100,000 sandboxes and 1,000 templates (about 15 minutes, 8 GB); SIMULATE="-hosts 100 -sandboxes 5000" for less
	@scripts/install-deps go
	@scripts/place
	@scripts/build '$(LDFLAGS)' ./cmd/controlplane ./scripts/simulate
	@exec bin/simulate $(SIMULATE)

.PHONY: soak
soak: ## 30 minutes of random work under injected faults (root); SOAK="-for 5m" for less, SOAK="-only databases" for databases
	@$(MAKE) --no-print-directory ready
	@scripts/install-deps soak
	@$(MAKE) --no-print-directory build
	@scripts/build '$(LDFLAGS)' ./scripts/soak
	@bin/devstack prepare
	@exec bin/soak $(SOAK)

.PHONY: nested
nested: ## the suite and every operation of a sandbox on the real Cloud Hypervisor (BERTH_VMM), in an emulated machine (root; half an hour to hours); NESTED="-parts suite -run Reboot" for less
	@scripts/install-deps up
	@scripts/place
	@scripts/build '-s -w' ./scripts/nested
	@bin/nested check
	@$(MAKE) --no-print-directory build
	@scripts/build '-s -w' ./vmm/conformance/probe
	@go test -c -o bin/conformance.test ./vmm/conformance/
	@env -u BERTH_VMM bin/devstack prepare --template base,postgres-16,app
	@exec nice -n 5 bin/nested $(NESTED)

.PHONY: lint
lint: ## go vet and the whole golangci-lint; `make test` only checks format, vet and import rules
	@scripts/install-deps lint
	@for module in . controlplane/api; do (cd $$module && go vet ./... && golangci-lint run ./...); done

# The programs of each platform. Guests, their kernel and both engines are x86-64's, so
# a host is.
RELEASED := linux-amd64:controlplane,hostd,berth linux-arm64:controlplane,berth darwin-amd64:berth darwin-arm64:berth

.PHONY: release-build
release-build:
	@scripts/install-deps go
	@rm -rf dist
	@for target in $(RELEASED); do \
	  platform=$${target%%:*} programs=$${target#*:}; \
	  GOOS=$${platform%-*} GOARCH=$${platform#*-} BERTH_BUILD_DIR=dist/build/$$platform \
	    scripts/build '$(LDFLAGS)' $$(printf './cmd/%s ' $${programs//,/ }); \
	done
	@GOOS=linux GOARCH=amd64 BERTH_BUILD_DIR=dist/build/linux-amd64 scripts/build '-s -w' $(addprefix ./cmd/,$(UNSTAMPED))

# The time in packages and archives is the commit's, so that they can be made again.
EPOCH = $$(git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: packages
packages: release-build ## build the .deb and .rpm packages of all parts into dist/
	@scripts/install-deps packages
	@SOURCE_DATE_EPOCH=$(EPOCH) scripts/packaging/build $(VERSION)

.PHONY: release
release: packages ## packages, archives of berth, bills of materials and checksums in dist/; a commit always makes the same bytes
	@go run ./scripts/release -epoch $(EPOCH) -version $(VERSION) scripts/install.sh
	@cat dist/SHA256SUMS

.PHONY: systemd
systemd: ## machines under systemd, emulated: packages, three replicas, a host, the leader's machine killed (root; 15 to 40 minutes)
	@scripts/install-deps systemd
	@scripts/place
	@$(MAKE) --no-print-directory packages
	@BERTH_HOSTD=dist/build/linux-amd64/hostd scripts/fetch-kernel .berth/kernel
	@scripts/build '-s -w' ./scripts/machines
	@exec bin/machines $(MACHINES)

.PHONY: clean
clean: ## remove build results and the caches of `make up` (kernel, templates)
	@[[ ! -e .berth/run ]] && { [[ ! -e .berth/run.lock ]] || flock -n .berth/run.lock true; } || { echo "a stack may be running: make down first"; exit 1; }
	@rm -rf dist bench.json
	@scripts/place remove
