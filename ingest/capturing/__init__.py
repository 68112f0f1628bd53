"""Capture without a proxy: rollout code that has token ids in its hands publishes the same events.

captures   the captures of a run in one process: its log, who is launched, one execution at a time
capture    one execution: calls, tools, score, end
arrays     ids and log-probabilities out of lists, arrays, tensors and bytes, checked
appending  threads that append to one log together
"""
