"""The papers as data: settings and published numbers, one TOML file each; `coterie reproduce` reads them."""
