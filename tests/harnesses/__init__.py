"""Real harnesses, unmodified and headless, against the capture proxy, and what the lake then holds.

install.py       the clients of one version each, from npm and from PyPI
frame.py         one run: scratch HOME, proxy, engine, client; then the log, ingested
checking.py      what must hold of a run
scenario.py      what the policy says, by role, and who is speaking
observing.py     what a client did with the answers: continued, branched, sent back changed
table.py         docs/harnesses.md, made from the runs
clients/         one module a client
conforming.py    a client as a test

    python -m tests.harnesses [NAME...] --write docs/harnesses.md
"""
