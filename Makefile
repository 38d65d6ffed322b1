# Shorthands. Each runs in the project's environment, which the first makes (see `run`).

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s%s\n", $$1, $$2 }' Makefile

setup:  ## make the environment .venv, or bring it up to date
	@scripts/setup

test:  ## run the tests
	@./run pytest -n auto

corpus-less:  ## run the tests as where the folder ../shared with its kernels is absent
	@PTXC_SHARED=/nonexistent ./run pytest -n auto

lint:  ## check style and types
	@./run ruff check
	@./run ruff format --check
	@./run mypy

format:  ## format the code and repair what ruff can
	@./run ruff check --fix
	@./run ruff format

compiled:  ## build a wheel in dist/ whose inner modules are C extensions; needs a C compiler and minutes
	@rm -rf build
	@PTXC_COMPILED=1 ./run pip wheel -q --no-deps --no-build-isolation -w dist .

test-compiled: compiled  ## run the tests against that build
	@./run pip install -q --no-deps --target build/compiled "$$(ls -t dist/ptxc-*-cp*.whl | head -n 1)"
	@PYTHONPATH=$(CURDIR)/build/compiled ./run pytest -n auto

goldens:  ## rewrite the golden files and list what changed
	@./run pytest --update

bench:  ## run the benchmarks
	@./run python benchmarks/compile_time.py

corpus:  ## compile and assemble Emmy's corpus; RECIPES=1 adds its recipes, NVCC=1 times nvcc
	@./run python benchmarks/corpus.py $(if $(RECIPES),--recipes) $(if $(NVCC),--nvcc) $(ARGS)

.PHONY: help setup test corpus-less lint format compiled test-compiled goldens bench corpus
