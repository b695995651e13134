"""The commands that a person calls: one module and function for each, with the name of its subcommand."""
