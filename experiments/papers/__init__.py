"""The papers as data: settings and published numbers, one TOML file each; `python -m experiments` reads them."""
