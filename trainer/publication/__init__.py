"""New weights to the engines.

    RUN/weights/v000003     written whole or not at all (trainer.weights), named by its digest
    RUN/publishing.json     which engines the trainer paused and has not continued

    look      each engine: what it serves, whether somebody else paused it; meet it (transport)
    pause     all of them, in the configured mode            RUN/publishing.json before that
    send      to all, by the transport; tensors checked      nothing computes meanwhile
    continue  all; RUN/publishing.json goes
    read back the probe's log-probabilities                  then policy.published, in the log

All engines or none: where one fails, those that took the weights get the old ones back from their folder,
before anything was sampled under the new.  One that cannot be brought back stays paused, and
the PublishError says so.  Publishing a version twice changes nothing.

Files: publish (the protocol), disk, group, mooncake (transports), readback (checks), folder, store (versions
on fsspec), note (publishing.json), engine (what is asked of an engine).
"""

from trainer.publication.engine import EngineAway, EngineRefused, PublishError
from trainer.publication.publish import Publisher

__all__ = ["EngineAway", "EngineRefused", "PublishError", "Publisher"]
