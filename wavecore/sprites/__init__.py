"""The procedural world of the embedded `sprites` model: scenes, rendering, captions, read-back."""
