"""One function per workflow rule: open what it reads, call the library, write what it declares."""
