# On a fresh clone `make demo` and `make test` are all the set-up there is: the first one run makes .venv. `make` alone,
# or `make help`, lists the targets and the variables.

BOOTSTRAP = python3
DEFAULT_TORCH = torch==2.13.0
TORCH = $(DEFAULT_TORCH)
# Each torch that is asked for has a folder of its own, so none replaces another's environment.
VENV := .venv$(if $(filter-out $(DEFAULT_TORCH),$(TORCH)),-$(shell echo '$(TORCH)' | sed 's/==/-/; s/[^[:alnum:].-]/_/g'))
PYTHON = $(VENV)/bin/python
JOBS = 2
TESTS =

# What a target needs: onepass and the packages of its quick start (USABLE), or those of tests and documents, too (READY).
USABLE = $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(VENV)/.usable)
READY = $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(VENV)/.ready)
# Whether an interpreter has a torch that will do: any known one, or the one that is asked for by number.
ASKED = $(patsubst torch==%,%,$(firstword $(filter-out $(DEFAULT_TORCH),$(TORCH))))
HAS_TORCH = -c 'import torch; have, asked = torch.__version__.split("+")[0], "$(ASKED)".split("+")[0]; \
  assert have == asked if asked else tuple(map(int, have.split(".")[:2])) >= (2, 11)' 2>/dev/null

# pip would compile each file to bytecode, 15 seconds for torch alone; a first import compiles only the files it needs.
# Bytecode is kept, whatever the environment says, because tests start many processes.
PIP_INSTALL = -m pip install -q --no-compile
export PYTHONDONTWRITEBYTECODE =

N = 1000
SEED = 0
OPTIONS =

.PHONY: help demo test test-all lint fuzz gallery refusals laws derivation measurements schema prove theory docs bench clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  BOOTSTRAP=python3.12    makes the environment from that interpreter"
	@echo "  TORCH=torch==2.15.0     that release, in an environment of its own: .venv-torch-2.15.0"
	@echo "  PYTHON=/path/to/python  uses that interpreter as it is, and makes nothing"
	@echo "  TESTS=tests/rules       runs that part, with its slow tests; JOBS=4 processes"
	@echo "  N=10000 SEED=1          of make fuzz; OPTIONS=--gradients compares gradients, too"

demo: $(USABLE) ## a small GPT-like block, fused: what happened, how right, how fast
	$(PYTHON) -m onepass demo

PYTEST = $(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal --durations=15

# Without the slow tests, and with some cases of large families. A part that is named runs whole: make test TESTS=tests/rules
test: $(READY) ## the tests but the slow ones, about 14 minutes on two cores
	$(PYTEST) $(or $(TESTS),--quick)

test-all: $(READY) ## all tests, about 2.5 hours on two cores
	$(PYTEST)

# mypy finds packages by folders: build/typed/onepass holds a link to each part, as an installed onepass holds the parts.
TYPED = build/typed/onepass

lint: $(READY) ## ruff and mypy
	$(PYTHON) -m ruff check .
	rm -rf $(TYPED) && mkdir -p $(TYPED)
	ln -s $(addprefix $(CURDIR)/,$(wildcard onepass/*) egraph rules proofs lowering) $(TYPED)
	$(PYTHON) -m mypy

refusals: $(READY) ## writes docs/refusals.md
	$(PYTHON) -m tests.docs.refusals

measurements: $(READY) ## writes the tables of docs/measurements.md
	$(PYTHON) -m tests.docs.measurements

schema: $(READY) ## writes docs/report.schema.json
	$(PYTHON) -m tests.docs.schema

laws: $(READY) ## writes docs/laws.md
	$(PYTHON) -m tests.docs.laws

derivation: $(READY) ## writes docs/derivation.md
	$(PYTHON) -m tests.docs.derivation

prove: $(READY) ## proves the laws again, and writes proofs/ledger.toml
	$(PYTHON) -m onepass prove

# Checked by Rocq, which is installed as Debian's package coq where it is missing (250 MB, needs root or sudo).
theory: $(READY) ## checks theorems and laws by Rocq; OPTIONS=--quick: in half of the time
	$(PYTHON) -m onepass.proofs.rocq_audit $(OPTIONS)

# Random programs against float64 eager: make fuzz N=10000; each loud outcome is printed as a program.
# make fuzz OPTIONS=--gradients compares the gradients of random inputs, too.
fuzz: $(READY) ## random programs against float64 eager
	$(PYTHON) -m tests.fuzz --count $(N) --seed $(SEED) --jobs $(JOBS) $(OPTIONS)

# Writes docs/gallery.md from the records in tests/variants; the tests hold it to the code
gallery: $(READY) ## writes docs/gallery.md
	$(PYTHON) -m tests.docs.gallery

docs: $(READY) ## the documentation site, to read at build/site/index.html
	$(PYTHON) -c "import material" 2>/dev/null || $(PYTHON) $(PIP_INSTALL) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build -q
	@echo "written: build/site/index.html"

bench: $(READY) ## the figures of this machine
	$(PYTHON) -m onepass bench

clean: ## removes environments, builds and caches
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A torch that the interpreter already has is kept, because it fits that machine's GPU and may be all there is without
# a network; there, what pip cannot find stays missing, is listed, and onepass itself is still installed.
# Otherwise one release is asked for by number: an open range could bring a newer build with gigabytes of CUDA.
$(VENV)/.usable: pyproject.toml
	@set -e; outer=no; \
	if $(BOOTSTRAP) $(HAS_TORCH); then \
	  outer=yes; echo "making $(VENV) around the torch that $(BOOTSTRAP) has"; \
	  $(BOOTSTRAP) -m venv --system-site-packages $(VENV); \
	else \
	  echo "making $(VENV) with a torch of its own"; \
	  $(BOOTSTRAP) -m venv $(VENV); \
	fi; \
	$(VENV)/bin/python $(HAS_TORCH) || $(VENV)/bin/python $(PIP_INSTALL) $(foreach word,$(TORCH),'$(word)') \
	  || { test -z "$(ASKED)"; echo "no $(TORCH) here: pip chooses"; }; \
	$(VENV)/bin/python $(PIP_INSTALL) -e . 'transformers>=5' || { \
	  test $$outer = yes; \
	  $(VENV)/bin/python $(PIP_INSTALL) --no-index --no-deps --no-build-isolation -e .; \
	}
	@touch $@

$(VENV)/.ready: $(VENV)/.usable
	@$(VENV)/bin/python $(PIP_INSTALL) -e ".[test]" || { \
	  grep -q 'system-site-packages = true' $(VENV)/pyvenv.cfg; \
	  $(VENV)/bin/python -m pip check || true; \
	}
	@touch $@
