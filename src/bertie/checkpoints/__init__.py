"""Model ⇄ folder: Hugging Face's format, training state, verification, model card."""
