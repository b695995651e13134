# `make` pulls the reference campaign, makes its tables and figures again, replays a run and writes its report; `make toy`
# runs everything from raw text at toy size, and `make test` runs the checks. Each sets up .venv first.
# To use your own environment (conda, a container): make VENV=$CONDA_PREFIX
# To install with uv, which is faster: make INSTALL="uv --no-config pip install --quiet --python .venv". There is no `uv sync`: its
# lock would be a second one beside requirements*, with the addresses of one registry, and for one build of torch.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.soma-installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Everything is checked by hash. For a build of torch whose hash requirements-torch.txt does not have: make TORCH=torch==2.13.0
TORCH ?= --require-hashes -r requirements-torch.txt -c requirements-torch.lock

# The campaign that `make` shows, its overlays, and a run to replay. For one of your own, which git and DVC hold:
# make CAMPAIGN=mine CONFIG=config/mine.yaml
CAMPAIGN := small
CONFIG :=
RUN := soma-n2-s0
OVERLAYS = $(if $(CONFIG),--configfile $(CONFIG))

.PHONY: all toy report setup test lint docs docs-tools docs-site demo kernel lock snapshot clean
.DEFAULT_GOAL := all

# Tell the user where the outputs are; the page that tells the rest comes last.
define ways
@echo
@echo "tables   results/$(1)/tables/    (claims.md first)"
@echo "figures  results/$(1)/figures/"
@echo "report   results/$(1)/report.html  (how each file was made)"
@test ! -e results/$(1)/index.html || echo "page     results/$(1)/index.html   (read this first)"
endef

# What differs is named, and does not keep the reader from what was published.
all: setup
	@echo "step 1 of 4: pull weights and rows"
	@$(BIN)/dvc pull
	@echo "step 2 of 4: make every table and figure again from the rows, and compare with the published (a minute)"
	-@$(BIN)/soma regenerate $(OVERLAYS)
	@echo "step 3 of 4: replay pieces of the run $(RUN), and compare with its record (seconds)"
	-@$(BIN)/soma replay results/$(CAMPAIGN) $(RUN)
	@echo "step 4 of 4: write Snakemake's report"
	@$(MAKE) --no-print-directory report
	$(call ways,$(CAMPAIGN))

toy: setup
	$(BIN)/snakemake --cores all --configfile config/toy.yaml
	$(call ways,toy)

report: setup  # report of the campaign, of the products that are there: Snakemake would fail at a missing one
	@said=$$($(BIN)/snakemake $(wildcard results/$(CAMPAIGN)/tables/*.html results/$(CAMPAIGN)/figures/*.svg) \
	  --cores 1 --report results/$(CAMPAIGN)/report.html $(OVERLAYS) 2>&1) || { echo "$$said"; exit 1; }
	@$(BIN)/python -m soma.workflow.report results/$(CAMPAIGN)/report.html

setup: $(STAMP)

# Install torch first, by its exact version: the same pin is a CPU or a CUDA build, which a hash lock cannot express.
# A CUDA build of torch brings its own triton; elsewhere the tests of the kernels need one, in interpreter mode.
# Compile bytecode at the end, on all cores, because pip would use only one.
$(STAMP): requirements-pip.txt requirements-torch.txt requirements-torch.lock requirements.lock requirements-triton.txt pyproject.toml setup.py $(wildcard src/soma/forward/csrc/* src/soma/inference/csrc/*)
	@echo "setup, step 1 of 6: a virtual environment in $(VENV), and pip"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --require-hashes -r requirements-pip.txt
	@echo "setup, step 2 of 6: torch (the largest download, 200 MB to several GB)"
	@$(INSTALL) $(TORCH)
	@echo "setup, step 3 of 6: the other packages"
	@$(INSTALL) --require-hashes -r requirements.lock
	@echo "setup, step 4 of 6: this package, with its engines in C++"
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@echo "setup, step 5 of 6: triton, if torch has not brought it"
	@$(BIN)/python -c "import triton" 2> /dev/null || $(INSTALL) --no-deps --require-hashes -r requirements-triton.txt
	@echo "setup, step 6 of 6: bytecode of all packages"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # torch contains a file that needs Python 3.12
	@touch $@

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

docs-tools: setup  # the builder of the site, and jupytext; without them tests/docs skips what needs them
	$(BIN)/python -c "import pdoc, jupytext" 2> /dev/null || $(INSTALL) --require-hashes -r requirements-docs.lock

docs-site: docs-tools  # build/site/index.html: the guides and the reference of the package; nothing is fetched
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
