"""A model in a browser: the page, and the inference kernel as WebAssembly."""
