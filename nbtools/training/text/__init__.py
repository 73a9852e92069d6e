"""Text for models: tokenizers, vocabularies, tokenized data, hub models, sampling."""
