# Everything from a bare checkout with only Python >= 3.11: `make demo`, `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Real MNIST and Fashion-MNIST for the tests that want them; without the folder those tests are skipped.
FEDWEAVE_DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared/data),)
export FEDWEAVE_DATA
# The tests start dozens of programs: compile the modules once for all of them, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-plain demo-tune methods-tune test test-imitated faults lint format bench results atlas archive docs pictures dist clean
.DEFAULT_GOAL := test

# The settings of fedweave.papers.beyond.demo, where their claims are declared; a test compares the two.
DEMO   := fedavg fedacs feddd fedbuff --data mnist5k --model logistic --clients 40 --rounds 1000 --evaluate-every 2 --client-eval 1000
UNEVEN := --per-round 20 --partition one-class:sorted --system dynamic --set system.slow_work=[1,5] --set system.slow_loss=[0.6,0.8] --stop-after 180
PLAIN  := --per-round 4 --partition iid --system uniform --stop-after 60

demo: $(VENV)/.demo  # half of the clients are slow and lose most of their answers: what FedAvg forgets, and what helps
	rm -rf demo
	$(BIN)/fedweave compare $(DEMO) $(UNEVEN) --lr "0.1; fedacs=0.3" --target 0.85 --seeds 10 --out demo
	@echo "Open demo/report.html in a browser. Where plain FedAvg is the best choice: make demo-plain"

docs/report.png: demo/report.html
	chromium --headless --hide-scrollbars --window-size=1180,1560 --screenshot=$@ $<

demo-plain: $(VENV)/.demo  # all clients alike
	rm -rf demo-plain
	$(BIN)/fedweave compare $(DEMO) $(PLAIN) --lr "0.1; fedacs=0.03; feddd=1" --target 0.85 --seeds 10 --out demo-plain
	@echo "Open demo-plain/report.html in a browser."

demo-tune: $(VENV)/.demo  # how the learning rates of both were found: other seeds, a validation split
	$(BIN)/fedweave sweep $(DEMO) $(UNEVEN) --over lr=0.03,0.1,0.3,1 --seed 1001 --seeds 4 --validation 0.2 --out runs/demo-tune
	$(BIN)/fedweave sweep $(DEMO) $(PLAIN) --over lr=0.01,0.03,0.1,0.3,1,3 --seed 1001 --seeds 4 --validation 0.2 --out runs/demo-plain-tune

methods-tune: $(VENV)/.dev  # the learning rates of beyond/methods, in the same way: ten minutes on two idle cores
	$(BIN)/python -m fedweave.papers.beyond.tuning

# One thread in each process: more threads than cores would only wait for each other. Two processes more than two cores
# need, since the tests of real fleets mostly wait.
test test-imitated faults: export OMP_NUM_THREADS := 1
test test-imitated faults: export OPENBLAS_NUM_THREADS := 1
test test-imitated faults: export MKL_NUM_THREADS := 1
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --dist worksteal $(PYTEST)

IMITATED = env ATEN_CPU_CAPABILITY=$(1) MKL_ENABLE_INSTRUCTIONS=$(2) ONEDNN_MAX_CPU_ISA=$(3) $(MAKE) test

test-imitated: $(VENV)/.dev  # the suite on this processor as the libraries would see an older one: SSE, and AVX2 where there is AVX-512
	$(call IMITATED,default,SSE4_2,SSE41)
	@if $(BIN)/python -c 'import sys, torch; sys.exit(torch.backends.cpu.get_cpu_capability() != "AVX512")'; then \
	  $(call IMITATED,avx2,AVX2,AVX2); fi

faults: $(VENV)/.dev  # every kill point, a hundred random times, a hundred thousand broken files, as many messages, the lowest versions and each extra installed, every method with every task, lost nodes of a Ray cluster, ten minutes of the live page: an hour
	FEDWEAVE_FAULTS=1 $(BIN)/python -m pytest -n 2 tests/faults tests/local/test_company.py tests/local/test_compiled.py tests/test_install.py \
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

results atlas: $(VENV)/.dev  # docs/results.md, the counts in README.md, docs/choosing.md and docs/atlas from the recorded outcomes
	$(BIN)/python -m fedweave.papers.common.results_page docs/results.md README.md
	$(BIN)/python -m fedweave.papers.common.choosing_page docs/choosing.md
	$(BIN)/fedweave reproduce --page docs/atlas --record results

archive: results  # sources, ledger, results and pages as one file with a manifest of SHA-256s, the same bytes every time
	$(BIN)/python -m fedweave.papers.atlas.archive . dist/fedweave-atlas.tar.gz

docs: $(VENV)/.dev  # the documentation as a site, build/docs; nothing is loaded from the network, any warning is an error
	$(BIN)/python tools/site.py
	@echo "Open build/docs/index.html in a browser. Its search needs a server:"
	@echo "  python3 -m http.server -d build/docs --bind 127.0.0.1    then open http://127.0.0.1:8000"

pictures: $(VENV)/.dev  # those of docs/explanations, from the library's own functions
	$(BIN)/python tools/pictures.py

dist: $(VENV)/.dev  # the wheel and the sdist, and whether an index would take them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) demo demo-plain build dist .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedweave needs Python >= 3.11, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fast,data]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.demo
