"""Chat templates of real models, byte for byte.

Under tests/golden/templates/, from the wheel of trl 1.16.0 (Apache-2.0, as Qwen's models; GLM's are MIT),
where each is said to be the model's original.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "templates"


def template(name: str) -> str:
    """The text of `name`.jinja: qwen2_5, qwen3, qwen3_5_think, glm4moe."""
    return (FOLDER / f"{name}.jinja").read_text()
