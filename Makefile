# Every target makes what it needs: on a fresh Debian or Ubuntu, python3, python3-venv and make are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
READY  := $(VENV)/.ready

# What `make test` runs, on all processors; for one folder or one test: make test TESTS=tests/unit PYTEST_ARGS="-k journal"
TESTS       ?= tests
PYTEST_ARGS ?=
# Which mutants; for one module: make mutants MUTANTS='gpunode.three_way_merge.*'
MUTANTS     ?=
PYTEST   := $(BIN)/python -m pytest
PARALLEL := -n auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv install uninstall demo test test-e2e test-long mutants measure-doctor check format docs bench wheel collection dist clean

# Where `make install` puts gpunode. Completions go below $(SHARE), where bash-completion, zsh and fish look for them.
PREFIX ?= /opt/gpunode
BINDIR ?= /usr/local/bin
SHARE  ?= /usr/local/share
COMPLETIONS := $(SHARE)/bash-completion/completions/gpunode $(SHARE)/zsh/site-functions/_gpunode \
               $(SHARE)/fish/vendor_completions.d/gpunode.fish

help: ## list the targets
	@echo 'gpunode: turn a bare Linux host into a working NVIDIA GPU node, prove it, and undo it.'
	@echo
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20
	@echo
	@echo 'On a GPU host, after make venv:  sudo $(BIN)/gpunode setup --runtime containerd'

venv: $(READY) ## make .venv with gpunode and its development tools

define CHECK_PYTHON
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
  { echo 'make: $(PYTHON) is missing or older than 3.10; name a newer one, as in: make demo PYTHON=python3.12' >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
  { echo 'make: this Python cannot make environments, its venv module is packaged apart.' >&2; \
    echo '  sudo apt-get install python3-venv' >&2; exit 1; }
endef

# The stamps are younger than pyproject.toml when the environment is as it says.
$(RUNS): pyproject.toml
	$(CHECK_PYTHON)
	@echo 'making $(VENV) (once): gpunode and what it runs with'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(READY): $(RUNS)
	@echo 'adding what the tests and checks need (once)'
	@# pip reads [dependency-groups] from 25.1 on; the one that Python brings is older.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# root runs what stands there, so nobody else may write to it, whoever owns the checkout and whatever the umask is.
install: ## install gpunode for all users: $(PREFIX), $(BINDIR)/gpunode, completions (needs root)
	@[ "$$(id -u)" = 0 ] || { echo 'make install: needs root: sudo make install' >&2; exit 1; }
	@[ ! -e '$(PREFIX)' ] || [ -e '$(PREFIX)/pyvenv.cfg' ] || \
	  { echo 'make install: $(PREFIX) holds something else; name another folder: make install PREFIX=...' >&2; exit 1; }
	$(CHECK_PYTHON)
	@# The former installation stays until the new one is whole, and comes back if it cannot be made.
	@rm -rf '$(PREFIX).former' && { [ ! -e '$(PREFIX)' ] || mv '$(PREFIX)' '$(PREFIX).former'; }
	@umask 022 && $(PYTHON) -m venv '$(PREFIX)' && \
	  PYTHONDONTWRITEBYTECODE=1 '$(PREFIX)/bin/python' -m pip install --quiet --compile --no-cache-dir . || \
	  { rm -rf '$(PREFIX)'; [ ! -e '$(PREFIX).former' ] || mv '$(PREFIX).former' '$(PREFIX)'; exit 1; }
	@rm -rf '$(PREFIX).former'
	@umask 022 && mkdir -p '$(BINDIR)' && ln -sfn '$(PREFIX)/bin/gpunode' '$(BINDIR)/gpunode' && \
	  mkdir -p $(dir $(COMPLETIONS)) && cd gpunode/completions && \
	  install -m 644 gpunode.bash '$(word 1,$(COMPLETIONS))' && install -m 644 _gpunode '$(word 2,$(COMPLETIONS))' && \
	  install -m 644 gpunode.fish '$(word 3,$(COMPLETIONS))'
	@echo "installed: $$('$(BINDIR)/gpunode' --version | head -n 1) in $(PREFIX), as $(BINDIR)/gpunode"

uninstall: ## remove what make install made; what gpunode set up is kept (gpunode remove removes it)
	@[ "$$(id -u)" = 0 ] || { echo 'make uninstall: needs root: sudo make uninstall' >&2; exit 1; }
	@[ ! -e '$(PREFIX)' ] || [ -x '$(PREFIX)/bin/gpunode' ] || \
	  { echo 'make uninstall: $(PREFIX) holds something else, so it was kept' >&2; exit 1; }
	@rm -rf '$(PREFIX)' && rm -f '$(BINDIR)/gpunode' $(COMPLETIONS)
	@echo 'removed: $(PREFIX), $(BINDIR)/gpunode and the completions; kept: what gpunode set up on this node,'
	@echo '  and its journals and backups in /var/lib/gpunode'

demo: $(RUNS) ## rehearse the main job on a captured node: no root, no GPU, nothing is changed
	@$(BIN)/gpunode rehearse containerd

test: $(READY) ## run the tests, without those in chroots and the long ones: the goal is 10 minutes on two cores
	@$(PYTEST) -p no:cacheprovider $(PARALLEL) -m 'not long and not e2e' $(PYTEST_ARGS) $(TESTS)

test-e2e: $(READY) ## run the tests in chroots and containers; fails if the machine cannot run them (needs root)
	GPUNODE_E2E=require $(PYTEST) -m 'e2e and not long' $(PYTEST_ARGS) tests/e2e

test-long: $(READY) ## run all tests, for hours; the results go into docs/verification.md
	HYPOTHESIS_PROFILE=long $(PYTEST) $(PYTEST_ARGS) $(TESTS)

mutants: $(READY) ## change the pure core in thousands of small ways, and list the changes that no test notices
	$(BIN)/python -m pip install --quiet --group mutation
	HYPOTHESIS_PROFILE=mutants $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

measure-doctor: $(READY) ## measure how often doctor is right, on whole reports and with a piece removed; CAUSES=... lists the misses
	$(BIN)/python -m tests.scenarios.measure $(CAUSES)

check: $(READY) ## run ruff, mypy --strict, the import contracts, the generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(PYTEST) -q -p no:cacheprovider tests/test_language.py

format: $(READY) ## format the sources with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## write the generated reference pages and the words of the reports
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.scenarios.words

bench: $(READY) ## print the ratios that design and README promise (an environment of its own under build/)
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

wheel: $(READY) ## build a wheel in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

collection: ## build the Ansible collection gpunode.node as a tarball in dist/ (an ansible-core of its own under build/)
	@[ -x build/ansible/bin/ansible-galaxy ] || { $(PYTHON) -m venv build/ansible && \
	  build/ansible/bin/python -m pip install --quiet --disable-pip-version-check ansible-core; }
	@build/ansible/bin/ansible-galaxy collection build --force --output-path dist recipes/ansible

# Asked before the environment is made, which takes a minute.
DIST_TOOLS := $(if $(shell command -v dpkg-deb),,dpkg) $(if $(shell command -v rpmbuild),,rpm)

dist: ## build a release in dist/: wheel, gpunode.pyz, .deb, .rpm, SBOM and SHA256SUMS (needs dpkg and rpm)
	@[ -z '$(strip $(DIST_TOOLS))' ] || \
	  { echo 'make dist needs more programs; on Debian: sudo apt-get install $(strip $(DIST_TOOLS))' >&2; exit 1; }
	@$(MAKE) --no-print-directory venv
	$(BIN)/python packaging/dist.py dist

clean: ## remove what make has made
	rm -rf $(VENV) build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
