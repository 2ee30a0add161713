"""What all folders of the package stand on: options, tables, files, seeding, processes, errors."""
