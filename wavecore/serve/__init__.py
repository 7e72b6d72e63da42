"""`wavecore serve`: interactive streams in the browser. See docs/serve.md."""
