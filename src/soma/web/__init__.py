"""The inference kernel as WebAssembly, for a page in a browser."""
