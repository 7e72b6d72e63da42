"""Streams under the speculative controller: what makes latents and frames, the session, replay."""
