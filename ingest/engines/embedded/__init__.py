"""A small inference engine for Qwen3-shaped models on the CPU, behind SGLang's native HTTP contract.

`python -m ingest.engines.embedded --model DIR --port P` starts it as a process of its own.

    HTTP (server, wire) -> Worker (one thread) -> Batch (what a step computes) -> Decoder (the model)
                                                     Slots (held prefixes), sampling

Where it differs from SGLang 0.5.23 on purpose: an abort names one request exactly (SGLang aborts by
prefix); ids outside the vocabulary are refused (SGLang dies); /health and /health_generate say whether
the model thread lives, while paused as well; an update
names its version; a stop token in the last permitted place finishes as `stop`, not as `length`;
`sampling_seed` holds.
"""
