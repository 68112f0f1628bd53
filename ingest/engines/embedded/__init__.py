"""A small inference engine for Qwen3-shaped models on the CPU, behind SGLang's native HTTP contract.

`python -m ingest.engines.embedded --model DIR --port P` starts it as a process of its own.

    HTTP (server, wire) -> Worker (one thread) -> Batch (what a step computes) -> Decoder (the model)
                                                     Slots (held prefixes), sampling

Where it differs from SGLang 0.5.23 on purpose (tests/contract/test_engine_*.py runs against both, and
says what each does):

- An abort names one request exactly, and must name one; SGLang aborts all whose id begins so.
- Ids outside the vocabulary are refused; SGLang dies of them.
- /health and /health_generate say whether the model thread lives, while paused as well; SGLang samples a
  token.
- An update names its version, needs no pause, and is taken whole or not at all; SGLang waits for the calls
  that run unless it is paused.
- `sampling_seed` holds.
- The queue is bounded.
- No stop strings, no several answers to one prompt, no text: these are refused by name.
- /model_info tells the size of the vocabulary and of the context.
"""
