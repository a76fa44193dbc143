# Everything from a bare checkout with only Python >= 3.11: `make demo`, `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Real MNIST and Fashion-MNIST for the tests that want them; without the folder those tests are skipped.
FEDWEAVE_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared/data),)
export FEDWEAVE_DATA
# The tests start dozens of programs: compile the modules once for all of them, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test faults lint format bench results docs pictures dist clean
.DEFAULT_GOAL := test

demo: $(VENV)/.demo
	rm -rf demo
	$(BIN)/fedweave compare fedavg fedprox fedavgm fedyogi --data mnist5k --partition dirichlet:0.1 --clients 50 \
	  --per-round 10 --model cnn_small --system dynamic --rounds 40 --batch-size 20 --lr 0.05 --target 0.9 --seeds 2 --out demo
	@echo "Open demo/report.html in a browser."

# One thread in each process: more threads than cores would only wait for each other. One process more than two cores
# need, since the tests of real fleets mostly wait.
test faults: export OMP_NUM_THREADS := 1
test faults: export OPENBLAS_NUM_THREADS := 1
test faults: export MKL_NUM_THREADS := 1
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST)

faults: $(VENV)/.dev  # every kill point, a hundred random times, a hundred thousand broken files, as many messages, the lowest versions and each extra installed, every method with every task, lost nodes of a Ray cluster: three quarters of an hour
	FEDWEAVE_FAULTS=1 $(BIN)/python -m pytest -n 2 tests/faults tests/local/test_company.py tests/test_install.py \
	  tests/test_every_task.py tests/engine/test_ray_cluster.py $(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/bits.py --imitate
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/min_norm.py
	$(BIN)/python benchmarks/draw.py
	$(BIN)/python benchmarks/size.py
	$(BIN)/python benchmarks/server_memory.py
	$(BIN)/python benchmarks/flower_overhead.py
	$(BIN)/python benchmarks/dropout_plan.py
	$(BIN)/python benchmarks/upload.py
	$(BIN)/python benchmarks/ray_overhead.py

results: $(VENV)/.dev  # docs/results.md from the recorded outcomes
	$(BIN)/python -m fedweave.papers.common.results_page docs/results.md

docs: $(VENV)/.dev  # the documentation as a site, build/docs; nothing is loaded from the network, any warning is an error
	$(BIN)/python tools/site.py
	@echo "Open build/docs/index.html in a browser."

pictures: $(VENV)/.dev  # those of docs/explanations, from the library's own functions
	$(BIN)/python tools/pictures.py

dist: $(VENV)/.dev  # the wheel and the sdist, and whether an index would take them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedweave needs Python >= 3.11, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,data]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.demo
