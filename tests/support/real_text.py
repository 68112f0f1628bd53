"""Token ids of real text that every machine of ours has: Python's sources, licences, copyright notes.

The vocabulary (BPE over bytes, 32,768 tokens) is trained on half of the text; the ids are of the other
half, so that the text is as new to its vocabulary as text is to a model's.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

VOCABULARY = 32_768
TEXT_BYTES = 6 << 20
"""Of each half."""


def _texts() -> list[str]:
    """Files in an order that mixes their kinds and stays the same."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [p for p in library.rglob("*.py") if "site-packages" not in p.parts]
    files += [p for p in Path("/usr/share/common-licenses").glob("*") if p.is_file() and not p.is_symlink()]
    files += Path("/usr/share/doc").glob("*/copyright")
    files.sort(key=lambda p: hash_of(str(p)))
    return [p.read_text(encoding="utf-8", errors="replace") for p in files]


def hash_of(name: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(name.encode()[::-1], "big") % 1_000_003


def _take(texts: list[str], size: int) -> list[str]:
    """Texts from the front, of about so many characters; they leave the list."""
    found, held = [], 0
    while texts and held < size:
        found.append(texts.pop(0))
        held += len(found[-1])
    return found


def token_ids() -> tuple[npt.NDArray[np.int32], int]:
    """Ids of about TEXT_BYTES characters of text, file after file, and how many characters those were."""
    texts = _texts()
    seen = _take(texts, TEXT_BYTES)
    new = _take(texts, TEXT_BYTES)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        seen,
        BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=sorted(ByteLevel.alphabet())),
    )
    ids = [np.asarray(e.ids, np.int32) for e in tokenizer.encode_batch(new, add_special_tokens=False)]
    return np.concatenate(ids), sum(map(len, new))
