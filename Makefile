# make demo     install, train the built-in task in a few minutes, say where to look next
# make test     install, run all tests (a real Kafka broker too: needs Java 17 and Maven)
# make bench    install, run every benchmark; BENCH_JSON=FILE also writes one JSON object a line
# make lint     style, types and layers
# make wheel    build the wheel and try it in a clean environment
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv pip
PINS := infra/requirements.txt
BENCH ?=

.PHONY: install demo test bench lint wheel clean

install: $(VENV)/installed

$(VENV)/installed: $(PINS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "headrace needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11 install"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { \
	  echo "python3 has no venv; as root: apt-get install -y python3-venv"; exit 1; }
	$(PY) -m pip install --quiet uv==0.13.9
	$(UV) install --quiet --compile-bytecode --python $(PY) --requirement $(PINS)
	$(UV) install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	$(PY) -c "import ingest.matching, ingest.importing.kernels"
	@touch $@

demo: install
	$(VENV)/bin/headrace run demo

test: install
	$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

bench: install
	$(PY) -m tests.bench $(BENCH)

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

wheel: install
	rm -rf dist build/wheel-check
	$(PY) -m hatchling build --target wheel
	$(PYTHON) -m venv build/wheel-check
	$(UV) install --quiet --python build/wheel-check/bin/python --constraint $(PINS) dist/headrace-*.whl
	cd build/wheel-check && bin/headrace --version && bin/headrace run demo --run try \
	  --set steps=3 --set model.warmup_steps=20 && bin/headrace replay try --check && bin/headrace audit try

clean:
	rm -rf $(VENV) dist build
