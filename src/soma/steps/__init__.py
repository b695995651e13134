"""One function per workflow rule: open the inputs, call the library, write the declared outputs."""
