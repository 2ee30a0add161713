"""The nodes of a run: their profiles, who takes part, and who is drawn."""
