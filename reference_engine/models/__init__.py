"""The bundled models, one folder each, and the script that trains them."""
