# A bare `make` lists the targets. Those marked with (root) make network namespaces.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# sudo often drops the PATH that go is in.
GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
TOOL    := $(GO) tool -modfile=.ci/tools.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
IMAGE   ?= localhost/gaggle:$(VERSION)
PKG     ?= ./...
FUZZTIME ?= 30s
CYCLES  ?= 1000
KEEP    ?=
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/gaggle and bin/gaggle-cni
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/gaggle ./cmd/gaggle-cni

.PHONY: demo
demo: ## show a whole network at work on this machine (root); KEEP=1 keeps it
	@mkdir -p bin && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/gaggle ./cmd/gaggle-cni ./integration/demo
	@bin/demo -bin bin $(if $(KEEP),-keep)

.PHONY: packages
packages: ## install what the tests need from the distribution (root)
	@.ci/packages

.PHONY: test
test: packages ## run every test, with the race detector (root)
	$(GO) test -race -timeout 25m $(PKG)

.PHONY: unit
unit: ## run the tests that need neither root nor other programs
	$(GO) test -race $$($(GO) list $(PKG) | grep -v /integration)

.PHONY: fuzz
fuzz: ## fuzz every parser of outside input, FUZZTIME each
	@.ci/fuzz '$(GO)' $(FUZZTIME)

.PHONY: bench
bench: packages ## measure ADD and DEL beside the reference plugins, memory and idle time (root)
	$(GO) test -run '^$$' -bench . -benchmem ./ipam ./node ./node/store ./node/datapath
	$(GO) run ./integration/bench

.PHONY: campaign
campaign: packages ## kill plugin and node process at random, CYCLES times (root)
	$(GO) test -v -timeout 60m -run 'TestCleanCycles|TestRandomKills' ./integration -cycles $(CYCLES)

.PHONY: lint
lint: ## run the linters and look for dead code
	$(TOOL) golangci-lint run $(PKG)
	@dead=$$($(TOOL) deadcode -test ./...) && [ -z "$$dead" ] || { echo "$$dead"; exit 1; }

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w $$(git ls-files '*.go')

.PHONY: kube
kube: packages ## run the tests on a real Kubernetes, which is built the first time (root)
	GAGGLE_KUBE=1 $(GO) test -v -timeout 40m ./integration/kube/...
	GAGGLE_KUBE=1 $(GO) test -timeout 5m ./node/kube

.PHONY: generate
generate: ## make the CustomResourceDefinition and the plain manifest anew
	$(GO) test ./node/api/... -update
	$(GO) test ./deploy -update

.PHONY: image
image: ## build the container image as dist/gaggle.tar, without a container engine
	@rm -rf dist/image
	@for arch in amd64 arm64; do \
		install -D -m 644 LICENSE dist/image/linux-$$arch/LICENSE && \
		GOARCH=$$arch CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o dist/image/linux-$$arch/ ./cmd/gaggle ./cmd/gaggle-cni \
			|| exit 1; \
	done
	@$(GO) run ./deploy/ocitar -o dist/gaggle.tar -name '$(IMAGE)' -entrypoint /gaggle -cmd node \
		-label 'org.opencontainers.image.version=$(VERSION)' -label org.opencontainers.image.licenses=Apache-2.0 \
		linux/amd64=dist/image/linux-amd64 linux/arm64=dist/image/linux-arm64
	@echo "dist/gaggle.tar holds $(IMAGE): ctr -n k8s.io images import dist/gaggle.tar, or docker load -i dist/gaggle.tar"

.PHONY: docker-image
docker-image: ## build the same image with docker
	docker build --build-arg VERSION=$(VERSION) -t '$(IMAGE)' .

.PHONY: vuln
vuln: ## look up known vulnerabilities (needs a network)
	$(TOOL) govulncheck ./...

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
