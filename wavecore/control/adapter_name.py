"""Names of the ways to condition a joint chunk, without their implementations, for what only names them."""

from typing import Literal

AdapterName = Literal["retained-prefix", "clean-prefill", "boundary-image", "latent-input", "keyframes"]
