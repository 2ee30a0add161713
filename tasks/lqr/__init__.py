"""The LQR toy of APFL, Sec. IV-A: shared dynamics, personal control."""
