"""Tables, figures and pages, one module per family. Rows come from `soma.analysis`; nothing is computed here."""
