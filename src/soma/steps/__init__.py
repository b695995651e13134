"""The steps of the workflow: one module and function for each, with the name of its subcommand and rule."""
