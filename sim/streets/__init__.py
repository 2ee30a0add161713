"""Made-up cities in which camera cars drive, in the folders of Mapillary Street-Level Sequences (FedVPR, Sec. 4)."""
