# `make` pulls the reference campaign and writes its report, `make toy` runs everything from raw text at toy size, and
# `make test` runs the checks. Each sets up .venv first.
# To use your own environment (conda, a container): make VENV=$CONDA_PREFIX
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.soma-installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Everything is checked by hash. For a build of torch whose hash requirements-torch.txt does not have: make TORCH=torch==2.13.0
TORCH ?= --require-hashes -r requirements-torch.txt -c requirements-torch.lock

.PHONY: all toy report setup test lint docs docs-site demo kernel lock snapshot clean
.DEFAULT_GOAL := all

# Tell the user where the outputs are.
define ways
@echo
@echo "report   results/$(1)/report.html"
@echo "tables   results/$(1)/tables/    (claims.md first)"
@echo "figures  results/$(1)/figures/"
endef

all: setup
	$(BIN)/dvc pull
	$(MAKE) report
	$(call ways,small)
	@echo "results  README.md, docs/results.md"

toy: setup
	$(BIN)/snakemake --cores all --configfile config/toy.yaml
	$(call ways,toy)
	@echo "page     results/toy/index.html  (read this first)"

report: setup  # report of the reference campaign, of the products that are there: Snakemake would fail at a missing one
	$(BIN)/snakemake $(wildcard results/small/tables/*.html results/small/figures/*.svg) \
	  --quiet all --cores 1 --report results/small/report.html
	$(BIN)/python -m soma.workflow.report results/small/report.html

setup: $(STAMP)

# Install torch first, by its exact version: the same pin is a CPU or a CUDA build, which a hash lock cannot express.
# A CUDA build of torch brings its own triton; elsewhere the tests of the kernels need one, in interpreter mode.
# Compile bytecode at the end, on all cores, because pip would use only one.
$(STAMP): requirements-pip.txt requirements-torch.txt requirements-torch.lock requirements.lock requirements-triton.txt pyproject.toml setup.py $(wildcard src/soma/forward/csrc/* src/soma/inference/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements-pip.txt
	$(INSTALL) $(TORCH)
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(BIN)/python -c "import triton" 2> /dev/null || $(INSTALL) --no-deps --require-hashes -r requirements-triton.txt
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # torch contains a file that needs Python 3.12
	touch $@

test: setup lint
	$(BIN)/python -m pytest -n auto --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy

docs: setup  # config/README.md, the JSON schema, docs/architecture.md, and the pages that run on or quote results/small
	$(BIN)/python -m soma.config.docs
	$(BIN)/python docs/architecture.py
	$(BIN)/python docs/tutorial.py
	$(BIN)/python -m soma.report.pages

docs-site: setup  # build/site/index.html: the guides and the reference of the package; nothing is fetched once its builder is here
	$(BIN)/python -c "import pdoc" 2> /dev/null || $(INSTALL) --require-hashes -r requirements-docs.lock
	$(BIN)/python docs/site/build.py build/site

demo: setup  # results/small/demo.html: the best model of the reference campaign, in a browser
	$(BIN)/dvc pull --quiet
	$(BIN)/soma demo --campaign results/small --output results/small/demo.html

kernel: setup  # the inference kernel as WebAssembly; needs `pip install --group demo`
	$(BIN)/python -m soma.web.kernel

lock:  # needs uv; run it after you change the dependencies in pyproject.toml
	uv pip compile pyproject.toml -c requirements-torch.txt -o requirements.lock
	grep ^torch== requirements-torch.txt | tr -d '\\' | uv pip compile --no-config - -c requirements.lock --universal --no-annotate \
	  --generate-hashes --no-emit-package torch --python-version 3.11 --custom-compile-command "make lock" -o requirements-torch.lock
	uv pip compile --no-config --group docs -c requirements.lock --universal --no-annotate --generate-hashes --python-version 3.11 \
	  --custom-compile-command "make lock" -o requirements-docs.lock

snapshot: setup  # record the finished campaign of dvc.yaml in dvc.lock; fails if anything in it is out of date
	$(BIN)/soma snapshot

clean:
	rm -rf results/toy
