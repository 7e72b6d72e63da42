"""Training of the embedded `sprites` model, and its evaluation."""
