# On a fresh clone `make demo` and `make test` are all the set-up there is: the first one run makes .venv.
#   make test PYTHON=/path/to/python      uses that interpreter as it is and makes nothing
#   make test BOOTSTRAP=python3.12        makes .venv from that interpreter
#   make test TESTS="tests/house/test_house.py" runs a part; JOBS=4 sets the number of test processes

BOOTSTRAP = python3
VENV = .venv
PYTHON = $(VENV)/bin/python
TORCH = torch==2.13.0
JOBS = 2
TESTS =

READY = $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(VENV)/.ready)
HAS_TORCH = -c 'import torch; assert (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)' 2>/dev/null

N = 1000
SEED = 0
OPTIONS =

.PHONY: demo test test-all lint fuzz gallery prove theory bench clean

demo: $(READY)
	$(PYTHON) -m onepass demo

PYTEST = $(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal --durations=15

# Without the slow tests, and with some cases of large families. A part that is named runs whole: make test TESTS=tests/rules
test: $(READY)
	$(PYTEST) $(or $(TESTS),--quick)

test-all: $(READY)
	$(PYTEST)

# mypy finds packages by folders: build/typed/onepass holds a link to each part, as an installed onepass holds the parts.
TYPED = build/typed/onepass

lint: $(READY)
	$(PYTHON) -m ruff check .
	rm -rf $(TYPED) && mkdir -p $(TYPED)
	ln -s $(addprefix $(CURDIR)/,$(wildcard onepass/*) egraph rules proofs lowering) $(TYPED)
	$(PYTHON) -m mypy

prove: $(READY)
	$(PYTHON) -m onepass prove

# Checked by Rocq, which is installed as Debian's package coq where it is missing (250 MB, needs root or sudo).
theory: $(READY)
	$(PYTHON) -m onepass.proofs.rocq_audit

# Random programs against float64 eager: make fuzz N=10000; each loud outcome is printed as a program.
# make fuzz OPTIONS=--gradients compares the gradients of random inputs, too.
fuzz: $(READY)
	$(PYTHON) -m tests.fuzz --count $(N) --seed $(SEED) --jobs $(JOBS) $(OPTIONS)

# Writes docs/gallery.md from the records in tests/variants; the tests hold it to the code
gallery: $(READY)
	$(PYTHON) -m tests.docs.gallery

bench: $(READY)
	$(PYTHON) -m onepass bench

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A torch that the interpreter already has is kept, because it fits that machine's GPU and may be all there is without
# a network; there, what pip cannot find stays missing, is listed, and onepass itself is still installed.
# Otherwise one release is asked for by number: an open range could bring a newer build with gigabytes of CUDA.
$(VENV)/.ready: pyproject.toml
	@set -e; outer=no; \
	if $(BOOTSTRAP) $(HAS_TORCH); then \
	  outer=yes; echo "making $(VENV) around the torch that $(BOOTSTRAP) has"; \
	  $(BOOTSTRAP) -m venv --system-site-packages $(VENV); \
	else \
	  echo "making $(VENV) with a torch of its own"; \
	  $(BOOTSTRAP) -m venv $(VENV); \
	fi; \
	$(VENV)/bin/python $(HAS_TORCH) || $(VENV)/bin/python -m pip install -q $(TORCH) \
	  || echo "no $(TORCH) here: pip chooses"; \
	$(VENV)/bin/python -m pip install -q -e ".[solvers,test]" || { \
	  test $$outer = yes; \
	  $(VENV)/bin/python -m pip install -q --no-index --no-deps --no-build-isolation -e .; \
	  $(VENV)/bin/python -m pip check || true; \
	}
	@touch $@
